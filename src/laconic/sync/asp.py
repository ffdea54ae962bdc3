"""Asynchronous SGD over a parameter server, where no worker waits for another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from laconic.architecture.server import read_snapshots as tickets
from laconic.architecture.server.actor import Pull, Push
from laconic.architecture.server.store import Store
from laconic.errors import StrategyError
from laconic.registry import knob, technique
from laconic.sync.base import State
from laconic.sync.contexts import ServerContext
from laconic.sync.server import PushPull
from laconic.theory import delay_rates as rates
from laconic.theory.delayed.momentum import first_guess
from laconic.values.cadence import Cadence
from laconic.worker import Field

STALENESS = ("ignore", "inverse", "capped", "drop", "adaptive", "picky")
"""What may become of a stale gradient's rate."""


@technique("asp", aliases=["async", "asynchronous"], paper="Agarwal and Duchi, NIPS 2011", worth_trying=["asp / none"])
@dataclass(frozen=True)
class ASP(PushPull):
    """Pull, compute, push; the server steps its optimizer on every push as it arrives.

    Each push is the gradient of one of N workers, so that it steps with 1/N of the learning rate, which makes N of them
    the step of `bsp`; `share=1` steps with all of it. A push's staleness tau is the number of updates between its pull
    and its arrival, and `staleness` says which part of that rate is used:

    - `ignore`: all of it. `inverse`: 1/(1+tau) of it.
    - `capped` (Koloskova et al., 2022): all of it up to tau = `limit`, `limit`/tau beyond, or 1/(4 L tau) where the
      `smoothness` L is known; `limit=2N` is Mishchenko et al., 2022. `drop`: nothing beyond `limit`.
    - `adaptive` (Aviv et al., 2021): less, the larger the delays so far; nothing need be known beforehand.
    - `picky` (Cohen et al., 2021): all, if the model has moved by less than `radius` since the pull, else nothing.

    `delay` bounds how many pushes a worker may be ahead of the slowest: 0 makes every step a barrier. `momentum=auto`
    subtracts from the optimizer's momentum what asynchrony adds, 1 - 1/N (Mitliagkas et al., 2016).
    """

    staleness: str = knob(
        "ignore",
        choices=STALENESS,
        doc="how staleness reduces a gradient's rate",
    )
    share: float | None = knob(None, above=0, doc="share of the rate for one push; default 1/N")
    limit: int | None = knob(None, low=1, doc="staleness from which capped and drop act; default N")
    smoothness: float | None = knob(
        None, above=0, doc="L of the objective, for capped; default: the factor is limit/tau"
    )
    radius: float = knob(1.0, above=0, doc="distance from which picky drops a gradient")
    delay: int | None = knob(None, low=0, doc="pushes by which a worker may be ahead; none: nobody waits")
    momentum: str = knob(
        "keep", choices=("keep", "auto"), doc="auto: the optimizer's momentum less what asynchrony adds"
    )
    least_momentum: float = knob(-0.9, above=-1, below=1, doc="the least momentum that auto sets")

    @property
    def cadence(self) -> Cadence | None:
        return Cadence(pace="own" if self.delay is None else "bounded")

    # ------------------------------------------------------------------------------------------ server

    def receive(self, store: Store, push: Push) -> Mapping[str, Field]:
        tau = max(store.version - push.version, 0)
        share = 1 / store.size if self.share is None else self.share
        factor = self._factor(store, push, tau, share)
        if factor > 0:
            store.apply(push.tensors, push.worker, factor * share)
        return {"staleness": tau, "factor": factor}

    def _factor(self, store: Store, push: Push, tau: int, share: float) -> float:
        limit = store.size if self.limit is None else self.limit
        if self.staleness == "inverse":
            return rates.damped(tau)
        if self.staleness in ("capped", "drop"):
            known = self.smoothness is not None and store.rate(push.worker) > 0
            rate = store.rate(push.worker) * share if known else 1.0
            smoothness = self.smoothness if known and self.smoothness else 1 / (4 * limit)  # then it is limit/tau
            return rates.koloskova(tau, limit, rate, smoothness, drop=self.staleness == "drop")
        if self.staleness == "adaptive":
            store.memory["updates"] = updates = store.memory.get("updates", 0) + 1
            store.memory["delays"] = delays = store.memory.get("delays", 0) + tau
            return rates.aviv(tau, updates, delays)
        if self.staleness == "picky":
            return float(self._distance(store, push) <= self.radius)
        return 1.0

    def _distance(self, store: Store, push: Push) -> float:
        """Return how far the values have moved since this worker pulled them; infinity where that is unknown."""
        tickets.issue_first(store, store.flat_copy)
        read = tickets.redeem(store, push.worker, push.version)
        if read is None:
            return 0.0 if push.version == store.version else float("inf")
        moved = [torch.linalg.vector_norm(now - then) for now, then in zip(store.flats.values(), read, strict=True)]
        return float(torch.linalg.vector_norm(torch.stack(moved)))

    def readable(self, store: Store, pull: Pull) -> bool:
        return self.delay is None or store.slowest >= pull.clock - self.delay

    def view(self, store: Store, pull: Pull) -> tuple[Mapping[str, Field], Sequence[Tensor] | None]:
        if self.staleness == "picky":
            tickets.issue(store, pull.worker, store.flat_copy)
        return {}, None

    def lost(self, store: Store, worker: int) -> None:
        tickets.forget(store, worker)

    # ------------------------------------------------------------------------------------------ worker

    def init(self, context: ServerContext) -> State:
        if self.staleness == "picky" and len(context.server.shards) > 1:
            raise StrategyError("picky measures how far the whole model has moved, so one server must hold it: ps(1)")
        if self.momentum == "auto" and not all("momentum" in group for group in context.optimizer.param_groups):
            name = type(context.optimizer).__name__
            raise StrategyError(f"momentum=auto sets the optimizer's momentum, and {name} has none: use SGD, or keep")
        return {}

    def settings(self, context: ServerContext) -> dict[str, Field]:
        if self.momentum == "keep":
            return {}
        return {
            f"set.{i}.momentum": first_guess(group["momentum"], context.group.size, self.least_momentum)
            for i, group in enumerate(context.optimizer.param_groups)
        }
