"""Which devices a gang gets: rules that policies share."""

from __future__ import annotations

import numpy as np

from laconic.cluster.grant import Grant, Slot
from laconic.cluster.room import ALMOST, Room

_MANY = np.iinfo(np.int64).max


def consolidated(room: Room, workers: int) -> Grant | None:
    """Return whole devices on as few hosts as possible: the fullest host that holds the whole gang; where none does,
    the emptiest hosts, and the rest on the fullest host that holds it. None where there are too few.

    - `room`: what is free.
    - `workers`: how many devices are asked for.
    """
    if room.gpus < workers:
        return None
    counts, slots, left = room.whole, list[Slot](), workers
    while left:
        if int(counts.max()) >= left:
            host = int(np.where(counts >= left, counts, _MANY).argmin())
        else:
            host = int(counts.argmax())
        taken = np.flatnonzero(room.free[host] >= ALMOST)[:left].tolist()
        slots += [Slot(host, device) for device in taken]
        left -= len(taken)
        if left:
            counts = counts.copy()
            counts[host] = 0
    return Grant.of(slots)
