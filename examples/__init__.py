"""Examples: each is a script of its own; a package so that no other one of this name comes before it."""
