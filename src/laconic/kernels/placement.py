"""The hot loops of packing tasks on hosts: compiled by Numba where it is installed, plain Python otherwise.

All amounts are whole numbers: thousandths of a core and of a GPU, MiB, and counts of tasks for popularity. Sums of them
are exact, so that two choices that are equally good are equal here, too.

- A host is a row of `cpu`, `memory`, `kind` (one bit, that of its GPUs' type) and `free` (thousandths of each GPU).
- A task is a row of `cpu`, `memory`, `kinds` (bits of the types it runs on; 0: all), `gpus` and `milli` (of each GPU).
- `typical` tasks have `counts` beside these.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

try:
    from numba import njit
except ImportError:
    warnings.warn(
        "laconic packs tasks in plain Python, a hundred times slower than it could: numba is not installed "
        "(pip install 'laconic[fast]')",
        stacklevel=2,
    )
    _compiled: Callable[[Any], Any] = lambda body: body  # noqa: E731
else:
    _compiled = njit(nogil=True, cache=True)

EXACT, PUBLISHED, BEST_FIT, DOT_PRODUCT, RANDOM = range(5)
MILLI = 1000
MOST_CPU, MOST_GPU = 128_000.0, 8_000.0  # of a host of that trace, by which the rivals' scores are normalised
NO_FIT = -(2**62)


@_compiled
def fragment(cpu, memory, kind, free, t_cpu, t_memory, t_kinds, t_gpus, t_milli, t_counts):  # type: ignore[no-untyped-def]
    """Return the free thousandths of GPUs of a host that typical tasks cannot use, summed over them by their counts."""
    total = 0
    for g in range(len(free)):
        total += free[g]
    if total == 0:
        return 0
    found = 0
    for m in range(len(t_counts)):
        if t_gpus[m] == 0 or t_cpu[m] > cpu or t_memory[m] > memory or (t_kinds[m] != 0 and t_kinds[m] & kind == 0):
            found += t_counts[m] * total
            continue
        wide, rest = 0, 0
        for g in range(len(free)):
            if free[g] >= t_milli[m]:
                wide += 1
            else:
                rest += free[g]
        found += t_counts[m] * (rest if wide >= t_gpus[m] else total)
    return found


@_compiled
def fits(cpu, memory, kind, free, a_cpu, a_memory, a_kinds, a_gpus, a_milli):  # type: ignore[no-untyped-def]
    """Tell whether a host has room for a task."""
    if a_cpu > cpu or a_memory > memory or (a_kinds != 0 and a_kinds & kind == 0):
        return False
    wide = 0
    for g in range(len(free)):
        if free[g] >= a_milli:
            wide += 1
    return wide >= a_gpus


@_compiled
def score(rule, cpu, memory, kind, free, a_cpu, a_memory, a_kinds, a_gpus, a_milli, typical):  # type: ignore[no-untyped-def]
    """Return how good a host is for a task by a rule, the larger the better, and on which of its GPUs a part of one is
    taken, -1 where whole ones or none are asked for. A host without room scores `NO_FIT`."""
    if not fits(cpu, memory, kind, free, a_cpu, a_memory, a_kinds, a_gpus, a_milli):
        return NO_FIT, -1
    is_part = a_gpus == 1 and a_milli < MILLI
    device = -1
    if rule <= PUBLISHED:
        t_cpu, t_memory, t_kinds, t_gpus, t_milli, t_counts = typical
        before = fragment(cpu, memory, kind, free, t_cpu, t_memory, t_kinds, t_gpus, t_milli, t_counts)
        all_counts = t_counts.sum()
        left = free.copy()
        best = NO_FIT
        for g in range(len(free) if is_part else 1):
            if is_part:
                if free[g] < a_milli:
                    continue
                is_tried = False  # one of two that have as much left is as good as the other
                for h in range(g):
                    is_tried = is_tried or free[h] == free[g]
                if is_tried:
                    continue
                left[g] -= a_milli
            else:
                wanted = a_gpus
                for h in range(len(free)):
                    if wanted > 0 and left[h] >= a_milli:
                        left[h] -= a_milli
                        wanted -= 1
            after = fragment(
                cpu - a_cpu, memory - a_memory, kind, left, t_cpu, t_memory, t_kinds, t_gpus, t_milli, t_counts
            )
            found = before - after
            if rule == PUBLISHED:
                found = int(100.0 / (1.0 + math.exp(-found / (1000.0 * all_counts))))
            if found > best:
                best = found
                device = g if is_part else -1
            if is_part:
                left[g] = free[g]
        return best, device
    if is_part:  # the rivals choose the host alone, and there the GPU with least left
        for g in range(len(free)):
            if free[g] >= a_milli and (device < 0 or free[g] < free[device]):
                device = g
    total = 0
    for g in range(len(free)):
        total += free[g]
    if rule == BEST_FIT:
        left_over = 0.5 * (cpu - a_cpu) / MOST_CPU + 0.5 * (total - a_gpus * a_milli) / MOST_GPU
        return int((1.0 - left_over) * 100.0), device
    if rule == DOT_PRODUCT:
        product = (cpu / MOST_CPU * (a_cpu / MOST_CPU) + total / MOST_GPU * (a_gpus * a_milli / MOST_GPU)) / 2.0
        return int((1.0 - product) * 100.0), device
    return 0, device


@_compiled
def place(cpu, free, memory, host, device, a_cpu, a_memory, a_gpus, a_milli):  # type: ignore[no-untyped-def]
    """Take what a task asks for from a host: from that device, or from the first that are whole."""
    cpu[host] -= a_cpu
    memory[host] -= a_memory
    if device >= 0:
        free[host, device] -= a_milli
        return
    wanted = a_gpus
    for g in range(free.shape[1]):
        if wanted > 0 and free[host, g] >= a_milli:
            free[host, g] -= a_milli
            wanted -= 1


@_compiled
def best_host(rule, hosts, rank, asked, typical):  # type: ignore[no-untyped-def]
    """Return the best host for one task, of equals the first in `rank`, and its device; -1 where none has room."""
    cpu, memory, kind, free = hosts
    best, chosen, device = NO_FIT, -1, -1
    for i in range(len(rank)):
        h = rank[i]
        found, there = score(
            rule, cpu[h], memory[h], kind[h], free[h], asked[0], asked[1], asked[2], asked[3], asked[4], typical
        )
        if found > best:
            best, chosen, device = found, h, there
    return chosen, device


@_compiled
def pack(rule, hosts, rank, asked, arrivals, typical, draws):  # type: ignore[no-untyped-def]
    """Place tasks one after the other, for good; return the host of each, -1 where none had room.

    - `asked`: a row for each different task; `arrivals` are numbers of rows.
    - `draws`: two random numbers below 1 for each arrival, where the rule needs them.

    A score stands until its host changes, so each arrival scores anew only the hosts that changed since the last task
    of its row.
    """
    cpu, memory, kind, free = hosts
    count = len(rank)
    version = np.ones(count, np.int64)
    seen = np.zeros((len(asked), count), np.int64)
    scores = np.zeros((len(asked), count), np.int64)
    devices = np.zeros((len(asked), count), np.int64)
    placed = np.full(len(arrivals), -1, np.int64)
    for arrival in range(len(arrivals)):
        a = arrivals[arrival]
        best, chosen, able = NO_FIT, -1, 0
        for i in range(count):
            h = rank[i]
            if seen[a, h] != version[h]:
                seen[a, h] = version[h]
                scores[a, h], devices[a, h] = score(
                    rule, cpu[h], memory[h], kind[h], free[h],
                    asked[a, 0], asked[a, 1], asked[a, 2], asked[a, 3], asked[a, 4], typical,
                )  # fmt: skip
            if scores[a, h] > best:
                best, chosen = scores[a, h], h
            if scores[a, h] > NO_FIT:
                able += 1
        if chosen < 0:
            continue
        device = devices[a, chosen]
        if rule == RANDOM:
            left = int(draws[arrival, 0] * able)
            for i in range(count):
                h = rank[i]
                if scores[a, h] > NO_FIT:
                    if left == 0:
                        chosen = h
                        break
                    left -= 1
            device = -1
            if asked[a, 3] == 1 and asked[a, 4] < MILLI:
                wide = 0
                for g in range(free.shape[1]):
                    wide += free[chosen, g] >= asked[a, 4]
                left = int(draws[arrival, 1] * wide)
                for g in range(free.shape[1]):
                    if free[chosen, g] >= asked[a, 4]:
                        if left == 0:
                            device = g
                            break
                        left -= 1
        place(cpu, free, memory, chosen, device, asked[a, 0], asked[a, 1], asked[a, 3], asked[a, 4])
        version[chosen] += 1
        placed[arrival] = chosen
    return placed
