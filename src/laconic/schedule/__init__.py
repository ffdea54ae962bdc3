"""In what order: an iteration's messages as data."""
