"""`model.no_sync()`: gradients of backward passes inside stay local and add up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol


class Syncing(Protocol):
    """What can be told to keep gradients local for a while."""

    syncing: bool


class NoSync:
    """Callable as a method of the model; a copy or pickle of the model gets one that does nothing."""

    def __init__(self, session: Syncing | None = None) -> None:
        self.session = session

    def __call__(self) -> AbstractContextManager[None]:
        return self._quiet()

    @contextmanager
    def _quiet(self) -> Iterator[None]:
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
