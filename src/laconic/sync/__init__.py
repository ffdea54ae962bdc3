"""When workers talk: synchronisation rules."""
