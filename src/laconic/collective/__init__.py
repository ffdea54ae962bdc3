"""Collective operations as flows: the bytes each sends, from which member to which."""
