"""The timeline in virtual time: its spans are the recursion's times, and fill each worker's time without a gap."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import laconic
from laconic.network.network_tree import Network
from laconic.real.connect import connect
from laconic.runtime.timeline import Timeline
from laconic.virtual.compute import Compute, Stragglers
from tests.virtual.test_script import TRAIN, run
from tests.virtual.test_time import ALPHA, BITS, ring_seconds, stepper


@pytest.mark.parametrize("seed", range(3))
def test_wait_free_backpropagation_is_drawn_as_its_recursion_says(seed: int) -> None:
    draw = random.Random(seed)
    widths = [draw.randint(5, 120) for _ in range(draw.randint(3, 8))]
    compute = Compute(draw.uniform(0, 0.2), draw.uniform(0.01, 0.3), draw.uniform(0.01, 0.05))
    size = draw.choice([2, 3, 5])
    network = Network.flat(size, BITS, ALPHA, lanes=1)
    out = laconic.simulate(stepper(widths, "wfbp_a2a", 3), size, network, compute, timeline=True)
    assert out.timeline is not None
    facts, rank = out.results[0], size - 1
    at = facts["begins"][2] + compute.forward_seconds
    ready = {}
    for i in reversed(range(len(facts["shares"]))):
        ready[i] = at = at + facts["shares"][i] * compute.backward_seconds
    free, expected, queues = 0.0, [], []
    for nbytes, members in zip(facts["sizes"], facts["members"], strict=True):
        there = max(ready[i] for i in members)
        begin = max(free, there)
        queues += [(there, begin)] if begin > there else []
        free = begin + ring_seconds(size, nbytes)
        expected.append((begin, free, nbytes))
    sent = [s for s in out.timeline.of(rank, "communication") if s.arguments["step"] == 2]
    messages = [s for s in sent if s.arguments["operation"] == "all_reduce"]
    assert [x for s in messages for x in (s.begin_seconds, s.end_seconds, s.arguments["bytes"])] == pytest.approx(
        [x for row in expected for x in row], rel=1e-9
    )
    queued = [x for s in sent if s.name == "queued all_reduce" for x in (s.begin_seconds, s.end_seconds)]
    assert queued == pytest.approx([x for row in queues for x in row], rel=1e-9)
    gradients = [s for s in out.timeline.of(rank, "compute") if s.arguments == {"part": "backward", "step": 2}]
    assert [s.name for s in gradients] == [f"backward {i}.weight" for i in reversed(range(len(widths) - 1))]
    assert [s.end_seconds for s in gradients] == pytest.approx([ready[i] for i in reversed(range(len(ready)))])


@pytest.mark.parametrize("strategy", ["bsp", "wfbp_a2a", "bsp / cast_bf16+ef"])
def test_computing_and_waiting_fill_each_workers_time(strategy: str, tmp_path: Path) -> None:
    compute = Compute(0.1, 0.2, 0.05, slowness=(1.0, 2.5), straggling=Stragglers(0.3, 4.0))
    network = Network.flat(4, BITS, ALPHA)
    out = laconic.simulate(stepper([60, 80, 40], strategy, 4), 4, network, compute, timeline=True)
    assert out.timeline is not None
    out.timeline.write(tmp_path / "trace.json")
    for timeline in (out.timeline, Timeline.read(tmp_path / "trace.json")):
        for worker in out.workers:
            computed, waited = timeline.of(worker.rank, "compute"), timeline.of(worker.rank, "waiting")
            busy = sorted([*computed, *waited], key=lambda s: s.begin_seconds)
            assert sum(s.seconds for s in busy) == pytest.approx(out.results[worker.rank]["ends"][-1])
            assert sum(s.seconds for s in waited) == pytest.approx(worker.waited_seconds)
            assert all(b.begin_seconds == pytest.approx(a.end_seconds) for a, b in pairwise(busy))
            assert computed and waited and timeline.of(worker.rank, "communication")


def test_messages_between_two_are_sent_by_one_and_received_by_the_other() -> None:
    def body() -> None:
        group = connect().world
        if laconic.rank() == 0:
            group.send(torch.ones(1000), 1).wait()
        elif laconic.rank() == 1:
            connect().computed("forward")
            group.receive(torch.empty(1000), 0).wait()

    network = Network.flat(3, BITS, ALPHA)
    out = laconic.simulate(body, 3, network, Compute(forward_seconds=0.5), timeline=True)
    assert out.timeline is not None
    for rank, name in [(0, "send 4000 B"), (1, "receive 4000 B")]:
        (span,) = out.timeline.of(rank, "communication")
        assert (span.name, span.begin_seconds, span.end_seconds) == (name, 0.5, pytest.approx(0.5 + ALPHA + 4e-3))
    assert out.timeline.workers == [0, 1]
    assert [worker.waited_seconds for worker in out.workers] == pytest.approx([0.5041, 0.0041, 0.0])


def test_without_being_asked_nothing_is_recorded() -> None:
    assert laconic.simulate(lambda: connect().computed("forward"), 2).timeline is None


@pytest.mark.long
def test_a_whole_script_is_drawn_by_the_same_option(tmp_path: Path) -> None:
    done = run("--engine", "virtual", "--workers", "2", "--trace", str(TRAIN), "--steps", "3", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    timeline = Timeline.read(tmp_path / "trace.json")
    assert timeline.workers == [0, 1]
    assert {s.arguments["step"] for s in timeline.of(1, "communication")} == {0, 1, 2}
