"""A process that comes from nothing to a first output; this file imports nothing before it is told to."""

from __future__ import annotations

import time
from multiprocessing.connection import Connection

BATCH = 8


def from_nothing(pipe: Connection, path: str, device: str, small: bool) -> None:
    """Come to a first output as a process that has just begun, and say when what was done."""
    begun = time.monotonic()
    import torch
    from bench.sharing.residual_net import residual_net

    imported = time.monotonic()
    torch.set_num_threads(1)
    torch.zeros(1, device=device).item()
    ready = time.monotonic()
    with torch.device("meta"):
        model = residual_net((1, 1)) if small else residual_net()
    model.load_state_dict(torch.load(path, mmap=True), assign=True)
    model = model.eval().to(device)
    torch.zeros(1, device=device).item()
    loaded = time.monotonic()
    size = 32 if small else 224
    with torch.no_grad():
        model(torch.randn(BATCH, 3, size, size, device=device)).sum().item()
    pipe.send([begun, imported, ready, loaded, time.monotonic()])
