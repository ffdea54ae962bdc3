"""Measuring by rehearsal: a script trains on all its workers at once, without talking, and leaves a `Profile`."""
