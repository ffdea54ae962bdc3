"""Differential parameter dropout: the programme, masks both ways, and what they save."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch
from torch import nn

from laconic.errors import LaconicError, StrategyError
from laconic.federated.partition import Shards, by_label, iid
from laconic.federated.population import Population
from laconic.federated.rule import Report, Server
from laconic.federated.rules.feddd import FedDD, dropout_rates
from laconic.federated.simulate import simulate
from laconic.federated.task import Classification
from tests.federated.digits import digits
from tests.federated.racing import seconds_to

NUMEL = 64 * 32 + 32 + 32 * 10 + 10


def times(seed: int, clients: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    return 10 ** draw.uniform(-1, 0.3, clients), 10 ** draw.uniform(-1, 1, clients)


@pytest.mark.technique("feddd", check=1)
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("kept", "most"), [(0.5, 0.8), (0.21, 0.8), (0.9, 0.5), (0.5, 0.5), (1.0, 0.8)])
@pytest.mark.parametrize("delta", [0.0, 0.1, 10.0])
def test_the_budget_is_met_within_the_bounds(seed: int, kept: float, most: float, delta: float) -> None:
    fixed, transfer = times(seed, 11)
    value = np.random.default_rng(seed + 9).uniform(0.1, 3, 11)
    dropped = dropout_rates(fixed, transfer, value, kept, delta, most)
    assert (1 - dropped).sum() == pytest.approx(kept * 11, abs=1e-6)
    assert (dropped >= 0).all() and (dropped <= most).all()
    assert kept < 1 or (dropped == 0).all()


def test_a_budget_that_no_rates_can_meet_is_refused() -> None:
    with pytest.raises(LaconicError, match="cannot send only"):
        dropout_rates(*times(0, 4), np.ones(4), 0.1, 0.1, 0.8)
    with pytest.raises(StrategyError, match="write feddd"):
        simulate(digits(), Population(iid(100, 5)), "feddd(4)", 1, rate=0.1)


@pytest.mark.technique("feddd", check=1)
@pytest.mark.parametrize("seed", [0, 1])
def test_nothing_left_out_is_fedavg(seed: int) -> None:
    clients = Population(by_label(digits().labels.numpy()[:700], 7, 2, seed), up_bits=10 ** np.linspace(5, 6, 7))
    plain, whole = (
        simulate(digits(), clients, text, 6, rate=0.1, seed=seed) for text in ("fedavg(7)", "feddd(7, kept=1)")
    )
    torch.testing.assert_close(plain.parameters, whole.parameters, rtol=0, atol=1e-6)
    assert np.array_equal(plain.up_bytes, whole.up_bytes)


@pytest.mark.technique("feddd", check=2)
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("kept", [0.3, 0.5, 0.8])
def test_of_equal_clients_no_exchange_of_two_rates_makes_the_round_shorter(seed: int, kept: float) -> None:
    fixed, transfer = times(seed, 9)

    def longest(rates: np.ndarray) -> float:
        return float((fixed + transfer * (1 - rates)).max())

    dropped = dropout_rates(fixed, transfer, np.ones(9), kept, 0.1, 0.8)
    for a, b in permutations(range(9), 2):
        moved = dropped.copy()
        step = min(0.8 - moved[a], moved[b], 0.01)
        moved[a], moved[b] = moved[a] + step, moved[b] - step
        assert longest(moved) >= longest(dropped) - 1e-7
    alone = np.sort(10 ** np.random.default_rng(seed).uniform(0, 1, 6))
    slower_drop_more = dropout_rates(np.full(6, 0.1), alone, np.ones(6), kept, 0.1, 0.8)
    each = 0.1 + alone * (1 - slower_drop_more)
    binding = slower_drop_more[each >= each.max() - 1e-7]
    assert (np.diff(binding) >= -1e-7).all() and slower_drop_more[-1] > slower_drop_more[0]


def test_clients_that_are_worth_more_leave_out_less() -> None:
    fixed, transfer = np.full(4, 1.0), np.full(4, 1.0)
    dropped = dropout_rates(fixed, transfer, np.array([1.0, 3.0, 0.5, 1.0]), 0.5, 10.0, 0.8)
    assert dropped[1] == pytest.approx(0.0, abs=1e-6) and dropped[2] == pytest.approx(0.8, abs=1e-6)


@pytest.mark.parametrize("seed", [0, 1])
def test_each_parameter_is_averaged_over_those_who_sent_it(seed: int) -> None:
    draw = np.random.default_rng(seed)
    clients = Population(Shards.of([np.arange(n) for n in (3, 1, 6)]))
    start = torch.randn(13, generator=torch.Generator().manual_seed(seed))
    kept = {"times": times(seed, 3), "samples": np.array([3.0, 1.0, 6.0]), "losses": np.ones(3), "masks": {}}
    rule, reports, sums, counts = FedDD(clients=3), [], np.zeros(13), np.zeros(13)
    for client, size in enumerate(clients.shards.sizes):
        mask = draw.random(13) < 0.5
        mask[4] = False  # nobody sends this one
        values = draw.normal(size=13).astype(np.float32)
        sums[mask], counts[mask] = sums[mask] + size * values[mask], counts[mask] + size
        vectors = {"values": torch.from_numpy(values[mask])}
        reports.append(Report(client, 0, int(size), vectors, {"loss": 1.0}, masks={"sent": torch.from_numpy(mask)}))
    after = rule.aggregate(Server(start, kept=kept), reports).parameters.numpy()
    wanted = np.where(counts > 0, sums / np.maximum(counts, 1), start.numpy())
    np.testing.assert_allclose(after, wanted, rtol=1e-5, atol=1e-6)
    assert after[4] == start[4]


@pytest.mark.parametrize("seed", [0, 1])
def test_bytes_are_values_and_a_bit_for_each_parameter(seed: int) -> None:
    """Up: values and mask. Down: a rate, and the client's own mask, or the whole model in rounds 0 and 3."""
    clients = Population(iid(700, 5, seed), up_bits=10 ** np.linspace(4, 6, 5), down_bits=1e6)
    before_up, before_down, sizes = (np.zeros(5, dtype=int) for _ in range(3))
    for rounds in range(1, 6):
        outcome = simulate(digits(), clients, "feddd(5, every=3, delta=0)", rounds, rate=0.1, seed=seed)
        up, down = outcome.up_bytes - before_up, outcome.down_bytes - before_down
        values = np.round((1 - outcome.server.kept["dropped"]) * NUMEL).astype(int)
        whole = values == NUMEL
        assert np.array_equal(up, 4 * values + np.where(whole, 0, -(-NUMEL // 8)))
        if (rounds - 1) % 3 == 0:
            assert np.array_equal(down, np.full(5, 4 * NUMEL + 4))
        else:
            assert np.array_equal(down, 4 * sizes + 4)
        before_up, before_down, sizes = outcome.up_bytes, outcome.down_bytes, values


def skewed(seed: int, clients: int = 10) -> Population:
    """Return clients with links of 1:10, of whom one alone holds nines."""
    labels = digits().labels.numpy()
    nines, others = np.flatnonzero(labels == 9), np.flatnonzero(labels != 9)
    parts = np.array_split(np.random.default_rng(seed).permutation(others), clients)
    parts[seed % clients] = np.concatenate([parts[seed % clients], nines])
    return Population(
        Shards.of(parts), 1e-4, 10 ** np.linspace(4.5, 5.5, clients), 10 ** np.linspace(4.5, 5.5, clients)
    )


@pytest.mark.long
@pytest.mark.technique("feddd", check=3)
@pytest.mark.parametrize("seed", [0, 1])
def test_time_to_an_accuracy_is_saved_on_unequal_links(seed: int) -> None:
    """Each with the best of the same rates."""
    clients = skewed(seed)
    plain, dropping = (
        seconds_to(0.88, digits(), clients, [text], (0.3, 0.1), seed, 60)
        for text in ("fedavg(10, batch=20)", "feddd(10, batch=20)")
    )
    assert dropping < 0.7 * plain < np.inf


class WithRare(Classification):
    """Digits, judged by the nines alone."""

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        nines = self.test_labels == 9
        return {"rare": float((model(self.test_inputs[nines]).argmax(1) == 9).float().mean())}


@pytest.mark.long
@pytest.mark.technique("feddd", check=3)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_rare_class_is_learned_no_worse_than_with_some_clients_in_each_round(seed: int) -> None:
    """The mean of the last rounds, with the best of the same rates; six of ten clients send and receive a little more
    than all of them with half of their parameters do."""
    task, clients = WithRare(**vars(digits())), skewed(seed)

    def rare(text: str) -> tuple[float, int]:
        found = []
        for rate in (0.3, 0.1):
            outcome = simulate(task, clients, text, 30, rate=rate, seed=seed, evaluate_every=1)
            mean = float(np.mean([step.scores["rare"] for step in outcome.steps[-15:]]))
            found.append((mean, int(outcome.up_bytes.sum() + outcome.down_bytes.sum())))
        return max(found)

    dropping, selecting = rare("feddd(10, batch=20)"), rare("fedavg(6, batch=20)")
    assert dropping[1] <= selecting[1] and dropping[0] >= selecting[0]
    assert dropping[0] > 0.2
