"""`laconic.batch_size`: the batch size that a sync rule has chosen, for the script to ask."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from laconic.runtime.current_worker import current
from laconic.worker import Worker

_decided: WeakKeyDictionary[Worker, int] = WeakKeyDictionary()


def batch_size(default: int) -> int:
    """Return how many samples this worker's next batch should have: the strategy's decision, or else the given number.

    Ask for it when a batch is drawn, since rules such as growing batches decide anew between steps.

    - `default`: the batch size of strategies that leave it to the script.
    """
    worker = current()
    return default if worker is None else batch_of(worker) or default


def batch_of(worker: Worker) -> int | None:
    """Return the batch size that the strategy has decided for this worker, or None."""
    return _decided.get(worker)


def set_batch(worker: Worker, batch: int | None) -> None:
    """Set a rule's decision for this worker; None restores the script's own number."""
    if batch is None:
        _decided.pop(worker, None)
    else:
        _decided[worker] = batch
