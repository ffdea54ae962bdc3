"""Which devices a gang gets: rules that policies share."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import lru_cache

import numpy as np

from laconic.cluster.compiled import on_few_hosts
from laconic.cluster.grant import Grant, Slot
from laconic.cluster.room import ALMOST, Room


def consolidated(room: Room, workers: int) -> Grant | None:
    """Return whole devices on as few hosts as possible: the fullest host that holds the whole gang; where none does,
    the emptiest hosts, and the rest on the fullest host that holds it. None where there are too few.

    - `room`: what is free.
    - `workers`: how many devices are asked for.
    """
    if room.gpus < workers:
        return None
    chosen = np.empty(workers, np.int64)
    on_few_hosts(room.free, room.whole, chosen)
    return _grant(room.free.shape[1], *chosen.tolist())


@lru_cache(maxsize=1 << 15)
def _grant(width: int, *places: int) -> Grant:
    """Return the grant of whole devices, given by their places in a table of so many devices a host; the same devices
    are given again and again."""
    return Grant(tuple(Slot(*divmod(place, width)) for place in places))


def one_after_another(room: Room, workers: int, groups: Iterable[Collection[int]]) -> Grant | None:
    """Return whole devices of groups of hosts, such as racks, each of which is filled before the next, consolidated in
    each, in the order in which they were taken. None where there are too few.

    - `room`: what is free.
    - `workers`: how many devices are asked for.
    - `groups`: the numbers of the hosts of each.
    """
    slots: list[Slot] = []
    for hosts in groups:
        part = room.only(hosts)
        grant = consolidated(part, min(workers - len(slots), part.gpus))
        slots += grant.slots if grant is not None else ()
        if len(slots) == workers:
            return Grant(tuple(slots))
    return None


def emptiest(room: Room, workers: int) -> Grant | None:
    """Return whole devices of the emptiest hosts, the first of equals, in the order in which they were taken: as few
    hosts as possible for a large gang, and small ones kept apart. None where there are too few devices.

    - `room`: what is free.
    - `workers`: how many devices are asked for.
    """
    if room.gpus < workers:
        return None
    counts, slots = room.whole.copy(), list[Slot]()
    while len(slots) < workers:
        host = int(counts.argmax())
        taken = np.flatnonzero(room.free[host] >= ALMOST)[: workers - len(slots)].tolist()
        slots += [Slot(host, device) for device in taken]
        counts[host] = 0
    return Grant(tuple(slots))


def even(room: Room, workers: int) -> Grant | None:
    """Return whole devices spread evenly over the fewest of the emptiest hosts that hold as many each. None where no
    number of hosts holds them so.

    - `room`: what is free.
    - `workers`: how many devices are asked for.
    """
    order = np.argsort(-room.whole, kind="stable").tolist()
    for hosts in range(1, min(workers, len(order)) + 1):
        least, more = divmod(workers, hosts)
        counts = [least + (i < more) for i in range(hosts)]
        if all(count <= room.whole[host] for count, host in zip(counts, order, strict=False)):
            return Grant.of(
                Slot(host, device)
                for count, host in zip(counts, order, strict=False)
                for device in np.flatnonzero(room.free[host] >= ALMOST)[:count].tolist()
            )
    return None
