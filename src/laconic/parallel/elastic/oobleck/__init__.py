"""Oobleck: pipelines of several sizes, planned once, of which any number of nodes that is left can be made up."""
