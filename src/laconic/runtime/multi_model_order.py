"""The order in which models send their messages when one backward pass runs through several distributed models.

A GAN's loss flows through the discriminator into the generator: both send during the same backward pass, and a message
that is incomplete on one rank is launched later there than elsewhere. Ranks must nevertheless start collectives in the
same order: a model sends only when those that backward reached before it have sent everything.
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakKeyDictionary, WeakMethod, ref

from laconic.worker import Worker

_queues: WeakKeyDictionary[Worker, MultiModelOrder] = WeakKeyDictionary()


class MultiModelOrder:
    """The models that send in the current backward pass of one worker, in the order in which it reached them.

    A model that was garbage-collected without leaving (its pass never ended) does not hold up the others.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[ref[object], WeakMethod[Callable[[], None]]]] = []

    @classmethod
    def of(cls, worker: Worker) -> MultiModelOrder:
        """Return the order of this worker's models, which all its sessions share."""
        return _queues.setdefault(worker, cls())

    def enter(self, sender: object, send: Callable[[], None]) -> None:
        """Append a sender to the order; `send` is a method of it, called when it becomes the first."""
        self._entries.append((ref(sender), WeakMethod(send)))

    def is_first(self, sender: object) -> bool:
        """Return whether this sender may send now."""
        self._entries = [entry for entry in self._entries if entry[0]() is not None]
        return bool(self._entries) and self._entries[0][0]() is sender

    def leave(self, sender: object) -> None:
        """Remove a sender that has sent everything or abandoned its pass, and let the next one send what it has
        ready."""
        self._entries = [entry for entry in self._entries if entry[0]() not in (sender, None)]
        if self._entries and (send := self._entries[0][1]()) is not None:
            send()
