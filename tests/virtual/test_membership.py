"""Virtual workers that join, leave, die and return."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import laconic
from laconic.errors import LaconicError, WorkerLost
from laconic.network.network_tree import Network
from laconic.real.connect import connect
from laconic.virtual.compute import Compute
from laconic.virtual.membership import Event, Life, lives

COMPUTE = Compute(forward_seconds=0.2, backward_seconds=0.7, step_seconds=0.1)  # a second a step
NETWORK = Network.flat(3, 1e9)


def training(steps: int, checkpoint: Path | None = None, records: list[Any] | None = None) -> Any:
    def run() -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        done = 0
        if checkpoint is not None:
            done = laconic.resume(checkpoint, model, optimizer).get("step", 0)
        try:
            for step in range(done, steps):
                x = torch.randn(4, 4, generator=torch.Generator().manual_seed(10 * step + laconic.rank()))
                model(x).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                if checkpoint is not None:
                    laconic.checkpoint(checkpoint, model, optimizer, step=step + 1)
                if records is not None:
                    records.append((laconic.rank(), step, connect().clock_seconds()))
        except WorkerLost as error:
            if records is not None:
                records.append((laconic.rank(), str(error), connect().clock_seconds()))
            raise
        return [p.detach().clone() for p in model.parameters()]

    return run


def test_the_others_notice_a_death_by_its_silence() -> None:
    records: list[Any] = []
    with pytest.raises(WorkerLost, match=r"rank 1 died at 2\.5 s"):
        laconic.simulate(
            training(5, records=records), 3, NETWORK, COMPUTE, events=[Event(2.5, 1, "die")], heartbeat_seconds=4.0
        )
    errors = [(rank, what, when) for rank, what, when in records if isinstance(what, str)]
    assert len(errors) == 1  # the first to fail ends the run
    assert errors[0][2] == pytest.approx(6.5)
    assert {step for _, step, _ in records if not isinstance(step, str)} == {0, 1}


def test_a_worker_that_leaves_ends_its_step_and_says_so() -> None:
    records: list[Any] = []
    with pytest.raises(WorkerLost, match="rank 2 left at 3"):
        laconic.simulate(training(5, records=records), 3, NETWORK, COMPUTE, events=[Event(2.5, 2, "leave")])
    assert (0, 2) in {(rank, step) for rank, step, _ in records}  # the third step is whole
    assert max(when for _, _, when in records) == pytest.approx(4.0 - 0.1, abs=0.2)


def test_everybody_waits_for_one_who_joins_later() -> None:
    out = laconic.simulate(training(2), 3, NETWORK, COMPUTE, events=[Event(10.0, 0, "join")])
    quiet = laconic.simulate(training(2), 3, NETWORK, COMPUTE)
    assert out.seconds == pytest.approx(10 + quiet.seconds)
    assert all(torch.equal(a, b) for a, b in zip(out.results[1], quiet.results[1], strict=True))


def test_after_a_death_all_start_again_from_the_checkpoint(tmp_path: Path) -> None:
    quiet = laconic.simulate(training(6), 3, NETWORK, COMPUTE)
    events = [Event(2.5, 1, "die"), Event(9.0, 1, "return")]
    out = laconic.simulate(
        training(6, tmp_path / "saved"), 3, NETWORK, COMPUTE, events=events, restarts=1, heartbeat_seconds=4.0
    )
    assert all(torch.equal(a, b) for k in range(3) for a, b in zip(out.results[k], quiet.results[k], strict=True))
    assert out.seconds == pytest.approx(9.0 + 4.0, abs=0.01)  # two of six steps were saved


def test_without_a_return_nobody_can_start_again() -> None:
    with pytest.raises(LaconicError, match="rank 1 is gone for good"):
        laconic.simulate(training(5), 3, NETWORK, COMPUTE, events=[Event(2.5, 1, "die")], restarts=3)


def test_a_death_breaks_what_is_in_flight() -> None:
    """The message takes a second; its sender dies in the middle of it."""

    def run() -> str:
        group = connect().world
        try:
            if laconic.rank() < 2:
                group.send(torch.ones(125_000_000 // 4), to=2).wait()
                return "sent"
            there = torch.empty(125_000_000 // 4)
            group.receive(there, source=0).wait()
            group.receive(there, source=1).wait()
        except WorkerLost as error:
            return f"{error} noticed at {connect().clock_seconds():g}"
        return "got both"

    out = laconic.simulate(run, 3, NETWORK, events=[Event(1.0, 1, "die")], heartbeat_seconds=3.0)
    assert out.results[0] == "sent"
    assert out.results[1] is None
    assert "rank 1 died" in out.results[2] and "noticed at 4" in out.results[2]


def test_one_who_returns_runs_afresh_beside_the_others() -> None:
    """Nobody depends on worker 1, which dies and comes back: the rest of the run goes on."""
    begun: list[tuple[int, float]] = []

    def run() -> float:
        begun.append((laconic.rank(), connect().clock_seconds()))
        for _ in range(5):
            connect().computed("forward", 5.0)
            connect().computed("step")
        return connect().clock_seconds()

    events = [Event(1.5, 1, "die"), Event(2.0, 1, "return")]
    out = laconic.simulate(run, 2, Network.flat(2, 1e9), COMPUTE, events=events)
    assert begun == [(0, 0.0), (1, 0.0), (1, 2.0)]
    assert out.results == pytest.approx([5.5, 7.5])


@pytest.mark.parametrize(
    "events",
    [
        [Event(2.5, 1, "die"), Event(3.0, 1, "return")],  # back before its silence is noticed
        [Event(2.2, 1, "leave"), Event(2.4, 1, "return")],  # back before it has left
        [Event(0.0, 1, "die"), Event(1.0, 1, "return")],
        [*(Event(2.5, k, "die") for k in range(3)), *(Event(8.0, k, "return") for k in range(3))],
        [Event(2.5, 1, "die"), Event(9.0, 1, "return"), Event(7.0, 2, "die"), Event(7.5, 2, "return")],
    ],
)
def test_whoever_comes_back_whenever_training_ends_as_if_nothing_had_been(events: list[Event], tmp_path: Path) -> None:
    quiet = laconic.simulate(training(5), 3, NETWORK, COMPUTE)
    out = laconic.simulate(
        training(5, tmp_path / "saved"), 3, NETWORK, COMPUTE, events=events, restarts=2, heartbeat_seconds=4.0
    )
    assert all(torch.equal(a, b) for k in range(3) for a, b in zip(out.results[k], quiet.results[k], strict=True))


def test_if_everybody_dies_that_is_no_success() -> None:
    with pytest.raises(WorkerLost):
        laconic.simulate(training(5), 3, NETWORK, COMPUTE, events=[Event(2.5, k, "die") for k in range(3)])


def test_one_who_is_gone_for_good_is_named_although_another_died_first() -> None:
    events = [Event(2.5, 1, "die"), Event(9.0, 1, "return"), Event(8.0, 2, "die")]
    with pytest.raises(LaconicError, match="rank 2 is gone for good"):
        laconic.simulate(training(5), 3, NETWORK, COMPUTE, events=events, restarts=1, heartbeat_seconds=4.0)


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([Event(1, 0, "return")], "can only join or leave or die"),
        ([Event(1, 0, "die"), Event(2, 0, "leave")], "after its die it can only return"),
        ([Event(1, 7, "die")], "workers 0 to 2"),
        ([Event(-1, 0, "die")], "times from 0 on"),
    ],
)
def test_impossible_stories_are_refused(events: list[Event], words: str) -> None:
    with pytest.raises(LaconicError, match=words):
        lives(events, 3)


def test_lives() -> None:
    by_worker = lives([Event(1, 1, "join"), Event(3, 1, "die"), Event(5, 1, "return"), Event(2, 0, "leave")], 3)
    assert by_worker == [[Life(0, 2, True)], [Life(1, 3), Life(5)], [Life()]]
