"""Collective operations: what each sends from whom to whom."""
