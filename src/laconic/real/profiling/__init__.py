"""Profiling runs: a script trains on all its workers at once, without communication, and leaves a `Profile`."""
