"""How large the blocks of a pipeline should be, found while it runs, as in Blink."""

from __future__ import annotations

from collections.abc import Callable


def tune_blocks(seconds_of: Callable[[int], float], first: int = 64, least: int = 1) -> int:
    """Return how many blocks are fastest, by trying as the training goes on.

    Blocks double in size as long as that is faster; then their number grows by one at a time, again as long as that is
    faster.

    - `seconds_of`: the time of an operation with so many blocks.
    - `first`: the number to begin with.
    - `least`: the smallest number to try.
    """
    blocks, best = first, seconds_of(first)
    while blocks // 2 >= least and (halved := seconds_of(blocks // 2)) < best:
        blocks, best = blocks // 2, halved
    while (more := seconds_of(blocks + 1)) < best:
        blocks, best = blocks + 1, more
    return blocks
