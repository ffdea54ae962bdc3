"""Hogwild: one memory, no locks; on real processes, and replayed by virtual workers."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import laconic
from laconic.architecture.shared_memory import Shared
from laconic.real.connect import connect
from laconic.virtual.compute import Compute
from laconic.worker import Kind
from tests.real.pool import Pool, PoolRank
from tests.sync import rounds

FEATURES, EXAMPLES, PASSES, BATCH = 1000, 1000, 4, 8
NON_ZEROS = FEATURES // 100


class Logistic(nn.Module):
    """Logistic regression on sparse examples, whose gradient is as sparse as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.EmbeddingBag(FEATURES, 1, mode="sum", sparse=True)
        self.bias = nn.Parameter(torch.zeros(1))
        nn.init.zeros_(self.weights.weight)

    def forward(self, indices: Tensor, values: Tensor) -> Tensor:
        return self.weights(indices, per_sample_weights=values).squeeze(1) + self.bias


@cache
def sparse_data() -> tuple[Tensor, Tensor, Tensor]:
    """Of every example its features that are not zero, their values, and its label."""
    draw = torch.Generator().manual_seed(0)
    indices = torch.stack([torch.randperm(FEATURES, generator=draw)[:NON_ZEROS] for _ in range(EXAMPLES)])
    values = torch.randn(EXAMPLES, NON_ZEROS, generator=draw)
    truth = torch.randn(FEATURES, generator=draw)
    return indices, values, ((truth[indices] * values).sum(dim=1) > 0).float()


def fit(model: Logistic, optimizer: torch.optim.Optimizer, rank: int, size: int, passes: int = PASSES) -> None:
    """So many passes over all examples, of which every worker takes its share."""
    indices, values, labels = sparse_data()
    for number in range(passes):
        order = torch.randperm(EXAMPLES, generator=torch.Generator().manual_seed(number))[rank::size]
        for chosen in order.split(BATCH):
            optimizer.zero_grad()
            functional.binary_cross_entropy_with_logits(
                model(indices[chosen], values[chosen]), labels[chosen]
            ).backward()
            optimizer.step()
        for group in optimizer.param_groups:
            group["lr"] *= 0.9


@torch.no_grad()
def loss_of(model: Logistic) -> float:
    indices, values, labels = sparse_data()
    return functional.binary_cross_entropy_with_logits(model(indices, values), labels).item()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.5)


@cache
def serial_loss() -> float:
    model = Logistic()
    fit(model, sgd(model), 0, 1)
    return loss_of(model)


@pytest.mark.technique("hogwild", check=1)
def test_one_worker_is_serial_sgd_to_the_bit() -> None:
    def body() -> rounds.Run:
        return rounds.train("hogwild", 20, rounds.with_momentum)

    alone = rounds.by_hand(20, 20, rounds.with_momentum, None, workers=1)
    rounds.assert_same(laconic.simulate(body, 1).results, alone, tolerance=0)


@pytest.mark.long
@pytest.mark.technique("hogwild", check=1)
def test_one_worker_is_serial_sgd_to_the_bit_on_sparse_gradients() -> None:
    def body() -> Tensor:
        model = Logistic()
        distributed, optimizer = laconic.distribute(model, sgd(model), "hogwild")
        fit(distributed, optimizer, 0, 1, passes=1)  # type: ignore[arg-type]
        return rounds.flat(model.parameters())

    serial = Logistic()
    fit(serial, sgd(serial), 0, 1, passes=1)
    assert torch.equal(laconic.simulate(body, 1).results[0], rounds.flat(serial.parameters()))


def together(member: PoolRank) -> tuple[float, float, Tensor]:
    model = Logistic()
    distributed, optimizer = laconic.distribute(model, sgd(model), "hogwild", process_group=member.process_group)
    ledger = connect().ledger
    before = ledger.sent_bytes(Kind.PAYLOAD)
    fit(distributed, optimizer, member.rank, member.size)  # type: ignore[arg-type]
    sent = ledger.sent_bytes(Kind.PAYLOAD) - before
    laconic.finish(distributed, optimizer)
    return loss_of(model), sent, rounds.flat(model.parameters())


