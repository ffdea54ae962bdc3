"""Ok-Topk's all-reduce: its result, its words on any supports, its thresholds."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import laconic
from laconic.architecture.allreduce import AllReduce
from laconic.compression.ok_topk import OkTopK
from laconic.compression.topk import largest
from laconic.real.connect import connect
from laconic.runtime.in_flight import InFlight, complete, run_exchanges
from laconic.runtime.meeting import Meeting
from laconic.testing.in_memory import meet
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Kind


def thresholds(own: float, sums: float) -> Tensor:
    return torch.tensor([own, sums], dtype=torch.float64)


def state(own: float, sums: float, size: int, ends: Tensor | None = None) -> dict[str, Tensor]:
    """Thresholds that are reused, and regions: equal ones, unless they are given."""
    return {"thresholds": thresholds(own, sums), "ends": torch.arange(1, size) / size if ends is None else ends}


def whole(numel: int, seed: int) -> Tensor:
    """Whole numbers of which about one in fifteen is above 8 in magnitude."""
    draw = torch.Generator().manual_seed(seed)
    return (5 * torch.randn(numel, generator=draw)).round()


@pytest.mark.technique("oktopk_allreduce", check=1)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("uneven", [1.0, 2.0, 1e9])
def test_the_result_is_the_exact_sum_of_what_was_selected_above_the_threshold(size: int, uneven: float) -> None:
    for numel, seed in [(7, 0), (300, 1), (1001, 2)]:
        inputs = [whole(numel, 10 * seed + rank) for rank in range(size)]
        inputs[0][: numel // 5] *= 4  # sums above the threshold are in the first region, for the most part
        made = OkTopK(0.5, uneven=uneven)
        states = [state(8.5, 10.5, size) for _ in range(size)]
        outcomes = meet(made, inputs, states, step=1)
        total = sum((torch.where(x.abs() > 8.5, x, 0) for x in inputs), torch.zeros(numel))
        expected = torch.where(total.abs() > 10.5, total, 0) / size
        for x, outcome in zip(inputs, outcomes, strict=True):
            assert torch.equal(outcome.result, expected)
            assert outcome.sent is not None
            assert torch.equal(outcome.sent, torch.where((x.abs() > 8.5) & (expected != 0), x, 0))


def sent_words(made: OkTopK, inputs: list[Tensor], ends: Tensor | None = None) -> list[float]:
    """The payload words that each virtual worker sends with reused thresholds of a half, by its ledger; places take a
    word each, as in the paper, though fewer bits are sent."""
    size, numel = len(inputs), inputs[0].numel()
    bits = int(numel).bit_length()

    def one() -> float:
        worker = connect()
        rank = worker.rank
        exchange = made.exchange(inputs[rank].clone(), state(0.5, 0.5, size, ends), Meeting(rank, size, 1, "x"))
        carried: Any = InFlight(run_exchanges([exchange], lambda request: AllReduce().carry(request, worker.world)))
        complete([carried])
        assert int((carried.result[0].result != 0).sum()) == made.count(numel)
        return worker.ledger.sent_bytes(Kind.PAYLOAD) - 8 * (size - 1)  # all but the P integers of counts

    return [sent / 4 * 64 / (32 + bits) for sent in laconic.simulate(one, size).results]


def clustered(numel: int, k: int, size: int, at: int) -> list[Tensor]:
    """Every worker has the same k places, which lie together."""
    x = torch.zeros(numel)
    x[at : at + k] = 1.0
    return [x.clone() for _ in range(size)]


@pytest.mark.technique("oktopk_allreduce", check=2)
@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_words_of_balanced_supports_are_below_the_bound(size: int) -> None:
    numel = (1 << 12) - 1  # places of any region take at most twelve bits, as in a whole tensor
    made = OkTopK(64 * size / numel)
    k = made.count(numel)
    x = torch.zeros(numel)
    x[torch.arange(k) * (numel // k)] = 1.0
    assert max(sent_words(made, [x.clone() for _ in range(size)])) <= 6 * k * (size - 1) / size


@pytest.mark.technique("oktopk_allreduce", check=2)
@pytest.mark.parametrize("size", [4, 8])
@pytest.mark.parametrize("at", [0, 1700, 3800])
def test_words_of_clustered_supports_are_below_the_bound_only_where_counts_are_balanced(size: int, at: int) -> None:
    """Regions are of an earlier step: all sums are one owner's. Without balancing it sends each of them to everyone."""
    numel = (1 << 12) - 1
    k = 240
    inputs, bound = clustered(numel, k, size, at), 6 * k * (size - 1) / size
    ends = torch.arange(1, size) / size * 0.01 if at else 1 - torch.arange(size - 1, 0, -1) / size * 0.01
    assert max(sent_words(OkTopK(k / numel), inputs, ends)) <= bound
    assert max(sent_words(OkTopK(k / numel, uneven=1e9), inputs, ends)) > bound


