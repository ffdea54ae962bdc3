"""GPUs by name, what they hold, and how long models take on them: planning without one."""

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
