"""The worker of the running code: one per process, or one per thread of control where many workers share a process.

A script asks `laconic.rank()`, `laconic.size()` and `laconic.shard(...)`, so that it need not know which engine runs
it. The real engine sets the worker of a process when it connects; the virtual engine sets that of each thread, in a
context variable.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from laconic.values.process_place import ProcessPlace
from laconic.worker import Worker

_current: ContextVar[Worker | None] = ContextVar("laconic_worker", default=None)
_process: Worker | None = None


def current() -> Worker | None:
    """Return the worker of this thread of control, or None where none is connected yet."""
    return _current.get() or _process


def set_process_worker(worker: Worker) -> None:
    """Make this worker the process's own, for every thread that does not act as another."""
    global _process
    _process = worker


def is_process_worker(worker: Worker) -> bool:
    """Return whether this worker is the whole process, rather than one of several in it."""
    return worker is _process


@contextmanager
def acting_as(worker: Worker) -> Iterator[None]:
    """Make this thread of control act as the given worker within the block."""
    token = _current.set(worker)
    try:
        yield
    finally:
        _current.reset(token)


def rank() -> int:
    """Return this worker's number, counted from 0."""
    worker = current()
    return worker.rank if worker is not None else ProcessPlace.current().rank


def size() -> int:
    """Return the number of workers."""
    worker = current()
    return worker.size if worker is not None else ProcessPlace.current().size
