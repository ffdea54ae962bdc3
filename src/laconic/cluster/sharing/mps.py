"""Multi-Process Service: processes whose kernels run on one GPU at the same time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from laconic.cluster.sharing.throughput import Throughput
from laconic.errors import ClusterError
from laconic.registry import technique

MOST_CLIENTS = 48  # of a GPU from Volta on


@dataclass(frozen=True)
class Client:
    """A process that shares a GPU.

    - `throughput`: its rate alone on a share of the GPU.
    - `utilisation`: the share of the multiprocessors that it keeps busy alone.
    - `bandwidth`: its pressure on the GPU's memory bandwidth.
    - `sensitivity`: how much the others' pressure slows it.
    - `share`: the cap on its multiprocessors, set when it starts; those of all may sum to more than 1.
    - `memory_bytes`: its footprint.
    """

    throughput: Throughput
    utilisation: float
    bandwidth: float = 0.0
    sensitivity: float = 0.0
    share: float = 1.0
    memory_bytes: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1 or not 0 <= self.utilisation <= 1:
            raise ClusterError("a client's share is above 0 and at most 1, and its utilisation between 0 and 1")
        if self.bandwidth < 0 or self.sensitivity < 0:
            raise ClusterError("a client's pressure on the memory bandwidth and its sensitivity are not below 0")


def admits(clients: Sequence[Client], new: Client, memory_bytes: float, most: int = MOST_CLIENTS) -> bool:
    """Tell whether one more client can start: memory is not partitioned, so all footprints together must fit.

    - `clients`: those that are there.
    - `new`: the one that would start.
    - `memory_bytes`: of the GPU.
    - `most`: how many clients the GPU takes.
    """
    return len(clients) < most and sum(c.memory_bytes for c in (*clients, new)) <= memory_bytes


def effective_shares(clients: Sequence[Client]) -> list[float]:
    """Return the shares of the multiprocessors that clients get: what each asks for, or all scaled alike where that is
    more than there is.

    - `clients`: those on the GPU.
    """
    asked = [min(client.share, client.utilisation) for client in clients]
    return [share / max(sum(asked), 1.0) for share in asked]


@technique(
    "mps",
    axis="cluster",
    paper="NVIDIA, Multi-Process Service, 2013",
    evidence="modelled",
    holds="Proportional scaling of compute and a slowdown by the others' bandwidth; fitted, it predicts pairs.",
    why_no_word="It is a model of how a GPU is shared, on which jobs of any policy run.",
)
def rates(clients: Sequence[Client]) -> list[float]:
    """Return how fast each client runs: as alone under its cap while the multiprocessors suffice for all, in proportion
    less where they do not, and less again by what the others take of the memory bandwidth.

    The hardware's arbitration is not documented: scaling all alike is a model of it. A cap changes only when a client
    is restarted, and a fatal fault of one takes all down.

    - `clients`: those on the GPU.
    """
    asked = sum(min(client.share, client.utilisation) for client in clients)
    pressure = sum(client.bandwidth for client in clients)
    return [
        client.throughput.rate(client.share)
        / max(asked, 1.0)
        / (1 + client.sensitivity * max(pressure - client.bandwidth, 0.0))
        for client in clients
    ]


class Pair(NamedTuple):
    """Two kinds of jobs on one GPU, and the speed of each relative to its speed alone."""

    first: str
    second: str
    first_speed: float
    second_speed: float


def fit(pairs: Sequence[Pair], damping: float = 0.1) -> Mapping[str, Client]:
    """Return the clients, by kind, whose speeds together come closest to measured ones, in squares.

    A kind's speed alone is 1. What the pairs leave open is drawn to the middle: kinds that were measured seldom are not
    believed to be extreme.

    - `pairs`: measured speeds.
    - `damping`: how strongly.
    """
    from scipy.optimize import least_squares

    kinds = sorted({kind for pair in pairs for kind in pair[:2]})
    number = {kind: i for i, kind in enumerate(kinds)}
    who = np.array([number[p.first] for p in pairs] + [number[p.second] for p in pairs])
    other = np.array([number[p.second] for p in pairs] + [number[p.first] for p in pairs])
    measured = np.array([p.first_speed for p in pairs] + [p.second_speed for p in pairs])
    count = len(kinds)
    middle = np.concatenate([np.full(count, 0.7), np.full(2 * count, 0.2)])

    at = np.arange(len(who))

    def speeds(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        asked = np.maximum(x[who] + x[other], 1.0)
        slower = 1 + x[2 * count + who] * x[count + other]
        return 1 / (asked * slower), asked, slower

    def misses(x: np.ndarray) -> np.ndarray:
        return np.concatenate([speeds(x)[0] - measured, damping * (x - middle)])

    def slopes(x: np.ndarray) -> np.ndarray:
        speed, asked, slower = speeds(x)
        found = np.zeros((len(who), 3 * count))
        crowded = -speed / asked * (asked > 1)
        np.add.at(found, (at, who), crowded)
        np.add.at(found, (at, other), crowded)
        np.add.at(found, (at, count + other), -speed / slower * x[2 * count + who])
        np.add.at(found, (at, 2 * count + who), -speed / slower * x[count + other])
        return np.vstack([found, damping * np.eye(3 * count)])

    upper = np.concatenate([np.ones(count), np.full(2 * count, 3.0)])
    found = least_squares(misses, middle, slopes, bounds=(np.zeros(3 * count), upper), ftol=1e-4).x
    utilisation, bandwidth, sensitivity = found.reshape(3, count).tolist()
    return {
        kind: Client(Throughput.knee(max(utilisation[i], 1e-3)), utilisation[i], bandwidth[i], sensitivity[i])
        for kind, i in number.items()
    }
