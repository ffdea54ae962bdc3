"""Sharing one GPU, measured: what `bench/gpu_sharing.py` consists of."""
