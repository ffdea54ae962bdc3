"""Packing: tasks that need parts of a GPU, whole GPUs, cores and memory of one host, and rules that choose it."""
