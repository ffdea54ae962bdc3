"""Connect this process to its job, once: through the launcher's environment, or as the only worker without one."""

from __future__ import annotations

import atexit
import os
from pathlib import Path

import torch
import torch.distributed as dist

from laconic.liveness import pipe_heartbeat
from laconic.liveness.heartbeat import Heartbeat
from laconic.network.interfaces import prepare_environment
from laconic.real.recording import Recording, rank_file
from laconic.real.slowdown import Slowdown
from laconic.real.worker import RealWorker
from laconic.runtime.current_worker import current, rank, set_process_worker, size
from laconic.runtime.own_device import device
from laconic.values.process_place import ProcessPlace, torch_variables
from laconic.values.run_config import RunConfig
from laconic.values.worker_speeds import WorkerSpeeds
from laconic.worker import Worker


def connect() -> Worker:
    """Return this thread's worker; without one, join the job that the environment describes, or be its only worker."""
    worker = current()
    if worker is None:
        worker = _join()
        set_process_worker(worker)
    return worker


def _join() -> RealWorker:
    config = RunConfig.current()
    if config.servers:
        return _equipped(_server_only_worker(config), config)
    if not dist.is_initialized():
        os.environ.update(torch_variables(os.environ))  # torch knows no other launcher
        prepare_environment(ProcessPlace.current().host)
        torch.set_num_threads(config.threads)
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
        if not ProcessPlace.current().is_launched:
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        else:
            device()  # becomes torch's current one
            dist.init_process_group(backend)
        atexit.register(_leave)
    heartbeat = None
    place = ProcessPlace.current()
    if place.is_launched and dist.get_world_size() > 1 and place.port is not None:
        heartbeat = Heartbeat.start(
            host=place.host,
            port=place.port,
            rank=dist.get_rank(),
            size=dist.get_world_size(),
            prefix=config.heartbeat_prefix(),
            limit_seconds=config.heartbeat_seconds,
            folder=config.folder,
        )
        atexit.register(heartbeat.stop)
    return _equipped(RealWorker(heartbeat), config)


def _server_only_worker(config: RunConfig) -> RealWorker:
    """Make the worker of a run with servers, which joins no process group: if it dies, the others go on, and it may
    return."""
    if config.heartbeat_pipe is not None:
        pipe_heartbeat.start(config.heartbeat_pipe, config.heartbeat_seconds)
    torch.set_num_threads(config.threads)
    device()  # becomes torch's current one
    return RealWorker(place=(rank(), size()))


def _equipped(worker: RealWorker, config: RunConfig) -> RealWorker:
    if config.trace and config.folder is not None:
        worker.recording = Recording(worker.rank)
        worker.recording.write_at_exit(rank_file(Path(config.folder), worker.rank))
    speeds = WorkerSpeeds.read(config.slowness, config.stragglers)
    worker.slowdown = None if speeds.are_equal else Slowdown(speeds, worker)
    return worker


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