@pytest.mark.long
@pytest.mark.technique("hogwild", check=2)
def test_two_processes_get_as_far_as_one_on_sparse_data(pool: Pool) -> None:
    (loss, sent, mine), (_, _, theirs) = pool.run(together, workers=2)
    assert serial_loss() < 0.8 * 0.693 and abs(loss - serial_loss()) <= 0.02 * serial_loss()
    assert sent == 0 and torch.equal(mine, theirs)


# ---------------------------------------------------------------------------------------------- lag


def replay(dense: bool, workers: int) -> float:
    """The loss after three passes over examples of length one; among several workers with coordinates that lag."""
    draw = torch.Generator().manual_seed(1)
    features, examples = 300, 384
    x = torch.rand(examples, features, generator=draw)
    if not dense:
        x *= torch.rand(examples, features, generator=draw).argsort(dim=1).argsort(dim=1) < features // 100
    x = functional.normalize(x, dim=1)
    y = ((x - x.mean(dim=0)) @ torch.randn(features, generator=draw) > 0).float()

    def body() -> float:
        model = nn.Linear(features, 1)
        nn.init.zeros_(model.weight)
        nn.init.zeros_(model.bias)
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
        model, optimizer = laconic.distribute(model, optimizer, "hogwild(delay=0.5)" if workers > 1 else "hogwild")
        for number in range(3):
            order = torch.randperm(examples, generator=torch.Generator().manual_seed(number))
            for chosen in order[laconic.rank() :: workers].split(2):
                optimizer.zero_grad()
                functional.binary_cross_entropy_with_logits(model(x[chosen]).squeeze(1), y[chosen]).backward()
                optimizer.step()
        laconic.finish(model, optimizer)
        with torch.no_grad():
            return functional.binary_cross_entropy_with_logits(model(x).squeeze(1), y).item()

    compute = Compute(forward_seconds=0.01, slowness=(1.0, 1.05, 0.97, 1.02))
    return laconic.simulate(body, workers, compute=compute).results[0]


@pytest.mark.long
@pytest.mark.technique("hogwild", check=3)
def test_lag_hurts_where_examples_overlap() -> None:
    sparse, dense = (replay(kind, 8) / replay(kind, 1) for kind in (False, True))
    assert dense > 1.05 * sparse and sparse < 1.05


# ---------------------------------------------------------------------------------------------- memory


def test_virtual_workers_see_each_others_writes_in_the_order_of_time() -> None:
    def body() -> list[float]:
        model = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(model.weight)
        model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=1.0), "hogwild")
        seen = []
        for _ in range(3):
            (-model.weight.sum() + 0 * model(torch.ones(1, 1)).sum()).backward()
            optimizer.step()
            optimizer.zero_grad()
            seen.append(model.weight.item())
        return seen

    compute = Compute(forward_seconds=1.0, slowness=(1, 1.7))
    assert laconic.simulate(body, 2, compute=compute).results == [[1, 3, 4], [2, 5, 6]]  # at 1, 2, 3 and 1.7, 3.4, 5.1


def test_a_phase_that_ends_gives_everybody_its_own_memory() -> None:
    run, *others = rounds.simulated("hogwild until step 3, then bsp", 6, workers=3)
    assert all(torch.equal(run.path[-1], other.path[-1]) for other in others)
    assert len({next(r.model.parameters()).data_ptr() for r in (run, *others)}) == 3


def test_the_end_waits_for_all_by_a_mean_of_one_number() -> None:
    def body() -> float:
        model = nn.Linear(5, 3)
        model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), "hogwild")
        before = connect().ledger.sent_bytes()
        laconic.finish(model, optimizer)
        return connect().ledger.sent_bytes() - before

    one_number = 2 * 2 / 3 * 4  # a ring of three sends two thirds of it twice
    assert laconic.simulate(body, 3).results == pytest.approx([one_number] * 3)


def test_steps_send_what_the_shared_memory_promises_which_is_nothing() -> None:
    def body() -> float:
        model = nn.Linear(5, 3)
        model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), "hogwild")
        ledger = connect().ledger
        before = ledger.sent_bytes()
        for _ in range(3):
            model(torch.ones(2, 5)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return ledger.sent_bytes() - before

    sent = laconic.simulate(body, 3, compute=Compute(forward_seconds=1.0, slowness=(1.0, 1.4, 2.3))).results
    assert list(sent) == [3 * Shared().sent_bytes(4 * 18, 3)] * 3 == [0.0] * 3
