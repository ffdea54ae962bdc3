"""Which worker am I: connect to the job once, and remember it.

A script asks `laconic.rank()`, `laconic.size()` and `laconic.shard(...)`, so that it need not know which engine runs
it. The answer is kept per thread of control (a context variable), because on the virtual engine many workers share one
process.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

import torch
import torch.distributed as dist

from laconic.engine.config import RunConfig
from laconic.engine.interfaces import prepare_environment
from laconic.engine.liveness.heartbeat import Heartbeat
from laconic.engine.pace import Pace
from laconic.engine.real import RealWorker
from laconic.engine.recording import Recording, rank_file
from laconic.engine.unequal import Speeds
from laconic.worker import Worker

_current: ContextVar[Worker | None] = ContextVar("laconic_worker", default=None)
_process: RealWorker | None = None


def current() -> Worker | None:
    """The worker of this thread of control, if it is connected already."""
    return _current.get() or _process


def connect() -> Worker:
    """This thread's worker; joins the job that the environment describes, or stands alone without one."""
    global _process
    worker = current()
    if worker is None:
        worker = _process = _join()
    return worker


@contextmanager
def acting_as(worker: Worker) -> Iterator[None]:
    """In this thread of control, laconic speaks for this worker."""
    token = _current.set(worker)
    try:
        yield
    finally:
        _current.reset(token)


def rank() -> int:
    """This worker's number, from 0."""
    worker = current()
    return worker.rank if worker is not None else int(os.environ.get("RANK", "0"))


def size() -> int:
    """How many workers there are."""
    worker = current()
    return worker.size if worker is not None else int(os.environ.get("WORLD_SIZE", "1"))


def _join() -> RealWorker:
    config = RunConfig.current()
    if config.servers:
        return _equipped(_stand_apart(config), config)
    alone = "RANK" not in os.environ or "WORLD_SIZE" not in os.environ
    host = os.environ.get("MASTER_ADDR", "127.0.0.1")
    if not dist.is_initialized():
        prepare_environment(host)
        torch.set_num_threads(config.threads)
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
        if alone:
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        else:
            if torch.cuda.is_available():
                torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
            dist.init_process_group(backend)
        atexit.register(_leave)
    heartbeat = None
    if not alone and dist.get_world_size() > 1 and "MASTER_PORT" in os.environ:
        heartbeat = Heartbeat.start(
            host=host,
            port=int(os.environ["MASTER_PORT"]),
            rank=dist.get_rank(),
            size=dist.get_world_size(),
            prefix=config.heartbeat_prefix(),
            limit_seconds=config.heartbeat_seconds,
            folder=config.folder,
        )
        atexit.register(heartbeat.stop)
    return _equipped(RealWorker(heartbeat), config)


def _stand_apart(config: RunConfig) -> RealWorker:
    """Among servers nobody is joined to anybody: whoever dies leaves the others alone, and may come back."""
    torch.set_num_threads(config.threads)
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    return RealWorker(place=(rank(), size()))


def _equipped(worker: RealWorker, config: RunConfig) -> RealWorker:
    if config.trace and config.folder is not None:
        worker.recording = Recording(worker.rank)
        worker.recording.write_at_exit(rank_file(Path(config.folder), worker.rank))
    speeds = Speeds.read(config.slowness, config.stragglers)
    worker.pace = None if speeds.are_equal else Pace(speeds, worker)
    return worker


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
