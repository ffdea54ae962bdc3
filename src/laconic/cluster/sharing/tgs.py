"""Transparent GPU sharing: an opportunistic job takes what a production job leaves, found by feedback alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

from laconic.cluster.sharing.mps import Client, rates
from laconic.cluster.sharing.throughput import Throughput
from laconic.errors import ClusterError
from laconic.registry import technique


@dataclass(frozen=True)
class RateControl:
    """What the controller knows at one moment: nothing about the jobs but how many kernels they launch.

    - `allowed`: the rate at which the opportunistic job may launch, as a share of the GPU.
    - `reference`: the production job's rate while nobody disturbs it: the largest seen.
    - `below`: for how many intervals in a row production has been below it.
    - `probing`: for how many intervals the opportunistic job is still kept out, so that the reference is measured anew.
    """

    allowed: float = 0.0
    reference: float = 0.0
    below: int = 0
    probing: int = 0


@technique(
    "tgs",
    axis="cluster",
    paper="Wu, Zhang, Bai, Liu, Jin, NSDI 2023",
    why_no_word="It controls the rates of two jobs that any policy has put on one GPU.",
)
def control(
    known: RateControl,
    production_rate: float,
    *,
    increase: float = 0.01,
    decrease: float = 0.7,
    tolerance: float = 0.01,
    patience: int = 20,
    probe: int = 3,
) -> RateControl:
    """Return what an interval's measurement changes: the opportunistic job's rate rises by a step while production is
    at its reference, and falls to a part when production has fallen.

    When production stays below for long although the other has almost stopped, its behaviour has changed: the
    other is kept out for some intervals and the reference is measured anew. The constants are this library's.

    - `known`: what the last interval left.
    - `production_rate`: kernel blocks that the production job launched in the interval.
    - `increase`: the step, as a share of the GPU.
    - `decrease`: the part.
    - `tolerance`: how far below the reference counts as undisturbed.
    - `patience`: intervals below the reference after which it is measured anew.
    - `probe`: intervals which that takes.
    """
    if not 0 < decrease < 1 or increase <= 0:
        raise ClusterError("rates rise by a step above 0 and fall to a part between 0 and 1")
    if known.probing:
        return replace(known, reference=max(known.reference, production_rate), probing=known.probing - 1)
    reference = max(known.reference, production_rate)
    if production_rate >= (1 - tolerance) * reference:
        return RateControl(min(known.allowed + increase, 1.0), reference)
    if known.below + 1 >= patience:
        return RateControl(0.0, 0.0, 0, probe)
    return RateControl(known.allowed * decrease, reference, known.below + 1)


@dataclass(frozen=True)
class Tenant:
    """A job that shares a GPU with another.

    - `demand`: the share of the GPU that it keeps busy alone.
    - `memory_bytes`: its footprint.
    """

    demand: float
    memory_bytes: float = 0.0


@dataclass(frozen=True)
class SharedGpu:
    """A GPU on which kernels queue as they come, and whose memory may be over-committed by pages on the host.

    - `memory_bytes`: of the GPU.
    - `paging`: how much slower a job is whose pages are all on the host.
    """

    memory_bytes: float
    paging: float = 20.0

    def rates(self, production: Tenant, opportunistic: Tenant, allowed: float) -> tuple[float, float]:
        """Return the rates of both, as shares of the GPU, where the opportunistic job may launch so much: what is
        launched beyond the capacity slows both alike, as kernels wait in one queue. Pages of production stay on the
        GPU, so only the other's are evicted.

        - `production`, `opportunistic`: the jobs.
        - `allowed`: the rate that the controller lets through.
        """
        asked = min(allowed, opportunistic.demand)
        queue = max(production.demand + asked, 1.0)
        room = max(self.memory_bytes - production.memory_bytes, 0.0)
        evicted = 1 - min(room / opportunistic.memory_bytes, 1.0) if opportunistic.memory_bytes else 0.0
        return production.demand / queue, asked / queue / (1 + (self.paging - 1) * evicted)

    def unmanaged(self, production: Tenant, opportunistic: Tenant) -> tuple[float, float]:
        """Return the rates where nobody controls who launches and whose pages stay: clients of one service, which
        scales them alike. Over-committed, the pages that were used last are kept; jobs that go through all of their
        memory in each iteration then find none of it.

        - `production`, `opportunistic`: the jobs.
        """
        clients = [Client(Throughput.knee(t.demand, t.demand), t.demand) for t in (production, opportunistic)]
        fits = production.memory_bytes + opportunistic.memory_bytes <= self.memory_bytes
        first, second = (rate if fits else rate / self.paging for rate in rates(clients))
        return first, second
