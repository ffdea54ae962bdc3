"""One iteration in closed form: messages that leave as backward goes on, and what waits for them.

All workers launch the same messages in the same order, so the network serves them in turn and no event queue is needed:
a message ends a full trip after it left, and its own share of the network after the one before it. Where computing and
talking share processors, talking goes on at a slower pace while computing lasts; so its progress has a clock of its
own, which runs at that pace. Encoding happens in backward, decoding when a message was waited for, as in the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from laconic.cost.collectives import TransferTimes, Vector


@dataclass(frozen=True)
class Traffic:
    """An iteration's messages, in order: after how much of backward each may leave, what encoding and decoding take,
    and its rounds, of which the first leaves at once and the others after backward.

    `gates` say which messages each layer of the next forward pass waits for (by number, in the order of layers);
    without them the first layer waits for all. `halves`: the second round goes the other way round and leaves when the
    first is over, as an all-gather after a reduce-scatter.
    """

    ready_seconds: Vector
    encode_seconds: Vector
    decode_seconds: Vector
    rounds: Sequence[TransferTimes]
    gates: Sequence[tuple[int, Sequence[int]]] = ()  # (layer, messages)
    second_order: Sequence[int] | None = None  # of halves: which all-gather goes first
    flowing: bool = False  # later rounds follow by themselves, as a pull follows a push


@dataclass(frozen=True)
class Iterated:
    """A step's length, and when each message was on its way from the start of backward."""

    seconds: float
    leaves: Vector
    arrives: Vector


def iterate(
    backward_seconds: float, forward: Vector, step_seconds: float, traffic: Traffic, lanes: int = 2
) -> Iterated:
    """The step that repeats, from a start of backward to the next one."""
    codes = traffic.encode_seconds
    launch = np.maximum.accumulate(traffic.ready_seconds) + np.cumsum(codes) if len(codes) else codes
    computed = backward_seconds + float(codes.sum())
    first = traffic.rounds[0] if traffic.rounds else TransferTimes.nothing(0)
    clock = _Clock(computed, first.pace)
    arrived = _served(clock.talked_at(launch), first, lanes)
    for carriage in traffic.rounds[1:]:
        if traffic.flowing:
            arrived = _served(arrived, carriage, lanes)
        elif traffic.second_order is not None:
            order = np.asarray(traffic.second_order)
            over = max(clock.talked, float(arrived.max(initial=0.0)))
            arrived = np.empty_like(arrived)
            arrived[order] = _served(np.full(len(order), over), carriage.taking(order), lanes)
        else:  # whoever drives the messages waits for each, and sends its next word
            arrived = _served(np.maximum.accumulate(np.maximum(arrived, clock.talked)), carriage, lanes)
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
    return Iterated(clock.now, launch, clock.moments(arrived))


def _served(handed: Vector, carriage: TransferTimes, lanes: int) -> Vector:
    """When each ends: a whole trip after it was handed over, and its share after the one before it."""
    share = np.maximum(carriage.shared_seconds, carriage.alone_seconds / lanes)
    taken = np.cumsum(share)
    ends: Vector = np.maximum.accumulate(handed + carriage.alone_seconds - taken) + taken
    return ends


class _Clock:
    """Time, and how far talking has come: as far as time while nobody computes, less far while everybody does."""

    def __init__(self, computed: float, pace: float) -> None:
        self._first, self._pace = computed, pace
        self.now, self.talked = computed, pace * computed
        self._marks = [(0.0, 0.0), (self.now, self.talked)]

    def talked_at(self, moments: Vector) -> Vector:
        """How far talking has come at moments of backward."""
        return self._pace * moments

    def wait(self, talked: float) -> None:
        if talked > self.talked:
            self.now += talked - self.talked
            self.talked = talked
            self._marks.append((self.now, self.talked))

    def compute(self, seconds: float) -> None:
        if seconds:
            self.now += seconds
            self.talked += self._pace * seconds
            self._marks.append((self.now, self.talked))

    def moments(self, talked: Vector) -> Vector:
        """When talking had come so far."""
        times, progress = zip(*self._marks, strict=True)
        found: Vector = np.interp(talked, progress, times)
        return found
