"""Validation of the cost models against measurements: a module for each section of `laconic validate`."""
