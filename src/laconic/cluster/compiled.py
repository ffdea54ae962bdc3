"""The hot loops of whole gangs: compiled by Numba where it is installed, plain Python otherwise.

What they find they write into arrays that they are handed: to make one inside costs more than what most of them do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

ALMOST = 1.0 - 1e-9  # of a device: sums of shares round

try:
    from numba import njit
except ImportError:
    _compiled: Callable[[Any], Any] = lambda body: body  # noqa: E731
else:
    _compiled = njit(nogil=True, cache=True)


@_compiled
def in_turn(order, workers, held, left, found):  # type: ignore[no-untyped-def]
    """Give GPUs to jobs one after another while these last, whole gangs only; who is too large for what is left is
    passed over. Return how many start and how many are preempted: these are the first and the last of `found`.

    - `order`: the numbers of jobs, the most urgent first.
    - `workers`: of every job, by number.
    - `held`: the GPUs that every job holds, by number.
    - `left`: the GPUs that there are.
    - `found`: room for as many numbers as there are jobs.
    """
    starting, stopping = 0, 0
    for job in order:
        if workers[job] <= left:
            left -= workers[job]
            if held[job] == 0:
                found[starting] = job
                starting += 1
        elif held[job] > 0:
            stopping += 1
            found[len(found) - stopping] = job
    return starting, stopping


@_compiled
def grown(jobs, amounts, rates, since, now, found):  # type: ignore[no-untyped-def]
    """Find what amounts have grown to that grow at a rate.

    - `jobs`: the numbers of jobs.
    - `amounts`: what each had, by number.
    - `rates`: what comes in a second, by number.
    - `since`: from when on, by number.
    - `now`: the time.
    - `found`: room for as many amounts as there are jobs.
    """
    for i in range(len(jobs)):
        job = jobs[i]
        found[i] = amounts[job] + rates[job] * (now - since[job])


@_compiled
def remaining(jobs, wholes, amounts, rates, since, now, found):  # type: ignore[no-untyped-def]
    """Find what such amounts lack of others, or 0.

    - `wholes`: the others, by number.
    - `jobs`, `amounts`, `rates`, `since`, `now`, `found`: as above.
    """
    for i in range(len(jobs)):
        job = jobs[i]
        found[i] = max(wholes[job] - (amounts[job] + rates[job] * (now - since[job])), 0.0)


@_compiled
def move(free, whole, there, slots, sign):  # type: ignore[no-untyped-def]
    """Give shares of devices back, or take them. Return how many more devices nobody uses, and the least that is left
    of one of those: -1 where one is not there, on which nothing changes.

    - `free`: the share of each device that is free, by host and device.
    - `whole`: the devices of each host that nobody uses.
    - `there`: whether each host is there.
    - `slots`: rows of host, device and share.
    - `sign`: 1 to give, -1 to take.
    """
    more, least = 0, np.inf
    for i in range(len(slots)):
        host, device = int(slots[i, 0]), int(slots[i, 1])
        if not (0 <= host < len(there) and 0 <= device < free.shape[1] and there[host]):
            least = min(least, -1.0)
            continue
        before = free[host, device]
        after = before + sign * slots[i, 2]
        free[host, device] = after
        least = min(least, after)
        step = int(after >= ALMOST) - int(before >= ALMOST)
        whole[host] += step
        more += step
    return more, least


@_compiled
def on_few_hosts(free, whole, chosen):  # type: ignore[no-untyped-def]
    """Choose whole devices on as few hosts as possible, in order, each as its place in `free`: of the fullest host that
    holds the whole gang; where none does, of the emptiest hosts, and the rest of the fullest host that holds it. Return
    how many there are.

    - `free`: the share of each device that is free, by host and device.
    - `whole`: the devices of each host that nobody uses.
    - `chosen`: room for as many places as devices are asked for.
    """
    workers, found, used = len(chosen), 0, np.zeros(len(whole), np.bool_)
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
    return found
