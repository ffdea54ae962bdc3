"""PipeSwitch: a model's layers reach the GPU in groups while those that are there already compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from laconic.errors import ClusterError
from laconic.registry import technique


@dataclass(frozen=True)
class Transfer:
    """The way from the host's pinned memory to the GPU.

    - `bytes_per_second`: of a long copy.
    - `call_seconds`: what each copy costs beside its bytes.
    """

    bytes_per_second: float
    call_seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.bytes_per_second <= 0 or self.call_seconds < 0:
            raise ClusterError("a transfer has a bandwidth above 0, and a call costs no less than nothing")


@dataclass(frozen=True)
class Grouping:
    """Consecutive groups of layers.

    - `ends`: for each group, the number of layers up to its end.
    - `seconds`: from the beginning of the switch to the end of the first task's forward pass.
    """

    ends: tuple[int, ...]
    seconds: float


def finish(nbytes: Sequence[float], compute: Sequence[float], ends: Sequence[int], way: Transfer) -> float:
    """Return when the last group has computed, where each group computes as soon as it has come and the one before is
    done.

    - `nbytes`: of each layer's parameters.
    - `compute`: the seconds of each layer's forward pass.
    - `ends`: the groups, by the numbers of layers up to their ends.
    - `way`: how they come.
    """
    sent = done = 0.0
    begin = 0
    for end in ends:
        sent += way.call_seconds + sum(nbytes[begin:end]) / way.bytes_per_second
        done = max(sent, done) + sum(compute[begin:end])
        begin = end
    return done


@technique(
    "pipeswitch",
    axis="cluster",
    paper="Bai, Zhang, Zhou, Jin, OSDI 2020",
    why_no_word="It plans how a GPU changes from one job to another, whichever policy asks for that.",
)
def group(nbytes: Sequence[float], compute: Sequence[float], way: Transfer) -> Grouping:
    """Return the groups of layers with which the first forward pass ends soonest, by branch and bound.

    Many groups overlap well and pay for many calls; few do the opposite. Three rules prune: a group is not ended while
    one more layer would still come before the groups ahead of it have computed, since the larger group saves a call and
    delays nothing; a beginning is dropped when even one copy of all the rest, or its computing without a gap, would end
    no sooner than the best so far; and when another beginning of as many layers was sent and has computed as soon. No
    GPU's memory is allocated in a switch, and standby processes have contexts already: only transfers and computing
    remain.

    - `nbytes`: of each layer's parameters.
    - `compute`: the seconds of each layer's forward pass.
    - `way`: how they come.
    """
    count = len(nbytes)
    if not count or len(compute) != count:
        raise ClusterError("a model has at least one layer, and every layer a size and a time")
    copied = np.concatenate([[0.0], np.cumsum(nbytes) / way.bytes_per_second])
    worked = np.concatenate([[0.0], np.cumsum(compute)])
    best = Grouping((count,), float(way.call_seconds + copied[count] + worked[count]))
    last = worked[count] - worked[count - 1]  # which cannot begin before everything has come
    # beginnings by the layers in them: when these were sent and computed, and the ends of their groups
    ahead: list[list[tuple[float, float, tuple[int, ...]]]] = [[] for _ in range(count + 1)]
    ahead[0] = [(0.0, 0.0, ())]
    for begin in range(count):
        computed = np.inf
        for sent, done, ends in sorted(ahead[begin]):
            rest = way.call_seconds + copied[count] - copied[begin]
            bound = max(sent + rest + last, done + worked[count] - worked[begin])
            if done >= computed or bound >= best.seconds:
                continue  # another has sent as much sooner and is no later, or it cannot become the best
            computed = done
            first = begin + 1
            while first < count and sent + way.call_seconds + copied[first + 1] - copied[begin] <= done:
                first += 1  # it is hidden all the same
            came = sent + way.call_seconds + copied[first:] - copied[begin]
            ended = np.maximum(came, done) + worked[first:] - worked[begin]
            whole = came + way.call_seconds * (np.arange(first, count + 1) < count) + copied[count] - copied[first:]
            hopeful = np.maximum(whole + last, ended + worked[count] - worked[first:]) < best.seconds
            if ended[-1] < best.seconds:
                best = Grouping((*ends, count), float(ended[-1]))
            for i in np.flatnonzero(hopeful[:-1]).tolist():
                ahead[first + i].append((float(came[i]), float(ended[i]), (*ends, first + i)))
        ahead[begin] = []
    return best
