"""Adapters for other frameworks, one file each."""
