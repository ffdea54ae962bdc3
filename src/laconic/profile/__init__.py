"""Profiles: layer times, tensor lists, and link and codec measurements, with which engines and planners start."""
