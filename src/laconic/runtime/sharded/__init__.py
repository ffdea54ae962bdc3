"""Sharded data parallelism: gradients that are scattered to the owners of shards, and weights that are gathered."""
