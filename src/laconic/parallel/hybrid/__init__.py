"""Pipeline, tensor and data parallelism together: the time and memory of a transformer's iteration, and a search."""
