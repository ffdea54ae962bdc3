"""Bounds of methods that average from time to time: local SGD and its relatives."""
