"""GPUs by name, their memory, and estimated times of models on them, for planning without the GPU at hand."""

from __future__ import annotations

from laconic.profile.gpus.memory import Memory, default_batch, memory_bytes, memory_of, usable_bytes
from laconic.profile.gpus.roofline import profile_of
from laconic.profile.gpus.table import GPUS, LINKS, Gpu, Precision, gpu

__all__ = [
    "GPUS",
    "LINKS",
    "Gpu",
    "Memory",
    "Precision",
    "default_batch",
    "gpu",
    "memory_bytes",
    "memory_of",
    "profile_of",
    "usable_bytes",
]