@pytest.mark.parametrize("size", [2, 5])
def test_both_thresholds_are_exact_in_every_step_with_periods_of_one(size: int) -> None:
    made, numel = OkTopK(0.05, refresh=1, rebalance=1), 400
    k, states = made.count(numel), None
    for step in range(5):
        inputs = [torch.randn(numel, generator=torch.Generator().manual_seed(9 * step + r)) for r in range(size)]
        outcomes = meet(made, inputs, states, step)
        states = [outcome.state for outcome in outcomes]
        total = torch.zeros(numel)
        for x, now in zip(inputs, states, strict=True):
            places = largest(x, k)
            total[places] += x[places]
            assert float(now["thresholds"][0]) == pytest.approx(float(x.abs().topk(k).values[-1]))
        kept = largest(total, k)
        for outcome, now in zip(outcomes, states, strict=True):
            torch.testing.assert_close(outcome.result[kept], total[kept] / size)
            assert int((outcome.result != 0).sum()) == k
            assert float(now["thresholds"][1]) == pytest.approx(float(total[kept].abs().min()))
        assert all(len(now["ends"]) == size - 1 for now in states)


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1])
def test_with_default_periods_the_selected_count_is_mostly_within_twice_k(seed: int) -> None:
    """In a training on virtual workers: in the mean of every period of thresholds, in nine of ten steps, and never more
    than that once the memory is filled. (k is 40 here; single steps have from 0.1 k to, in the first period, 4 k.)
    """
    counts: list[float] = []
    choose = OkTopK.choose

    def noting(self: OkTopK, flat: Tensor, threshold: float, exact: bool) -> tuple[Tensor, float]:
        places, after = choose(self, flat, threshold, exact)
        if flat.numel() > 1000:
            counts.append(len(places) / self.count(flat.numel()))
        return places, after

    def train() -> float:
        torch.manual_seed(seed)
        model: Any = torch.nn.Sequential(torch.nn.Linear(40, 100), torch.nn.ReLU(), torch.nn.Linear(100, 10))
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.05)
        model, optimizer = laconic.distribute(model, optimizer, "oktopk_allreduce")
        draw = torch.Generator().manual_seed(100 * seed + laconic.rank())
        truth = torch.randn(40, 10, generator=torch.Generator().manual_seed(7))
        loss = torch.tensor(0.0)
        for _ in range(96):
            x = torch.randn(32, 40, generator=draw)
            loss = torch.nn.functional.cross_entropy(model(x), (x @ truth).argmax(1))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return float(loss.detach())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OkTopK, "choose", noting)
        losses = laconic.simulate(train, 4).results
    assert max(losses) < 2.25 < math.log(10)
    periods = torch.tensor(counts).view(3, 4 * 32)  # the workers' counts of a step are together
    assert all(0.5 <= mean <= 2 for mean in periods.mean(1).tolist()), periods.mean(1)
    assert float(((periods >= 0.5) & (periods <= 2)).float().mean()) > 0.9
    assert float(periods[1:].max()) <= 2


def test_several_tensors_share_their_messages() -> None:
    """Of two workers and tensors of different lengths: each has the result that it has alone."""
    made = OkTopK(0.3)
    inputs = [[whole(numel, 31 * rank + numel) for numel in (30, 55, 7)] for rank in range(2)]

    def together() -> list[Tensor]:
        worker = connect()
        meets = [Meeting(worker.rank, 2, 0, name) for name in "abc"]
        exchanges = [
            made.exchange(x.clone(), made.init(TensorSpec("x", tuple(x.shape), x.dtype)), meeting)
            for x, meeting in zip(inputs[worker.rank], meets, strict=True)
        ]
        carried: Any = InFlight(run_exchanges(exchanges, lambda request: AllReduce().carry(request, worker.world)))
        complete([carried])
        return [outcome.result for outcome in carried.result]

    for found in laconic.simulate(together, 2).results:
        for place, result in enumerate(found):
            alone = meet(made, [inputs[rank][place] for rank in range(2)])[0].result
            assert torch.equal(result, alone)
