"""The time of one iteration in closed form: messages are sent while backward runs, and the next forward waits for them.

All workers send the same messages in the same order, so the network serves them in order and no event queue is needed:
a message ends its whole transfer time after it was sent, and its share of the network's time after the message before
it. Where computing and communication share processors, communication progresses at a slower pace while computing lasts;
so its progress has a clock of its own, which runs at that pace. Encoding happens during backward, decoding when a
message has been waited for, as in the runtime.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from laconic.cost.collectives import TransferTimes, Vector


@dataclass(frozen=True)
class Traffic:
    """An iteration's messages, in order: after how much of backward each may be sent, what encoding and decoding take,
    and its rounds, of which the first is sent at once and the others after backward.

    `gates` are the messages that each layer of the next forward pass waits for (by number, in the order of layers);
    without them the first layer waits for all. With a `second_order` the second round begins when the first has ended
    for all messages, as an all-gather after a reduce-scatter.
    """

    ready_seconds: Vector
    encode_seconds: Vector
    decode_seconds: Vector
    rounds: Sequence[TransferTimes]
    gates: Sequence[tuple[int, Sequence[int]]] = ()  # (layer, messages)
    second_order: Sequence[int] | None = None  # the order of the all-gathers, after all reduce-scatters
    flowing: bool = False  # later rounds start without the worker, as a pull follows a push


@dataclass(frozen=True)
class Iterated:
    """The length of an iteration, and when each message was sent and had arrived, from the start of backward."""

    seconds: float
    leaves: Vector
    arrives: Vector


def iterate(
    backward_seconds: float, forward: Vector, step_seconds: float, traffic: Traffic, lanes: int = 2
) -> Iterated:
    """Return the times of the iteration that repeats, from a start of backward to the next one."""
    encode = traffic.encode_seconds
    launch = np.maximum.accumulate(traffic.ready_seconds) + np.cumsum(encode) if len(encode) else encode
    computed = backward_seconds + float(encode.sum())
    first = traffic.rounds[0] if traffic.rounds else TransferTimes.zero(0)
    clock = _OverlapClock(computed, first.pace)
    arrived = _end_times(clock.progress_at(launch), first, lanes)
    for transfers in traffic.rounds[1:]:
        if traffic.flowing:
            arrived = _end_times(arrived, transfers, lanes)
        elif traffic.second_order is not None:
            order = np.asarray(traffic.second_order)
            first_over = max(clock.progress, float(arrived.max(initial=0.0)))
            arrived = np.empty_like(arrived)
            arrived[order] = _end_times(np.full(len(order), first_over), transfers.select(order), lanes)
        else:  # the worker waits for each message, and then sends its next round
            arrived = _end_times(np.maximum.accumulate(np.maximum(arrived, clock.progress)), transfers, lanes)
    if traffic.gates:
        waited: set[int] = set()
        layer = 0
        for number, messages in traffic.gates:
            clock.compute(float(forward[layer:number].sum()))
            layer = number
            clock.wait(max((float(arrived[k]) for k in messages), default=0.0))
            fresh = [k for k in messages if k not in waited]
            waited.update(fresh)
            clock.compute(float(traffic.decode_seconds[fresh].sum()) if fresh else 0.0)
        clock.compute(float(forward[layer:].sum()) + step_seconds)
    else:
        if traffic.decode_seconds.any():
            for at, seconds in zip(arrived.tolist(), traffic.decode_seconds.tolist(), strict=True):
                clock.wait(at)
                clock.compute(seconds)
        else:
            clock.wait(float(arrived.max(initial=0.0)))
        clock.compute(float(forward.sum()) + step_seconds)
    return Iterated(clock.now, launch, clock.times_at(arrived))


def _end_times(sent: Vector, transfers: TransferTimes, lanes: int) -> Vector:
    """Return when each message ends: its whole time after it was sent, and its share after the one before it."""
    share = np.maximum(transfers.shared_seconds, transfers.alone_seconds / lanes)
    shares = np.cumsum(share)
    ends: Vector = np.maximum.accumulate(sent + transfers.alone_seconds - shares) + shares
    return ends


class _OverlapClock:
    """Time, and the progress of communication: it runs as fast as time while nothing computes, at `pace` otherwise."""

    def __init__(self, computed: float, pace: float) -> None:
        self._pace = pace
        self.now, self.progress = computed, pace * computed
        self._marks = [(0.0, 0.0), (self.now, self.progress)]

    def progress_at(self, seconds: Vector) -> Vector:
        """Return the progress of communication at these times of backward."""
        return self._pace * seconds

    def wait(self, progress: float) -> None:
        """Wait, without computing, until communication has progressed so far."""
        if progress > self.progress:
            self.now += progress - self.progress
            self.progress = progress
            self._marks.append((self.now, self.progress))

    def compute(self, seconds: float) -> None:
        """Compute for so many seconds, beside which communication progresses at its slower pace."""
        if seconds:
            self.now += seconds
            self.progress += self._pace * seconds
            self._marks.append((self.now, self.progress))

    def times_at(self, progress: Vector) -> Vector:
        """Return when communication had progressed so far."""
        times, progress_marks = zip(*self._marks, strict=True)
        reached: Vector = np.interp(progress, progress_marks, times)
        return reached
