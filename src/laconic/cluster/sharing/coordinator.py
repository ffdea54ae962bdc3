"""A GPU's coordinator: opportunistic jobs get what a guaranteed job does not miss, found by its mini-batch times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from laconic.cluster.sharing.throughput import Throughput
from laconic.errors import ClusterError


@dataclass(frozen=True)
class Coordination:
    """What is known of a guaranteed job at one moment.

    - `solo`: the seconds of its mini-batches while nobody beside it launches operators; 0: not measured yet.
    - `allowed`: the share of the GPU's operators that others may launch.
    - `step`: the part of what is left to the job by which that is raised next; 0: not begun.
    - `raised`: whether the last step raised it.
    """

    solo: float = 0.0
    allowed: float = 0.0
    step: float = 0.0
    raised: bool = False


def coordinate(
    known: Coordination, batch_seconds: float, tolerance: float = 0.1, noise: float = 1e-4, finest: float = 0.004
) -> Coordination:
    """Return what a control step's measurement changes: while the mini-batches take as long as alone, others may launch
    more, and when they take longer the step is taken back and is half as large from then on.

    A step takes so small a part of what is left to the job that it is never slower than by the tolerance. A job that is
    slower without a step before, or faster than alone, has changed: others stop, and it is measured anew.

    - `known`: what the last control step left.
    - `batch_seconds`: of the guaranteed job's mini-batches since.
    - `tolerance`: by which part they may take longer.
    - `noise`: by which part they may do so without counting as slower.
    - `finest`: the step below which no more is tried; 0: always.
    """
    if not 0 <= noise < tolerance:
        raise ClusterError("noise in mini-batch times is at least 0 and below the tolerance")
    if not known.solo:
        first = tolerance / (1 + tolerance)
        return _raised(Coordination(batch_seconds, 0.0, first))
    slower = batch_seconds / known.solo - 1
    if known.raised and slower > noise:
        left = (1 - known.allowed) / (1 - known.step)
        return Coordination(known.solo, max(1 - left, 0.0), known.step / 2)
    if abs(slower) > 2 * noise:
        return Coordination()
    return _raised(known) if known.step > finest else replace(known, raised=False)


def _raised(known: Coordination) -> Coordination:
    return replace(known, allowed=1 - (1 - known.allowed) * (1 - known.step), raised=True)


def divide(allowed: float, profiles: Sequence[Throughput]) -> list[float]:
    """Return the shares of opportunistic jobs by which their summed progress, each over that alone, is largest: what
    progresses most by the next bit of the GPU gets it. Nobody gets more than it can use.

    - `allowed`: the share for all together.
    - `profiles`: how fast each is on a share.
    """
    parts: list[tuple[float, int, int, float]] = []
    for job, profile in enumerate(profiles):
        shares, rates = (0.0, *profile.shares), (0.0, *profile.rates)
        for i in range(1, len(shares)):
            gain = (rates[i] - rates[i - 1]) / (shares[i] - shares[i - 1]) / rates[-1]
            if gain > 0:
                parts.append((-gain, job, i, shares[i] - shares[i - 1]))
    found = [0.0] * len(profiles)
    for _, job, _, width in sorted(parts):
        given = min(width, allowed)
        found[job] += given
        allowed -= given
    return found


@dataclass(frozen=True)
class Footprint:
    """What a job's tensors need, and where they are under a limit.

    - `needed`: the bytes of its tensors.
    - `cached`: what its allocator would like to keep beside them for reuse.
    - `on_gpu`, `kept`, `on_host`: the tensors on the GPU, the cache there, and the tensors in the host's memory.
    """

    needed: float
    cached: float = 0.0
    on_gpu: float = 0.0
    kept: float = 0.0
    on_host: float = 0.0

    def within(self, limit: float) -> Footprint:
        """Return it under a limit: caches are given back first, then tensors go to the host; both come back in the
        opposite order when the limit grows.

        - `limit`: in bytes.
        """
        on_gpu = min(self.needed, max(limit, 0.0))
        return replace(
            self, on_gpu=on_gpu, kept=min(self.cached, max(limit - self.needed, 0.0)), on_host=self.needed - on_gpu
        )

    def speed(self, paging: float) -> float:
        """Return the speed as a share of that with all tensors on the GPU.

        - `paging`: how much slower a job is whose tensors are all on the host.
        """
        away = self.on_host / self.needed if self.needed else 0.0
        return 1 / (1 + (paging - 1) * away)
