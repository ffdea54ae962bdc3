"""Timelines of real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import laconic
from laconic.real.connect import connect
from laconic.real.recording import Recording
from laconic.real.worker import RealWorker
from laconic.runtime.timeline import Span, Timeline
from laconic.values.run_config import RunConfig
from tests.real.launching import SOURCE, START_SECONDS, Launched
from tests.real.pool import Pool, PoolRank

TRAIN = Path(__file__).parent / "scripts" / "train.py"


def touching(spans: list[Span]) -> bool:
    """Whether each begins where the one before it ends, on a grid of nanoseconds."""
    return all(abs(a.end_seconds - b.begin_seconds) < 2e-9 for a, b in pairwise(spans))


@pytest.mark.long
def test_a_run_leaves_a_timeline_of_all_its_ranks(launch: Callable[..., Launched]) -> None:
    run = launch("--workers", "2", "--trace", "--strategy", "bsp / wfbp(0)", "--", "--steps", "5", script=TRAIN)
    assert run.exit_code(START_SECONDS) == 0, run.console
    assert f"timeline: {run.folder / 'trace.json'}" in run.console
    assert "laconic: 5 steps in " in run.console and "each worker sent " in run.console
    figures = run.result()["traffic"]
    assert isinstance(figures, list) and [worker["steps"] for worker in figures] == [5, 5]
    timeline = Timeline.read(run.folder / "trace.json")  # refuses spans of a lane that overlap
    assert timeline.workers == [0, 1]
    for rank in (0, 1):
        computed, waited = timeline.of(rank, "compute"), timeline.of(rank, "waiting")
        assert touching(sorted([*computed, *waited], key=lambda s: s.begin_seconds))
        for step in range(5):
            parts = [s.arguments["part"] for s in computed if s.arguments["step"] == step]
            assert (parts.count("forward"), parts.count("backward"), parts.count("step")) == (1, 6, 1)
            sent = [s for s in timeline.of(rank, "communication") if s.arguments["step"] == step]
            gradients = [s.arguments["elements"] for s in sent if s.arguments["operation"] == "all_reduce"]
            assert sum(gradients) >= sum([20 * 200, 200, 200 * 200, 200, 200 * 5, 5])
            assert all(s.name == f"{s.arguments['operation']} {s.arguments['bytes']} B" for s in sent)
    here, there = (timeline.of(rank, "communication") for rank in (0, 1))
    for one, other in [*zip(here, there, strict=True), *zip(there, here, strict=True)]:
        if one.arguments["operation"] == "all_reduce":  # which cannot end before the other has come
            assert one.name == other.name and one.end_seconds > other.begin_seconds
    alone = Timeline.read(run.folder / "trace" / "rank-1.json")
    assert alone.workers == [1] and alone.began_seconds >= timeline.began_seconds > 0


@pytest.mark.long
def test_a_script_that_raises_leaves_its_timeline(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch, laconic\n"
        "model = torch.nn.Linear(3, 2)\n"
        "model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1))\n"
        "model(torch.ones(1, 3)).sum().backward()\n"
        "raise ValueError('a deliberate mistake')\n"
    )
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    config = RunConfig(folder=str(tmp_path), trace=True).to_env()
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**environment, **config, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
        check=False,
    )
    assert done.returncode == 1 and "deliberate" in done.stderr
    timeline = Timeline.read(tmp_path / "trace" / "rank-0.json")
    assert {"forward", "backward weight", "backward bias"} <= {s.name for s in timeline.of(0, "compute")}


def record(act: Callable[[RealWorker], None]) -> tuple[list[tuple[str, int, bool]], int, float]:
    """The messages of `act` as (operation, bytes, whether its time is positive), how many waits, and their seconds."""
    worker: Any = connect()
    worker.recording, before = Recording(worker.rank), worker.waited_seconds
    try:
        act(worker)
        timeline = worker.recording.timeline
    finally:
        worker.recording = None
    waited = timeline.of(worker.rank, "waiting")
    assert abs(sum(s.seconds for s in waited) - (worker.waited_seconds - before)) < 1e-6
    communication = timeline.of(worker.rank, "communication")
    messages = [(s.arguments["operation"], s.arguments["bytes"], s.seconds > 0) for s in communication]
    return messages, len(waited), worker.waited_seconds - before


def operations(member: PoolRank) -> Any:
    def act(worker: RealWorker) -> None:
        group, x, other = worker.adopt(member.process_group), torch.ones(10), 1 - member.rank
        group.all_reduce(x).wait()
        group.all_gather(x).wait()
        group.all_to_all(x).wait()
        group.reduce_scatter(x).wait()
        group.broadcast(x).wait()
        handles = [group.send(x, other), group.receive(torch.empty(10), other)]
        for handle in handles:
            handle.wait()
        group.barrier().wait()

    return record(act)


def test_every_operation_is_named_with_its_bytes(pool: Pool) -> None:
    names = ["all_reduce", "all_gather", "all_to_all", "reduce_scatter", "broadcast", "send", "receive"]
    for messages, waits, seconds in pool.run(operations):
        assert messages == [*((name, 40, True) for name in names), ("barrier", 0, True)]
        assert waits == len(messages) and seconds > 0


def hooked(member: PoolRank) -> Any:
    model = nn.parallel.DistributedDataParallel(nn.Linear(7, 5), process_group=member.process_group)
    model.register_comm_hook(member.process_group, laconic.ddp_hook("bf16+ef"))

    def act(worker: RealWorker) -> None:
        model(torch.ones(2, 7)).sum().backward()
        deadline = time.monotonic() + START_SECONDS  # a thread of the backend says that the message has landed
        while worker.recording and not worker.recording.timeline.of(worker.rank, "communication"):
            assert time.monotonic() < deadline
            time.sleep(0.001)

    return record(act)


def test_messages_that_nobody_waits_for_land_too(pool: Pool) -> None:
    for messages, waits, seconds in pool.run(hooked):
        assert {name for name, _, _ in messages} == {"all_reduce"} and waits == seconds == 0
