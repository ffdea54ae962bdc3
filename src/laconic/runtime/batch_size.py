"""`laconic.batch_size`: how a rule that chooses the batch tells the script."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from laconic.runtime.current_worker import current
from laconic.worker import Worker

_decided: WeakKeyDictionary[Worker, int] = WeakKeyDictionary()


def batch_size(default: int) -> int:
    """How many samples this worker's next batch should have: what the strategy has decided, else the given number.

    Ask for it when a batch is drawn, since rules such as growing batches decide anew between steps.
    """
    worker = current()
    return default if worker is None else batch_of(worker) or default


def batch_of(worker: Worker) -> int | None:
    """What the strategy has decided for this worker, if anything."""
    return _decided.get(worker)


def set_batch(worker: Worker, batch: int | None) -> None:
    """A rule's decision for this worker; None: the script's own number holds."""
    if batch is None:
        _decided.pop(worker, None)
    else:
        _decided[worker] = batch
