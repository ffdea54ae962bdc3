"""Fuzzing: valid inputs of every reader and command, spoilt at random, and what must hold for each of them."""
