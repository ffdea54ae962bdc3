"""Whether the bytes by which time is predicted are those that the ledger counted in trainings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from laconic.frontier.clock import Clock
from laconic.frontier.map import Contender
from laconic.frontier.shapes import Shape

TOLERANCE = 0.1
_RATE = 1e9  # of any network: bytes do not depend on it


def disagreements(contenders: Sequence[Contender], workers: int) -> Iterator[str]:
    """Yield a sentence for each method whose predicted bytes for a parameter differ from the counted ones."""
    clocks: dict[int, Clock] = {}
    for one in contenders:
        counted = one.traffic.bytes_per_step / one.traffic.parameters
        clock = clocks.setdefault(one.traffic.parameters, Clock(Shape(one.traffic.parameters, workers)))
        step = clock.step(one.method.strategy, one.traffic, _RATE)
        predicted = step.sent_bytes / clock.shape.parameters
        if step.priced and counted and abs(predicted / counted - 1) > TOLERANCE:
            yield (
                f"`{one.name}` was counted to send {counted:.3g} bytes a parameter and step, and is priced with "
                f"{predicted:.3g}"
            )
