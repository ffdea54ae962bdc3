"""The price of a step, and how prices of steps and exchanges are put together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from laconic.cost.closed_form import Iterated
from laconic.cost.plan_arrays import PlanArrays
from laconic.planner.deployment import Deployment
from laconic.values.cadence import Cadence


@dataclass(frozen=True)
class StepPrice:
    """The price of a step in the steady state, in the mean over steps with and without communication.
    Of phases it is the mean over the run.

    Its time is that of computing, of encoding and decoding with the Python around them, and of communication that
    neither of them hides.
    """

    computing_seconds: float
    coding_seconds: float
    exposed_seconds: float
    sent_bytes: float
    iterated: Iterated | None = None
    plan_arrays: PlanArrays | None = None

    @property
    def seconds(self) -> float:
        return self.computing_seconds + self.coding_seconds + self.exposed_seconds


def behind_steps(
    once: StepPrice, first_seconds: float, shared_seconds: float, cadence: Cadence, deployment: Deployment, lanes: int
) -> StepPrice:
    """Return the price of an exchange whose parts are in flight while workers compute, and share the links.

    What depends on the first messages is sent when these are waited for, behind which nothing is computed. Where an
    exchange is in flight for several periods, as many as the transport has lanes are under way at a time: they leave a
    step apart, so that what occupies the links for longer than that is shared between them.

    - `once`: the price without computing beside it.
    - `first_seconds`: how much of its exposed time are the messages that depend on no other.
    - `shared_seconds`: for how long these occupy what all messages share.
    - `lanes`: how many messages the transport carries at a time.
    """
    step, parts = deployment.own_seconds(cadence.period), cadence.parts
    abreast = max(1, min(cadence.flight // cadence.period, lanes))
    late = parts * max(0.0, first_seconds / parts - cadence.flight * step) / abreast
    interval = cadence.period * step
    together = first_seconds + (abreast - 1) * max(0.0, shared_seconds - interval)
    behind = max(late, max(together / abreast, shared_seconds) - interval)
    return replace(once, exposed_seconds=once.exposed_seconds - first_seconds + behind)


def spread(deployment: Deployment, once: StepPrice, period: int) -> StepPrice:
    """Return the mean price of a step where an exchange follows computing every `period` steps."""
    return StepPrice(
        deployment.own_seconds(period),
        once.coding_seconds / period,
        once.exposed_seconds / period,
        once.sent_bytes / period,
    )


def and_every(period: int, once: StepPrice, more: StepPrice) -> StepPrice:
    """Return the mean price of a step where every `period`-th costs more."""
    return StepPrice(
        once.computing_seconds + more.computing_seconds / period,
        once.coding_seconds + more.coding_seconds / period,
        once.exposed_seconds + more.exposed_seconds / period,
        once.sent_bytes + more.sent_bytes / period,
    )


def mean(parts: Iterable[tuple[StepPrice, float]]) -> StepPrice:
    """Return the mean price of a step of a run, of prices that hold for shares of its steps."""
    weighed = list(parts)
    if len(weighed) == 1:
        return weighed[0][0]
    return StepPrice(
        sum(share * price.computing_seconds for price, share in weighed),
        sum(share * price.coding_seconds for price, share in weighed),
        sum(share * price.exposed_seconds for price, share in weighed),
        sum(share * price.sent_bytes for price, share in weighed),
    )


def difference(one: StepPrice, other: StepPrice) -> StepPrice:
    """Return how much more one price is than another."""
    return StepPrice(
        one.computing_seconds - other.computing_seconds,
        one.coding_seconds - other.coding_seconds,
        one.exposed_seconds - other.exposed_seconds,
        one.sent_bytes - other.sent_bytes,
    )
