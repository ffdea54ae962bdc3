"""Tensor parallelism: layers whose matrices are cut among devices."""
