"""Shares of time: how much of it each job gets on each type of GPU, found by linear programs."""
