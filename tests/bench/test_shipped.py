"""Points of a curve on the way: the model that would be shipped there, and a training that goes on as if never seen."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from bench.rungs.shipped import Aside, can_be_looked_at
from bench.rungs.training import train
from torch import Tensor, nn
from torch.nn import functional

import laconic
from laconic.real.connect import connect
from laconic.strategy import Strategy
from tests.bench.test_ladder import Line, run

STEPS, POINTS = 13, (4, 5, 9)
RULES = [
    "bsp",
    "bsp / topk(0.3)+ef",
    "bsp / none / allreduce / dear",
    "accumulate(3)",
    "local(4)",
    "diloco(4)",
    "diloco(3) / two_bit+ef",
    "slowmo(3)",
    "streaming_diloco(6, fragments=2, overlap=3) / e3m0",
    "overlap_local_sgd(4)",
    "osp(share=1, delay=2) / none / allreduce",
    "dpsgd / none / gossip / ring",
    "choco / topk(0.3) / gossip / ring",
    "bsp until step 5, then local(3)",
    "bsp until step 3, then frozen_adam / scaled_sign+ef",
]
MEET = (*RULES[:4], RULES[-1])
"""Rules under which all workers hold the same after every step."""


def trained(text: str, steps: int, points: Sequence[int] = ()) -> tuple[list[Tensor], list[Tensor], float]:
    """What rank 0 sees at points on the way, its own model there, and with the last of them at the end; and the bytes
    of all workers."""

    def flat(model: nn.Module) -> Tensor:
        return torch.cat([x.detach().flatten() for x in (*model.parameters(), *model.buffers())]).clone()

    def work() -> tuple[list[Tensor], list[Tensor], float]:
        torch.manual_seed(0)
        layers = nn.Linear(6, 9), nn.BatchNorm1d(9), nn.Tanh(), nn.Dropout(0.2), nn.Linear(9, 5)
        model: nn.Module = nn.Sequential(*layers)
        optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        model, optimizer = laconic.distribute(model, optimizer, text)
        draw, aside = torch.Generator().manual_seed(1 + laconic.rank()), Aside()
        seen, own = [], []
        for step in range(1, steps + 1):
            x, y = torch.randn(8, 6, generator=draw), torch.randint(5, (8,), generator=draw)
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            if step in points:
                own.append(flat(model))
                with aside.shipped(model, optimizer):
                    torch.rand(7)
                    seen.append(flat(model))
        laconic.finish(model, optimizer)
        return [*seen, flat(model)], own, connect().ledger.sent_bytes() - aside.sent_bytes

    found = laconic.simulate(work, 3).results
    return found[0][0], found[0][1], sum(sent for _, _, sent in found)


@pytest.mark.parametrize("text", RULES)
def test_a_point_is_what_would_be_shipped_and_leaves_no_trace(text: str) -> None:
    seen, own, sent = trained(text, STEPS, POINTS)
    (end,), _, bytes_without = trained(text, STEPS)
    assert torch.equal(seen[-1], end)
    assert sent == pytest.approx(bytes_without, abs=1e-3)
    for point, there in zip(POINTS, seen, strict=False):
        (ended, *_), _, _ = trained(text, point)
        assert torch.equal(there, ended), f"at step {point}"
    assert text in MEET or not all(torch.equal(*pair) for pair in zip(own, seen, strict=False))


def test_where_it_cannot_be_seen_the_end_alone_is_evaluated() -> None:
    """On servers, whose state is not the workers', and where the order of arrivals decides."""
    later = "bsp until step 5, then bsp / none / ps"
    for text in ("asp / none / ps", "ssp(2) / none / ps", "hogwild / none / shared", later):
        assert not can_be_looked_at(Strategy.parse(text)), text
    assert all(can_be_looked_at(Strategy.parse(text)) for text in RULES)
    task = Line()
    row = train(run("asp / none / ps"), task)
    assert [step for step, _ in row["curve"]] == [20] and len(task.evaluated) == 1


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "lamb", "muon"])
@pytest.mark.parametrize("method", ["diloco(4)", "local(10)", "bsp"])
def test_a_row_has_the_shipped_model_on_the_way_and_the_bytes_of_the_training(
    method: str, optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, plain, asked = Line(), Line(), replace(run(method), optimizer=optimizer)
    row = train(asked, task)
    monkeypatch.setattr(Aside, "shipped", lambda *_: nullcontext())
    own: dict[str, Any] = train(asked, plain)
    assert row["curve_of"] == "shipped" and len(row["curve"]) == len(own["curve"]) == 10
    assert torch.equal(task.evaluated[-1], plain.evaluated[-1]) and row["bytes"] == own["bytes"]
    assert (row["curve"] == own["curve"]) is (method == "bsp")
