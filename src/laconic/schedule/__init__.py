"""Schedules: they plan the order of an iteration's messages, as data."""
