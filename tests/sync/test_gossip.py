"""D-PSGD and D²: the mean moves as it should, models come together, and data may differ."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import laconic
from laconic.errors import StrategyError
from laconic.network.network_tree import Network
from laconic.real.connect import connect
from laconic.virtual.compute import Compute
from laconic.worker import Kind
from tests.sync.gossiping import DIMENSION, Point, classify, draws, mixing_of, sgd, walk

PATH = 'edges("0-1,1-2,2-3")'
GRAPHS = ["ring", "torus", "exponential", "one_peer_exponential", "random_matching", 'edges("0-1,1-2,2-3,3-4,4-5,1-4")']


@pytest.mark.long
@pytest.mark.technique("dpsgd", check=1)
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_mean_moves_by_the_mean_update(graph: str, momentum: float) -> None:
    seen = walk(f"dpsgd / {graph}", 6, 20, sgd(0.1, momentum), draws(6, DIMENSION) ** 2, draws(6, DIMENSION, seed=1))
    velocity, mean = np.zeros(DIMENSION), seen.mean[0]
    for step in range(20):
        velocity = momentum * velocity + seen.gradients[step].mean(axis=0)
        mean = mean - 0.1 * velocity
        np.testing.assert_allclose(seen.mean[step + 1], mean, atol=1e-12)
    assert seen.disagreement[-1] > 1e-3  # they differ all the while


@pytest.mark.technique("dpsgd", check=1)
def test_each_step_mixes_the_models_before_it() -> None:
    seen = walk("dpsgd", 5, 12, targets=draws(5, DIMENSION))
    weights = mixing_of("dpsgd", 5)
    for step in range(12):
        expected = weights.at(step) @ seen.x[step] - 0.1 * seen.gradients[step]
        np.testing.assert_allclose(seen.x[step + 1], expected, atol=1e-12)


@pytest.mark.long
@pytest.mark.technique("dpsgd", check=2)
@pytest.mark.parametrize("graph", ["ring", "torus", "star", 'edges("0-1,1-2,2-3,3-4,4-5,5-6,6-7,0-4")'])
def test_models_come_together_at_least_by_sqrt_rho_per_step(graph: str) -> None:
    seen = walk(f"dpsgd / {graph}", 8, 15, curvature=0.0, starts=draws(8, DIMENSION))
    rate = mixing_of(f"dpsgd / {graph}", 8).rho ** 0.5
    apart = seen.disagreement[1:]  # where each starts is its update of the first step
    assert (apart[1:] <= rate * apart[:-1] + 1e-12).all()
    assert apart[-1] < 0.5 * apart[0]


@pytest.mark.long
@pytest.mark.technique("dpsgd", check=3)
@pytest.mark.technique("gossip", check=3)
@pytest.mark.parametrize("workers", [4, 8, 16, 64])
def test_the_busiest_worker_sends_its_degree_in_models(workers: int) -> None:
    model_bytes = 8 * DIMENSION
    for graph, degree in {"ring": 2, "star": workers - 1, "one_peer_exponential": 1}.items():
        seen = walk(f"dpsgd / {graph}", workers, 3)
        assert max(seen.sent_bytes) == 3 * degree * model_bytes
        assert mixing_of(f"dpsgd / {graph}", workers).degree == degree


@pytest.mark.long
@pytest.mark.technique("dpsgd", check=3)
def test_a_ring_of_eight_learns_as_well_as_everyone_together() -> None:
    """The mean of three seeds: a point is five images of one."""

    def accuracy(strategy: str) -> float:
        ends = [classify(strategy, 8, 100, sgd(0.3), seed=seed, finish=True)[0].accuracy for seed in range(3)]
        return float(np.mean(ends))

    assert accuracy("dpsgd") >= accuracy("bsp") - 1


def test_the_exchange_is_sent_while_the_next_gradient_is_computed() -> None:
    """Longer than half a step and shorter than a whole one: hidden for dpsgd, paid by the rule that mixes at once."""
    network, compute = Network.flat(4, 8 * 8 * DIMENSION * 2 / 0.8), Compute(0.5, 0.5)

    def seconds(strategy: str) -> float:
        def run() -> float:
            model = Point()
            model, optimizer = laconic.distribute(model, sgd()(model.parameters()), strategy)
            begin = connect().clock_seconds()
            for _ in range(10):
                model(torch.ones(DIMENSION), torch.zeros(DIMENSION)).backward()
                optimizer.step()
                optimizer.zero_grad()
            return connect().clock_seconds() - begin

        return max(laconic.simulate(run, 4, network, compute).results)

    assert seconds("dpsgd") == pytest.approx(10.0)
    assert seconds("cooperative") == pytest.approx(18.0)


@pytest.mark.technique("gossip", check=1)
def test_a_complete_graph_is_an_all_reduce_of_parameters() -> None:
    seen = walk("cooperative / complete", 6, 8, targets=draws(6, DIMENSION))
    for step in range(8):
        after = seen.x[step] - 0.1 * seen.gradients[step]
        np.testing.assert_allclose(seen.x[step + 1], np.tile(after.mean(axis=0), (6, 1)), atol=1e-12)


@pytest.mark.technique("gossip", check=2)
@pytest.mark.parametrize(
    "words", ["dpsgd", "d2 / torus", "matcha", "sgp", "dpsgd / bf16", "d2 / fp16 / torus", "cooperative / bf16"]
)
def test_mixing_keeps_the_sum_of_the_models(words: str) -> None:
    """Also where what is sent is rounded: a worker's own values are not."""
    starts = draws(6, DIMENSION)
    seen = walk(words, 6, 10, curvature=0.0, starts=starts)
    np.testing.assert_allclose(seen.mean[1:], np.tile(starts.mean(axis=0), (10, 1)), atol=1e-9)
    assert seen.disagreement[-1] < 0.5 * seen.disagreement[1]


