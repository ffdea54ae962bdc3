"""`model.no_sync()`: the gradients of backward passes inside the block stay local and accumulate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol


class Syncing(Protocol):
    """An object whose averaging of gradients can be switched off for a while."""

    syncing: bool


class NoSync:
    """The `no_sync` method that `distribute` adds to a model; a copy or pickle of the model gets one that does
    nothing."""

    def __init__(self, session: Syncing | None = None) -> None:
        self.session = session

    def __call__(self) -> AbstractContextManager[None]:
        return self._without_sync()

    @contextmanager
    def _without_sync(self) -> Iterator[None]:
        if self.session is None:
            yield
            return
        before, self.session.syncing = self.session.syncing, False
        try:
            yield
        finally:
            self.session.syncing = before

    def __reduce__(self) -> tuple[Callable[[], NoSync], tuple[()]]:
        return NoSync, ()
