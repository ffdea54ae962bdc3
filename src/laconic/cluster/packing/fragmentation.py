"""How much of a host's free GPUs the next task cannot use, as it is expected."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from laconic.cluster.packing.tables import HostTable, typical_table
from laconic.cluster.packing.tasks import WHOLE, Task
from laconic.cluster.room import Room


def fragmentation(room: Room, counts: Mapping[Task, int]) -> np.ndarray:
    """Return, for each host, the GPUs F(M) = Σ p F(m) that are free there and of no use to the next task: all that is
    free where task m cannot run or asks for no GPU, and otherwise what is left of devices that have less than m asks
    of each.

    - `room`: what is free.
    - `counts`: the tasks that may come, with how often each came: its popularity p is its share of them.
    """
    from laconic.kernels.placement import fragment

    hosts, typical = HostTable.of(room), typical_table(counts, room.cluster)
    found = [
        fragment(hosts.cpu_milli[h], hosts.memory_mib[h], hosts.kind[h], hosts.gpu_milli[h], *typical)
        for h in range(len(room.cluster.hosts))
    ]
    return np.array(found) / (WHOLE * sum(counts.values()))