@pytest.mark.parametrize("words,element", [("none", 4), ("bf16", 2), ("fp16", 2)])
def test_casts_shorten_what_is_sent(words: str, element: int) -> None:
    def run() -> float:
        model = torch.nn.Linear(30, 10)
        model, optimizer = laconic.distribute(model, sgd()(model.parameters()), f"dpsgd / {words}")
        before = connect().ledger.sent_bytes(Kind.PAYLOAD)
        model(torch.ones(2, 30)).sum().backward()
        optimizer.step()
        return connect().ledger.sent_bytes(Kind.PAYLOAD) - before

    assert laconic.simulate(run, 4).results == [2 * 310 * element] * 4


@pytest.mark.long
def test_finish_brings_everybody_to_the_mean_and_training_goes_on() -> None:
    def run(strategy: str) -> list[torch.Tensor]:
        model, out = Point(), []
        model, optimizer = laconic.distribute(model, sgd()(model.parameters()), strategy)
        goal = torch.full((DIMENSION,), float(laconic.rank()))
        for step in range(9):
            model(torch.ones(DIMENSION), goal).backward()
            optimizer.step()
            optimizer.zero_grad()
            if step % 4 == 3:
                out.append(model.x.detach().clone())
                laconic.finish(model, optimizer)
                out.append(model.x.detach().clone())
        return out

    for strategy in (
        "dpsgd",
        "d2",
        "sgp(2)",
        'sgp / edges("0>1,1>2,2>3,3>0,0>2")',
        "detsgrad",
        "cooperative(3, auxiliary=1) / star",
    ):
        results = laconic.simulate(lambda: run(strategy), 4).results  # noqa: B023
        for before, after in ((0, 1), (2, 3)):
            assert not torch.allclose(results[0][before], results[1][before])
            assert all(torch.equal(r[after], results[0][after]) for r in results)
        expected = torch.full((DIMENSION,), 1.5, dtype=torch.float64) * (1 - 0.9**4)  # quadratics: as if all were one
        if strategy != "cooperative(3, auxiliary=1) / star":
            torch.testing.assert_close(results[0][1], expected, rtol=0, atol=0.06)


# ------------------------------------------------------------------------------------------------ D²


