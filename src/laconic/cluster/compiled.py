"""The hot loops of whole gangs: compiled by Numba where it is installed, plain Python otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from laconic.cluster.room import ALMOST

try:
    from numba import njit
except ImportError:
    _compiled: Callable[[Any], Any] = lambda body: body  # noqa: E731
else:
    _compiled = njit(nogil=True, cache=True)


@_compiled
def in_turn(order, workers, held, left):  # type: ignore[no-untyped-def]
    """Give GPUs to jobs one after another while these last, whole gangs only; who is too large for what is left is
    passed over. Return who starts, in that order, and who is preempted.

    - `order`: the numbers of jobs, the most urgent first.
    - `workers`: of every job, by number.
    - `held`: the GPUs that every job holds, by number.
    - `left`: the GPUs that there are.
    """
    start, stop = np.empty(len(order), np.int64), np.empty(len(order), np.int64)
    starting, stopping = 0, 0
    for job in order:
        if workers[job] <= left:
            left -= workers[job]
            if held[job] == 0:
                start[starting] = job
                starting += 1
        elif held[job] > 0:
            stop[stopping] = job
            stopping += 1
    return start[:starting], stop[:stopping]


@_compiled
def on_few_hosts(free, whole, workers):  # type: ignore[no-untyped-def]
    """Return whole devices on as few hosts as possible, in order, each as its place in `free`: of the fullest host that
    holds the whole gang; where none does, of the emptiest hosts, and the rest of the fullest host that holds it.

    - `free`: the share of each device that is free, by host and device.
    - `whole`: the devices of each host that nobody uses.
    - `workers`: how many devices are asked for.
    """
    chosen, used, found = np.empty(workers, np.int64), np.zeros(len(whole), np.bool_), 0
    while found < workers:
        left, fullest, emptiest = workers - found, -1, -1
        for host in range(len(whole)):
            if used[host]:
                continue
            if whole[host] >= left and (fullest < 0 or whole[host] < whole[fullest]):
                fullest = host
            if emptiest < 0 or whole[host] > whole[emptiest]:
                emptiest = host
        host = fullest if fullest >= 0 else emptiest
        if host < 0:
            break
        used[host] = True
        for device in range(free.shape[1]):
            if found < workers and free[host, device] >= ALMOST:
                chosen[found] = host * free.shape[1] + device
                found += 1
    chosen[:found].sort()
    return chosen[:found]
