"""Differential privacy of clients: what is clipped, what is added, who takes part, and what the accountant says."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import optimize, stats

from laconic.errors import LaconicError
from laconic.federated.partition import Shards, iid
from laconic.federated.population import Population
from laconic.federated.privacy import epsilon, guarantee, noise_for
from laconic.federated.rule import Report, Server
from laconic.federated.rules.dp_fedavg import DPFedAvg, clipped
from laconic.federated.simulate import simulate
from tests.federated.digits import Quadratics, among_quadratics, digits


def report(change: list[float], client: int = 0, count: int = 1) -> Report:
    return Report(client, 0, 5, {"change": torch.tensor(change)}, {}, count=count)


def server(numel: int, population: int = 100) -> Server:
    return Server(torch.zeros(numel), kept={"population": population})


def test_changes_are_cut_to_the_length_and_no_shorter() -> None:
    assert clipped(torch.tensor([3.0, 4.0]), 1.0).tolist() == pytest.approx([0.6, 0.8])
    assert clipped(torch.tensor([0.3, 0.4]), 0.5).tolist() == pytest.approx([0.3, 0.4])
    for wrong in (math.nan, math.inf, -math.inf):
        assert clipped(torch.tensor([wrong, 1.0]), 1.0).tolist() == [0.0, 0.0]
    assert clipped(torch.full((10,), 1e30), 2.0).norm().item() == pytest.approx(2.0), "whose squares overflow"


def test_one_client_changes_the_model_by_no_more_than_the_clip_over_the_expected_number() -> None:
    rule = DPFedAvg(clients=4, clip=0.5, noise=0.0)
    without = rule.aggregate(server(2), [report([0.1, 0.2])]).parameters
    for change in ([300.0, -400.0], [math.nan, 0.0], [0.0, 0.3]):
        with_it = rule.aggregate(server(2), [report([0.1, 0.2]), report(change, 1)]).parameters
        assert (with_it - without).norm().item() <= 0.5 / 4 + 1e-7
    assert without.tolist() == pytest.approx([0.1 / 4, 0.2 / 4]), "the denominator is the number that is expected"


def test_a_mean_of_several_is_taken_as_their_sum() -> None:
    rule = DPFedAvg(clients=5, clip=1.0, noise=0.0)
    found = rule.aggregate(server(2), [report([0.9, 0.4], -1, count=3)])
    assert found.parameters.tolist() == pytest.approx([3 * 0.9 / 5, 3 * 0.4 / 5])


@pytest.mark.parametrize(("clip", "noise", "clients"), [(1.0, 1.0, 10), (0.2, 3.0, 40)])
def test_noise_has_the_deviation_that_is_said_whoever_has_come(clip: float, noise: float, clients: int) -> None:
    numel = 20_000
    rule = DPFedAvg(clients=clients, clip=clip, noise=noise, seed=3)
    for reports in ([], [report([0.0] * numel)]):
        added = rule.aggregate(server(numel), reports).parameters.double().numpy()
        scaled = added / (noise * clip / clients)
        assert stats.kstest(scaled, "norm").pvalue > 1e-3
    fresh = DPFedAvg(clients=clients, clip=clip, noise=noise)
    one, two = (fresh.aggregate(server(numel), []).parameters for _ in range(2))
    assert abs(np.corrcoef(one.numpy(), two.numpy())[0, 1]) < 5 / numel**0.5, "noise is fresh unless it is seeded"
    again = rule.aggregate(Server(torch.zeros(numel), 1, {"population": 9}), []).parameters
    first = rule.aggregate(server(numel), []).parameters
    assert abs(np.corrcoef(again.numpy(), first.numpy())[0, 1]) < 5 / numel**0.5, "and differs from step to step"


def test_clients_take_part_by_coins_of_their_own() -> None:
    """Numbers of clients are binomial, and two clients are not bound to each other."""
    clients = Population(Shards.of([np.array([0])] * 200))
    rule = DPFedAvg(clients=20)
    begun = rule.init(torch.zeros(1), clients)
    taken = np.zeros((2000, 200), dtype=bool)
    for number in range(2000):
        draw = np.random.default_rng(number)
        taken[number, rule.select(begun, np.arange(200), 20, draw)] = True
    counts = taken.sum(1)
    assert counts.mean() == pytest.approx(20, abs=4 * (18 / 2000) ** 0.5)
    assert counts.var() == pytest.approx(18, rel=0.15)
    assert abs(np.corrcoef(taken[:, 0], taken[:, 1])[0, 1]) < 5 / 2000**0.5
    few = rule.select(begun, np.arange(50), 20, np.random.default_rng(0))
    assert len(few) < 15, "each client's chance is that of the whole population, whoever can be reached"


def test_a_round_takes_all_that_were_drawn_and_steps_even_without_any() -> None:
    clients = Population(iid(1437, 30))
    outcome = simulate(digits(), clients, "dp_fedavg(clients=1, noise=0.0, seed=0)", 15, rate=0.1)
    counts = [len(step.clients) for step in outcome.steps]
    assert max(counts) > 1 and 0 in counts and outcome.server.version == 15


def test_changes_are_clipped_again_after_a_compressor_that_lengthens_them() -> None:
    """`qsgd` with one level sends few, long entries: their sum is no longer than the clips."""
    task = Quadratics(torch.randn(4, 300, generator=torch.Generator().manual_seed(0)) * 3)
    strategy = "dp_fedavg(clients=4, clip=0.5, noise=0.0, batch=1) / qsgd(1) / server"
    outcome = simulate(task, among_quadratics([1, 1, 1, 1]), strategy, 1, rate=0.5)
    assert 0 < outcome.parameters.norm().item() <= 0.5 + 1e-6


@pytest.mark.parametrize("seed", [0, 1])
def test_without_noise_and_clips_it_is_the_mean_of_all_alike_behind_secure_aggregation_too(seed: int) -> None:
    targets = torch.tensor([[0.4], [0.8], [-0.2], [0.6]])
    exact = float(targets.mean())
    rule = "dp_fedavg(clients=4, clip=100.0, noise=0.0, batch=1)"
    for rest in (" / none / server", " / fixed_point(14, 32) / secagg"):
        outcome = simulate(Quadratics(targets), among_quadratics([1, 5, 9, 2]), rule + rest, 1, rate=1.0, seed=seed)
        assert outcome.parameters.item() == pytest.approx(exact, abs=2.0**-14)


def exact_epsilon(noise: float, delta: float) -> float:
    """ε of one Gaussian mechanism, from its exact condition (Balle and Wang, 2018)."""

    def excess(eps: float) -> float:
        a, b = 1 / (2 * noise) - eps * noise, -1 / (2 * noise) - eps * noise
        return float(stats.norm.cdf(a) - math.exp(eps) * stats.norm.cdf(b)) - delta

    return float(optimize.brentq(excess, 0.0, 100.0))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("noise", [0.8, 2.0, 6.0])
def test_the_accountants_bound_is_above_the_exact_one_and_near_it(noise: float) -> None:
    for steps in (1, 16):
        found = epsilon(noise * steps**0.5, 1.0, steps, 1e-5)
        assert exact_epsilon(noise, 1e-5) <= found <= 1.2 * exact_epsilon(noise, 1e-5)


@pytest.mark.filterwarnings("ignore")
def test_published_guarantees_hold_with_a_bound_that_has_become_tighter() -> None:
    """Abadi et al. (2016) print ε = 1.26 for q = 0.01, σ = 4, 10,000 steps, δ = 1e-5; McMahan et al. (2018) 4.634 for
    5,000 of 763,430 clients, z = 1, 4,120 rounds, δ = 1e-9."""
    assert 0.8 * 1.26 < epsilon(4.0, 0.01, 10_000, 1e-5) < 1.26
    assert 0.8 * 4.634 < epsilon(1.0, 5000 / 763_430, 4120, 1e-9) < 4.634


@pytest.mark.filterwarnings("ignore")
def test_noise_is_found_for_a_guarantee() -> None:
    found = noise_for(2.0, 0.02, 300, 1e-5)
    assert 1.9 < epsilon(found, 0.02, 300, 1e-5) <= 2.0
    with pytest.raises(LaconicError, match="no noise"):
        noise_for(0.0, 0.02, 300, 1e-5)
    assert epsilon(0.0, 0.1, 1, 1e-5) == math.inf


@pytest.mark.filterwarnings("ignore")
def test_a_sentences_guarantee_counts_its_sampling_and_its_rounding() -> None:
    plain = guarantee("dp_fedavg(clients=20, noise=1.1)", 1000, 100, 1e-5, 10**6)
    assert plain == epsilon(1.1, 0.02, 100, 1e-5)
    more = guarantee("dp_fedavg(clients=20, noise=1.1) / none / server(over=1.5)", 1000, 100, 1e-5, 10**6)
    assert more == epsilon(1.1, 0.03, 100, 1e-5)
    grid = "dp_fedavg(clients=20, noise=1.1, clip=0.5) / fixed_point(15, 32) / secagg"
    assert guarantee(grid, 1000, 100, 1e-5, 10**6) == epsilon(1.1 * 0.5 / (0.5 + 1000 * 2.0**-15), 0.02, 100, 1e-5)
    with pytest.raises(LaconicError, match="no privacy"):
        guarantee("fedavg", 1000, 100, 1e-5, 10)
    with pytest.raises(LaconicError, match="without a memory"):
        guarantee("dp_fedavg / fixed_point(14, 32)+ef / secagg", 1000, 100, 1e-5, 10)


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1])
def test_digits_are_learned_under_noise_and_less_under_much(seed: int) -> None:
    clients = Population(iid(1437, 100))
    scores = [
        simulate(
            digits(),
            clients,
            f"dp_fedavg(clients=25, epochs=3, clip=0.5, noise={noise}, seed={seed})",
            40,
            rate=0.3,
            seed=seed,
            evaluate_every=40,
        )
        .steps[-1]
        .scores["accuracy"]
        for noise in (0.25, 10.0)
    ]
    assert scores[0] > 0.8 and scores[1] < 0.6
