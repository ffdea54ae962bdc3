"""Outer state that is kept elsewhere than where it is used: the same bits, nothing left behind, saved whole.

On a CPU nothing is moved. Here lanes take the place of a GPU's streams that copy when the real ones would have to have
copied at the latest, and spoil what nobody may read any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import laconic
from laconic.kernels import offload
from laconic.runtime import parameter_buckets
from laconic.sync.outer_memory import keep_vector, kept_vector
from tests.sync.rounds import WORKERS, Run, adamw, net, train

RULES = [
    "diloco(period=3)",
    "diloco(period=3, lr=1.0, momentum=0.0) / topk(0.1)+ef",
    "diloco(period=3) / qsgd+ef",
    "slowmo(period=3)",
    "overlap_local_sgd(period=3)",
    "streaming_diloco(period=6, fragments=3, overlap=2)",
    "streaming_diloco(period=6, fragments=3, overlap=2) / scaled_sign+ef",
]


class LateLanes:
    """Lanes that copy as late as allowed: to the device when somebody waits, home when that memory is next needed."""

    def __init__(self) -> None:
        self.pending: list[tuple[Tensor, Tensor]] = []
        self.leaving: deque[list[Tensor]] = deque()
        self.fetched = self.most = self.held = 0

    def fetch(self, home: Tensor) -> tuple[Tensor, Any]:
        self._bring_home()
        self.fetched += 1
        self.held += 1
        self.most = max(self.most, self.held)
        guest = torch.full_like(home, torch.nan)
        return guest, (guest, home)

    def wait(self, fetched: tuple[Tensor, Tensor]) -> None:
        guest, home = fetched
        guest.copy_(home)

    def give_back(self, guest: Tensor, home: Tensor) -> None:
        self.pending.append((guest.clone(), home))

    def release(self, guests: list[Tensor]) -> None:
        self.leaving.append(guests)
        while len(self.leaving) > 2:
            self._free_oldest()

    def flush(self) -> None:
        while self.leaving:
            self._free_oldest()

    def synchronize(self) -> None:
        self._bring_home()

    def _bring_home(self) -> None:
        for guest, home in self.pending:
            home.copy_(guest)
        self.pending.clear()

    def _free_oldest(self) -> None:
        for guest in self.leaving.popleft():
            guest.fill_(torch.nan)
            self.held -= 1


@pytest.fixture
def lanes(monkeypatch: pytest.MonkeyPatch) -> Iterator[LateLanes]:
    """Everything that may be offloaded is, and small models have several buckets."""
    made = LateLanes()
    monkeypatch.setattr(offload, "lanes_between", lambda home, device: made)
    monkeypatch.setattr("laconic.sync.outer_optimizer.flush", lambda device: made.flush())
    monkeypatch.setattr("laconic.sync.streaming.flush", lambda device: made.flush())
    monkeypatch.setattr("laconic.sync.overlap_local_sgd.flush", lambda device: made.flush())
    monkeypatch.setattr("laconic.runtime.session.synchronize", lambda device: made.synchronize())
    monkeypatch.setattr(parameter_buckets, "BUCKET_BYTES", 500)
    yield made


def ends(strategy: str, checkpoint: Path | None = None) -> list[Run]:
    return laconic.simulate(lambda: train(strategy, 13, adamw, checkpoint=checkpoint), WORKERS).results


@pytest.mark.parametrize("strategy", RULES)
def test_offloaded_state_gives_the_same_bits(strategy: str, request: pytest.FixtureRequest) -> None:
    expected = ends(strategy)
    lanes: LateLanes = request.getfixturevalue("lanes")
    found = ends(strategy)
    assert lanes.fetched and not lanes.held and not lanes.leaving, "all of it has left the device"
    for a, b in zip(expected, found, strict=True):
        assert all(map(torch.equal, a.path, b.path))
        lanes.synchronize()
        assert torch.equal(a.remembered("point"), b.remembered("point"))


def test_few_buckets_are_on_the_device_at_a_time(lanes: LateLanes) -> None:
    """Three in flight and two on their way home, each with point and momentum."""

    def many() -> None:
        model = nn.Sequential(*[nn.Linear(8, 8, bias=False) for _ in range(30)])
        model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), 0.1), "diloco(period=1)")
        model(torch.randn(2, 8)).sum().backward()
        optimizer.step()

    laconic.simulate(many, 2)
    assert lanes.fetched == 2 * 2 * 30 and lanes.most <= 2 * 2 * 5


def test_a_checkpoint_holds_what_is_on_its_way_home(lanes: LateLanes, tmp_path: Path) -> None:
    def save(run: Run, step: int) -> None:
        if step == 6:
            laconic.checkpoint(tmp_path, run.model, run.optimizer, step=step)

    strategy = "diloco(period=3) / qsgd+ef"
    whole = laconic.simulate(lambda: train(strategy, 13, adamw, after=save), WORKERS).results
    for a, b in zip(whole, ends(strategy, tmp_path), strict=True):
        assert torch.equal(a.path[-1], b.path[-1])


def test_a_resumed_state_lies_where_the_rule_keeps_it(tmp_path: Path) -> None:
    def save(run: Run, step: int) -> None:
        if step == 4:
            laconic.checkpoint(tmp_path, run.model, run.optimizer, step=step)

    def resumed() -> tuple[bool, Tensor]:
        model = net()
        model, optimizer = laconic.distribute(model, adamw(model.parameters()), "diloco(period=3)")
        run = Run(model, optimizer, [], [])
        state = optimizer.session.partitions[0].tiers[0].sync_state
        before = {name: tensor.data_ptr() for name, tensor in state.items()}
        laconic.resume(tmp_path, model, optimizer)
        state = optimizer.session.partitions[0].tiers[0].sync_state
        return before == {name: tensor.data_ptr() for name, tensor in state.items()}, run.remembered("point")

    saved = laconic.simulate(lambda: train("diloco(period=3)", 4, adamw, after=save), WORKERS).results
    for run, (stays, point) in zip(saved, laconic.simulate(resumed, WORKERS).results, strict=True):
        assert stays and torch.equal(run.remembered("point"), point)


def test_a_vector_is_made_anew_of_parts_that_were_replaced() -> None:
    like, state = [torch.zeros(2, 3), torch.zeros(4)], {}
    vector = torch.arange(10.0)
    keep_vector(state, "point", [0, 1], like, vector)
    assert kept_vector(state, "point", [0, 1], like, offload=True).data_ptr() == vector.data_ptr()
    state["point.1"] = torch.full((4,), 7.0)
    found = kept_vector(state, "point", [0, 1], like, offload=True)
    assert found.tolist() == [0, 1, 2, 3, 4, 5, 7, 7, 7, 7]
    found[0] = 9
    assert (
        state["point.0"][0, 0] == 9 and kept_vector(state, "point", [0, 1], like, True).data_ptr() == found.data_ptr()
    )


@pytest.mark.parametrize(
    "chain", ["qsgd+ef", "chunk_topk(chunk=64, k=8)+two_bit+ef(decay=0.95)", "scaled_sign+ef", "none"]
)
def test_so_does_the_memory_of_a_compressor_of_whole_buckets(chain: str, request: pytest.FixtureRequest) -> None:
    def script() -> list[Tensor]:
        torch.manual_seed(1)
        model = nn.Sequential(*[nn.Linear(16, 16, bias=False) for _ in range(6)])
        strategy = f"diloco(period=2) / {chain}"
        model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), 0.1), strategy)
        for step in range(7):
            draw = torch.Generator().manual_seed(10 * step + laconic.rank())
            model(torch.randn(4, 16, generator=draw)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        (tier,) = optimizer.session.partitions[0].tiers
        optimizer.session.state_dict()
        assert all(report.one_by_one is None for report in tier.whole.reports()), "whole buckets"
        return [*model.parameters(), *(memory["error"] for memory in tier.memory.values())]

    expected = laconic.simulate(script, 2).results
    lanes: LateLanes = request.getfixturevalue("lanes")
    found = laconic.simulate(script, 2).results
    assert lanes.fetched and not lanes.held
    assert all(torch.equal(a, b) for x, y in zip(expected, found, strict=True) for a, b in zip(x, y, strict=True))
