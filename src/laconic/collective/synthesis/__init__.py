"""Synthesis: collectives found for a given network, by a solver, with the bound that they were proved against."""
