"""SWARM's stochastic wiring: which peer of a stage gets the next call."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

from laconic.errors import LaconicError
from laconic.registry import technique

BACKWARD_TASKS = 2.5
"""A backward call counts as so many forward calls."""
_MEMORY = 0.9
"""The weight of what was measured before in the moving average of a peer's speed."""


@dataclass(frozen=True)
class Peer:
    """A peer of a stage, as a trainer sees it.

    - `tasks_per_second`: a moving average of what was measured.
    - `busy_seconds`: how long it is expected to be busy with all of this trainer's calls so far.
    - `banned_until_seconds`: it gets no call before.
    """

    tasks_per_second: float
    busy_seconds: float = 0.0
    banned_until_seconds: float = 0.0


@dataclass(frozen=True)
class Wiring:
    """A trainer's view of the peers of one stage.

    - `peers`: by number.
    - `calls`: made so far, by which ties are broken at random and repeatably.
    - `seed`: of these draws.
    """

    peers: Mapping[int, Peer]
    calls: int = 0
    seed: int = 0


@technique(
    "swarm",
    axis="parallel",
    paper="Ryabinin et al., ICML 2023",
    why_no_word="It decides which peer serves a call; what peers of a stage exchange is said by any sentence.",
)
def choose(wiring: Wiring, tasks: float, now_seconds: float) -> tuple[int, Wiring]:
    """Return the peer for the next call, and the wiring after it: interleaved weighted round robin.

    It is the peer that is expected to have been busy for the shortest time, one of them at random where there are
    several; the call adds the time that it takes at that peer's speed.

    - `wiring`: before the call.
    - `tasks`: 1 for a forward call, `BACKWARD_TASKS` for a backward call.
    - `now_seconds`: by which bans expire.
    """
    draw = random.Random(wiring.seed * 1_000_003 + wiring.calls)
    order = {number: draw.random() for number in sorted(wiring.peers)}
    able = [number for number, peer in wiring.peers.items() if peer.banned_until_seconds <= now_seconds]
    if not able:
        raise LaconicError("no peer serves this stage: wait until one joins, or move one here from another stage")
    chosen = min(able, key=lambda number: (wiring.peers[number].busy_seconds, order[number]))
    peer = wiring.peers[chosen]
    busier = replace(peer, busy_seconds=peer.busy_seconds + tasks / peer.tasks_per_second)
    return chosen, replace(wiring, peers={**wiring.peers, chosen: busier}, calls=wiring.calls + 1)


def join(wiring: Wiring, number: int, tasks_per_second: float) -> Wiring:
    """Return the wiring with a new peer, which enters at the shortest busy time of those that are there."""
    least = min((peer.busy_seconds for peer in wiring.peers.values()), default=0.0)
    return replace(wiring, peers={**wiring.peers, number: Peer(tasks_per_second, least)})


def leave(wiring: Wiring, number: int) -> Wiring:
    """Return the wiring without a peer whose announcement has expired."""
    return replace(wiring, peers={other: peer for other, peer in wiring.peers.items() if other != number})


def ban(wiring: Wiring, number: int, until_seconds: float) -> Wiring:
    """Return the wiring in which a peer that failed gets no call until its announcement expires."""
    return replace(
        wiring, peers={**wiring.peers, number: replace(wiring.peers[number], banned_until_seconds=until_seconds)}
    )


def measure(wiring: Wiring, number: int, tasks: float, seconds: float) -> Wiring:
    """Return the wiring after a call of so many tasks took so long."""
    peer = wiring.peers[number]
    speed = _MEMORY * peer.tasks_per_second + (1 - _MEMORY) * tasks / max(seconds, 1e-9)
    return replace(wiring, peers={**wiring.peers, number: replace(peer, tasks_per_second=speed)})
