"""Readers of files from other tools: profiler traces, nccl-tests logs and the output of `nvidia-smi topo -m`."""
