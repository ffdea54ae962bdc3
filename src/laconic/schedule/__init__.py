"""Schedules: plans, as data, of how gradients are merged into messages and in which order these are sent."""
