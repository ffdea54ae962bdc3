"""Ways to share ports that rules have in common: fairly, one after another, and what is left."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laconic.cluster.flows.traffic import Rates, Traffic
from laconic.network.max_min import fill


def fair(traffic: Traffic, memory: Any) -> tuple[Rates, Any]:
    """Return max-min fair rates of all flows, whoever's they are: what a network does by itself.

    - `traffic`: what is sent now.
    - `memory`: unused.
    """
    return Rates(fill(traffic.loads, traffic.room.copy(), np.ones(len(traffic.owner), bool))), memory


def one_after_another(
    traffic: Traffic, groups: Iterable[Iterable[int]], room: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return rates by strict priority: each group of jobs shares fairly what those before it leave. What they use is
    taken from `room`.

    - `traffic`: what is sent now.
    - `groups`: the numbers of jobs, the most urgent group first.
    - `room`: what every port has left, which is changed.
    """
    rates, loads, nothing = np.zeros(len(traffic.owner)), traffic.loads, traffic.room * 1e-12
    for group in groups:
        rates += fill(loads, room, np.isin(traffic.owner, list(group)))
        room[room < nothing] = 0.0  # rounding errors of full ports
    return rates


def sending(traffic: Traffic) -> list[int]:
    """Return the jobs that send now, in the order of their arrivals.

    - `traffic`: what is sent now.
    """
    found: list[int] = np.unique(traffic.owner).tolist()
    return found
