"""Aids for tests of techniques."""
