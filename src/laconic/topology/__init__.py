"""Topologies: the graphs over which gossiping workers communicate, as mixing weights."""
