"""Engines: run a sentence on real processes."""
