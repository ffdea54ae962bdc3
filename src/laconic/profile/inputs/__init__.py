"""Readers of files people already have: profiler traces, nccl-tests logs, `nvidia-smi topo -m`."""