def heterogeneous() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Curvatures and targets that differ per worker, and the optimum of their sum."""
    curvature, targets = np.random.default_rng(0).uniform(0.5, 1.5, (4, DIMENSION)), 3 * draws(4, DIMENSION, seed=1)
    return curvature, targets, (curvature * targets).sum(axis=0) / curvature.sum(axis=0)


@pytest.mark.long
@pytest.mark.technique("d2", check=1)
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_d2_finds_the_common_optimum_where_dpsgd_stalls(momentum: float) -> None:
    curvature, targets, optimum = heterogeneous()
    make = sgd(0.3 * (1 - momentum), momentum)
    exact = walk("d2", 4, 200, make, curvature, targets)
    stalled = walk("dpsgd", 4, 200, make, curvature, targets)
    assert np.abs(exact.x[-1] - optimum).max() < 1e-8
    assert np.abs(stalled.x[-1] - optimum).max() > 0.1


@pytest.mark.technique("d2", check=1)
def test_d2_follows_its_recursion() -> None:
    curvature, targets, _ = heterogeneous()
    seen = walk(f"d2 / {PATH}", 4, 15, sgd(0.05), curvature, targets)
    matrix = mixing_of(f"d2 / {PATH}", 4).at(0)
    np.testing.assert_allclose(seen.x[1], matrix @ (seen.x[0] - 0.05 * seen.gradients[0]), atol=1e-12)
    for t in range(1, 15):
        y = 2 * seen.x[t] - seen.x[t - 1] - 0.05 * (seen.gradients[t] - seen.gradients[t - 1])
        np.testing.assert_allclose(seen.x[t + 1], matrix @ y, atol=1e-11)


@pytest.mark.long
def test_d2_stays_at_the_optimum_when_the_rate_changes() -> None:
    curvature, targets, optimum = heterogeneous()

    class Falling(torch.optim.SGD):
        """A schedule of its own."""

        def step(self, closure: None = None) -> None:  # type: ignore[override]
            self.param_groups[0]["lr"] = next(self.rates)
            super().step(closure)

    def make(parameters: object) -> torch.optim.Optimizer:
        made = Falling(parameters, lr=0.3)  # type: ignore[arg-type]
        made.rates = iter([0.3] * 200 + [0.05] * 50)  # type: ignore[attr-defined]
        return made

    seen = walk("d2", 4, 250, make, curvature, targets)
    assert np.abs(seen.x[200:] - optimum).max() < 1e-7


@pytest.mark.technique("d2", check=2)
def test_d2_replaces_weights_that_are_too_negative(capfd: pytest.CaptureFixture[str]) -> None:
    curvature, targets, _ = heterogeneous()
    curvature, targets = np.resize(curvature, (8, DIMENSION)), np.resize(targets, (8, DIMENSION))
    assert mixing_of("d2", 8).lambda_min == pytest.approx(-1 / 3)
    seen = walk("d2", 8, 5, sgd(0.05), curvature, targets)
    assert capfd.readouterr().err.count("lambda_min above -1/3") == 1, "one worker speaks for all"
    matrix = (mixing_of("d2", 8).at(0) + np.eye(8)) / 2
    np.testing.assert_allclose(seen.x[1], matrix @ (seen.x[0] - 0.05 * seen.gradients[0]), atol=1e-12)
    walk("d2", 5, 1)
    assert capfd.readouterr().err == ""


@pytest.mark.long
@pytest.mark.technique("d2", check=3)
def test_two_classes_per_worker_d2_learns_more_than_dpsgd() -> None:
    classes = [(0, 1), (2, 3), (4, 5), (6, 7)]
    exact, plain = (classify(rule, classes, 160, sgd(0.1)) for rule in ("d2", "dpsgd"))
    assert np.mean([r.loss for r in exact]) < np.mean([r.loss for r in plain])


# ------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    "text,reason",
    [
        ('dpsgd / edges("0>1,1>2,2>3,3>4,4>0,2>1")', "rows and columns"),
        ("d2 / exponential", "both directions"),
        ("d2 / random_matching", "same neighbours"),
        ("matcha / one_peer_exponential", "both directions"),
        ("detsgrad / random_matching", "same neighbours"),
    ],
)
def test_rules_refuse_graphs_they_cannot_use(text: str, reason: str) -> None:
    with pytest.raises(StrategyError, match=reason):
        walk(text, 5, 1)
