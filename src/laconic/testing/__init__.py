"""Aids for testing techniques without processes or a network."""
