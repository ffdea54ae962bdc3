"""Where fused trials run: bubbles of pipelines, small idle GPUs, and GPUs of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Place(NamedTuple):
    """A place at which trials can run.

    - `bytes`: memory for them.
    - `speed`: how fast, compared with a GPU of their own; for a bubble, also by the share of the time that it is open.
    """

    bytes: float
    speed: float


def allocate(needs: Sequence[float], places: Sequence[Place]) -> list[int | None]:
    """Return the place of each group of fused trials: those that need most memory choose first, and each takes the
    fastest of the places that it fits into, so that small ones are left to bubbles. None where nothing is left.

    - `needs`: bytes of each group; those with a larger fusion factor need more.
    - `places`: each for one group.
    """
    found: list[int | None] = [None] * len(needs)
    left = set(range(len(places)))
    for group in sorted(range(len(needs)), key=lambda i: (-needs[i], i)):
        fitting = [place for place in left if places[place].bytes >= needs[group]]
        if fitting:
            found[group] = max(fitting, key=lambda place: (places[place].speed, -place))
            left.discard(found[group])  # type: ignore[arg-type]
    return found
