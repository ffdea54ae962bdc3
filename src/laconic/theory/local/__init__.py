"""Bounds of methods that average now and then: local SGD and its kin."""
