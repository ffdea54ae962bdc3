"""Schedules of pipelines: which order each device works in, one file for each system."""
