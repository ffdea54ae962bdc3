"""What works among processes but not among threads of one: redirected or refused by name while a simulation runs."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from laconic.errors import ContractError
from laconic.runtime import current_worker
from laconic.virtual.worker import VirtualWorker

_REFUSED = (
    "init_process_group",
    "new_group",
    "get_rank",
    "get_world_size",
    "all_reduce",
    "all_gather",
    "broadcast",
    "barrier",
    "send",
    "recv",
)


@contextmanager
def guards() -> Iterator[None]:
    """Everything a simulation changes in torch, put back afterwards."""
    told: set[str] = set()
    with ExitStack() as stack:
        stack.enter_context(_replaced(dist, "is_initialized", _not_for_virtual_workers))
        for name in _REFUSED:
            stack.enter_context(_replaced(dist, name, partial(_refusing, name)))
        stack.enter_context(_replaced(torch.autograd, "backward", _telling_when_it_ends))
        stack.enter_context(_replaced(torch, "compile", lambda original: _eager(original, told)))
        stack.enter_context(_replaced(DataLoader, "__init__", lambda original: _in_process(original, told)))
        yield


@contextmanager
def _replaced(owner: Any, name: str, wrap: Callable[[Any], Any]) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, wrap(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


def _virtual() -> VirtualWorker | None:
    worker = current_worker.current()
    return worker if isinstance(worker, VirtualWorker) else None


def _not_for_virtual_workers(original: Callable[[], bool]) -> Callable[[], bool]:
    """torch's own helpers (a DataLoader, say) ask first, and would then talk to this process's group."""
    return lambda: _virtual() is None and original()


def _refusing(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if _virtual() is None:
            return original(*args, **kwargs)
        raise ContractError(
            f"torch.distributed.{name} knows nothing of virtual workers: ask laconic.rank() and laconic.size(), divide "
            "data with laconic.shard(dataset) (not DistributedSampler), and leave the talking to the strategy"
        )

    return call


def _telling_when_it_ends(original: Callable[..., Any]) -> Callable[..., Any]:
    """Tell a worker when its outermost backward has returned, in its own thread, where it may wait.

    The engine's own callback would run on a thread that all workers share where there is a GPU, and two workers that
    waited for each other there would never wake up.
    """
    depth: dict[int, int] = {}

    def backward(*args: Any, **kwargs: Any) -> None:
        worker = _virtual()
        if worker is None:
            original(*args, **kwargs)
            return
        depth[worker.rank] = depth.get(worker.rank, 0) + 1
        try:
            original(*args, **kwargs)
        finally:
            depth[worker.rank] -= 1
        if not depth[worker.rank]:
            worker.backward_ended()

    return backward


def _eager(original: Callable[..., Any], told: set[str]) -> Callable[..., Any]:
    def compile(model: Any = None, **kwargs: Any) -> Any:
        if _virtual() is None:
            return original(model, **kwargs)
        _tell_once(told, "torch.compile: virtual workers run the model as it is (eager)")
        return (lambda function: function) if model is None else model

    return compile


def _in_process(original: Callable[..., None], told: set[str]) -> Callable[..., None]:
    signature = inspect.signature(original)

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        given = signature.bind(self, *args, **kwargs)
        if _virtual() is not None and given.arguments.get("num_workers"):
            _tell_once(told, "DataLoader: virtual workers load in this process (num_workers=0)")
            for name in ("num_workers", "prefetch_factor", "persistent_workers", "multiprocessing_context"):
                given.arguments.pop(name, None)
        original(*given.args, **given.kwargs)

    return __init__


def _tell_once(told: set[str], sentence: str) -> None:
    if sentence not in told:
        told.add(sentence)
        print(f"laconic: {sentence}", file=sys.stderr)
