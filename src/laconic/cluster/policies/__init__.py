"""Policies of clusters, a file for each system."""
