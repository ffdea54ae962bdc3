"""Functions of torch that work among processes but not among threads of one: a simulation replaces or refuses them."""

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
    """Replace what a simulation changes in torch, and restore it afterwards."""
    _keep_device_guard()
    shown: set[str] = set()
    with ExitStack() as stack:
        stack.enter_context(_replaced(dist, "is_initialized", _not_for_virtual_workers))
        for name in _REFUSED:
            stack.enter_context(_replaced(dist, name, partial(_refused, name)))
        stack.enter_context(_replaced(torch.autograd, "backward", _reporting_its_end))
        stack.enter_context(_replaced(torch, "compile", lambda original: _eager(original, shown)))
        stack.enter_context(_replaced(DataLoader, "__init__", lambda original: _in_process(original, shown)))
        yield


def _keep_device_guard() -> None:
    """Let this thread, which outlives the workers', be the one in which PyTorch makes its stand-in for a GPU.

    A build for CUDA on a machine without a GPU makes it where sharded tensors are first planned, and every later thread
    uses it: in a worker's own thread it ends with that worker, and the next one crashes (seen with torch 2.11).
    """
    if torch.version.cuda is not None and not torch.cuda.is_available():
        torch._C._ensureCUDADeviceGuardSet()


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
    """torch's own helpers (a DataLoader, say) ask first, and would then use this process's own group."""
    return lambda: _virtual() is None and original()


def _refused(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if _virtual() is None:
            return original(*args, **kwargs)
        raise ContractError(
            f"torch.distributed.{name} knows nothing of virtual workers: ask laconic.rank() and laconic.size(), divide "
            "data with laconic.shard(dataset) (not DistributedSampler), and leave communication to the strategy"
        )

    return call


def _reporting_its_end(original: Callable[..., Any]) -> Callable[..., Any]:
    """Notify a worker when its outermost backward has returned, in its own thread, where it may wait.

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


def _eager(original: Callable[..., Any], shown: set[str]) -> Callable[..., Any]:
    def compile(model: Any = None, **kwargs: Any) -> Any:
        if _virtual() is None:
            return original(model, **kwargs)
        _warn_once(shown, "torch.compile: virtual workers run the model as it is (eager)")
        return (lambda function: function) if model is None else model

    return compile


def _in_process(original: Callable[..., None], shown: set[str]) -> Callable[..., None]:
    signature = inspect.signature(original)

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        given = signature.bind(self, *args, **kwargs)
        if _virtual() is not None and given.arguments.get("num_workers"):
            _warn_once(shown, "DataLoader: virtual workers load in this process (num_workers=0)")
            for name in ("num_workers", "prefetch_factor", "persistent_workers", "multiprocessing_context"):
                given.arguments.pop(name, None)
        original(*given.args, **given.kwargs)

    return __init__


def _warn_once(shown: set[str], warning: str) -> None:
    if warning not in shown:
        shown.add(warning)
        print(f"laconic: {warning}", file=sys.stderr)
