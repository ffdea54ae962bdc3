"""Whose messages go first when one backward pass runs through several distributed models.

A GAN's loss flows through the discriminator into the generator: both send while the same backward runs, and a message
that is incomplete on one rank leaves later there than elsewhere. Ranks must nevertheless start collectives in the same
order, so models take turns: a model sends only when those that backward reached before it have sent everything.
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakKeyDictionary, WeakMethod, ref

from laconic.worker import Worker

_queues: WeakKeyDictionary[Worker, MultiModelOrder] = WeakKeyDictionary()


class MultiModelOrder:
    """The models that send in the current backward pass of one worker, in the order in which it reached them.

    Whoever is gone without having taken its leave (a pass that never ended, of a model that nobody holds any more)
    holds up nobody.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[ref[object], WeakMethod[Callable[[], None]]]] = []

    @classmethod
    def of(cls, worker: Worker) -> MultiModelOrder:
        return _queues.setdefault(worker, cls())

    def enter(self, who: object, send: Callable[[], None]) -> None:
        """`send` is a method of whoever enters."""
        self._waiting.append((ref(who), WeakMethod(send)))

    def has(self, who: object) -> bool:
        self._waiting = [entry for entry in self._waiting if entry[0]() is not None]
        return bool(self._waiting) and self._waiting[0][0]() is who

    def leave(self, who: object) -> None:
        """All has been sent (or the pass was given up): the next one sends what it has."""
        self._waiting = [entry for entry in self._waiting if entry[0]() not in (who, None)]
        if self._waiting and (send := self._waiting[0][1]()) is not None:
            send()
