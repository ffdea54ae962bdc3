"""Two stages: what is held back arrives an iteration later, everywhere alike, and costs no time of its own."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

import laconic
from laconic.errors import StrategyError
from laconic.network.network_tree import Network
from laconic.real.connect import connect
from laconic.virtual.compute import Compute
from tests.sync import digits, rounds

WORKERS = 4


@pytest.mark.long
@pytest.mark.technique("osp", check=1)
@pytest.mark.parametrize("make", [rounds.sgd, rounds.with_momentum, rounds.adamw])
@pytest.mark.parametrize("strategy", ["osp(share=0)", "osp"])
def test_without_a_budget_it_is_bsp_to_the_bit(strategy: str, make: rounds.Make) -> None:
    mine, everyone = rounds.simulated(strategy, 25, make), rounds.simulated("bsp / ps", 25, make)
    rounds.assert_same(mine, [run.path[-1] for run in everyone], tolerance=0)


@pytest.mark.long
@pytest.mark.technique("osp", check=1)
@pytest.mark.parametrize("architecture", ["ps", "allreduce"])
@pytest.mark.parametrize("make", [rounds.sgd, rounds.with_momentum])
def test_all_replicas_agree_after_each_correction(architecture: str, make: rounds.Make) -> None:
    def body() -> list[torch.Tensor]:
        run = rounds.train(f"osp(share=1) / {architecture}", 0, make)
        agreed = []
        for step in range(15):
            rounds.loss(run.model, laconic.rank(), step).backward()
            run.optimizer.step()
            run.optimizer.zero_grad()
            state = run.optimizer.session.partitions[0].tiers[0].sync_state
            agreed.append(rounds.flat(state[f"x.{i}"] for i in range(len(list(run.model.parameters())))))
        laconic.finish(run.model, run.optimizer)
        return [*agreed, rounds.flat(run.model.parameters())]

    first, *others = laconic.simulate(body, WORKERS).results
    for other in others:
        for mine, theirs in zip(first, other, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-6)
    assert not torch.equal(first[-1], first[-2])


@pytest.mark.parametrize("architecture", ["ps", "allreduce"])
@pytest.mark.parametrize("delay", [1, 2, 3])
@pytest.mark.parametrize("make", [rounds.sgd, rounds.with_momentum, rounds.adamw])
def test_predictions_are_undone_and_the_optimizer_steps_on_means_alone(
    make: rounds.Make, delay: int, architecture: str
) -> None:
    """Every tensor in the second stage: a common model steps on the means of some iterations before, and each worker
    computes at that model after steps of its own, of which the optimizer remembers nothing."""
    common, replicas = rounds.net(), [rounds.net() for _ in range(2)]
    optimizer, flying = make(common.parameters()), list[list[list[torch.Tensor]]]()

    def step_on_means() -> None:
        for p, *parts in zip(common.parameters(), *flying.pop(0), strict=True):
            p.grad = torch.stack(parts).mean(dim=0)
        optimizer.step()

    for step in range(6):
        own = []
        for rank, replica in enumerate(replicas):
            replica.zero_grad()
            rounds.loss(replica, rank, step).backward()
            own.append([p.grad.clone() for p in replica.parameters()])  # type: ignore[union-attr]
        if len(flying) == delay:
            step_on_means()
        flying.append(own)
        for rank, replica in enumerate(replicas):
            replica.load_state_dict(common.state_dict())
            ahead = make(replica.parameters())
            ahead.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            for gradients in flying:
                for p, gradient in zip(replica.parameters(), gradients[rank], strict=True):
                    p.grad = gradient.clone()
                ahead.step()

    def body() -> tuple[rounds.Run, torch.Tensor]:
        run = rounds.train(f"osp(share=1, delay={delay}) / {architecture}", 6, make)
        state = run.optimizer.session.partitions[0].tiers[0].sync_state
        assert sum(name[:2] in ("x.", "g.") for name in state) == delay * len(list(run.model.parameters()))
        laconic.finish(run.model, run.optimizer)
        return run, rounds.flat(run.model.parameters())

    runs, ends = zip(*laconic.simulate(body, 2).results, strict=True)
    rounds.assert_same(runs, [rounds.flat(replica.parameters()) for replica in replicas], 1e-12)
    while flying:
        step_on_means()
    for end in ends:
        torch.testing.assert_close(end, rounds.flat(common.parameters()))


@pytest.mark.parametrize("delay", [1, 3])
def test_a_run_is_resumed_with_averages_in_flight(delay: int, tmp_path: Path) -> None:
    strategy = f"osp(share=1, delay={delay}) / allreduce"

    def save(run: rounds.Run, step: int) -> None:
        if step == 5:
            laconic.checkpoint(tmp_path, run.model, run.optimizer, step=step)

    whole = laconic.simulate(lambda: rounds.train(strategy, 11, rounds.adamw, after=save), WORKERS).results
    rest = laconic.simulate(lambda: rounds.train(strategy, 11, rounds.adamw, checkpoint=tmp_path), WORKERS).results
    for a, b in zip(whole, rest, strict=True):
        assert len(b.path) == 11 - 5 and torch.equal(a.path[-1], b.path[-1])


def test_memory_of_an_exchange_that_is_not_complete_is_refused() -> None:
    with pytest.raises(StrategyError, match="left in its memory; write osp"):
        laconic.Strategy.parse("osp(share=1, delay=2) / int4+ef / allreduce")
    with pytest.raises(StrategyError, match=r"write osp\(share=1, delay=2\)"):
        laconic.Strategy.parse("osp(share=0.5, delay=2)")


def test_a_delay_of_several_iterations_hides_an_exchange_that_is_longer_than_one() -> None:
    """Four workers, an exchange of two and a half steps: what the delay does not cover is exposed, and no more of them
    are in flight than the transport has lanes."""

    def seconds(delay: int, lanes: int) -> float:
        network = replace(Network.flat(WORKERS, 1e12, 0.05), lanes=lanes)

        def body() -> float:
            ends, clock = list[float](), connect().clock_seconds
            strategy = f"osp(share=1, delay={delay}) / allreduce"
            rounds.train(strategy, 12, after=lambda run, step: ends.append(clock()))
            return (ends[-1] - ends[5]) / 6

        return max(laconic.simulate(body, WORKERS, network, Compute(0.04, 0.08)).results)

    exchange = 2 * (WORKERS - 1) * 0.05
    assert seconds(1, 3) == pytest.approx(exchange, rel=0.02)
    assert seconds(2, 3) == seconds(3, 2) == pytest.approx(exchange / 2, rel=0.02)
    assert seconds(3, 3) == pytest.approx(0.12, rel=0.02)


@pytest.mark.long
def test_it_is_what_one_writes_by_hand() -> None:
    """Every tensor in the second stage, plain SGD: x - eta·g_i now, + eta·g_i - eta·mean an iteration later."""
    replicas, late = [rounds.net() for _ in range(WORKERS)], None
    for step in range(9):
        for rank, replica in enumerate(replicas):
            replica.zero_grad()
            rounds.loss(replica, rank, step).backward()
        own = [[p.grad.clone() for p in replica.parameters()] for replica in replicas]  # type: ignore[union-attr]
        means = [torch.stack(parts).mean(dim=0) for parts in zip(*own, strict=True)]
        with torch.no_grad():
            for rank, replica in enumerate(replicas):
                for i, p in enumerate(replica.parameters()):
                    if late is not None:
                        p += 0.1 * late[0][rank][i] - 0.1 * late[1][i]
                    p -= 0.1 * own[rank][i]
        late = own, means
    rounds.assert_same(rounds.simulated("osp(share=1)", 9), [rounds.flat(r.parameters()) for r in replicas], 1e-12)


def network(seed: int) -> nn.Module:
    """The digits' network with one layer more, so that half of the bytes can wait."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 10))


def accelerating(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def train(strategy: str, steps: int, seed: int = 0) -> tuple[float, float, float]:
    """Digits on one worker: seconds per step once it runs, bytes held back at the end, accuracy in points."""
    images, labels, test_images, test_labels = digits.data()
    mine = torch.arange(laconic.rank(), len(labels), laconic.size())
    draw = torch.Generator().manual_seed(1000 * seed + laconic.rank())
    model = network(seed)
    model, optimizer = laconic.distribute(model, accelerating(model.parameters()), strategy)
    worker, ends = connect(), []
    for _ in range(steps):
        chosen = mine[torch.randint(len(mine), (16,), generator=draw)]
        loss = functional.cross_entropy(model(images[chosen]), labels[chosen])
        laconic.log(loss=loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        ends.append(worker.clock_seconds())
    held = optimizer.session.noted.get("held_bytes", 0.0)  # type: ignore[attr-defined]
    laconic.finish(model, optimizer)
    with torch.no_grad():
        right = (model(test_images).argmax(dim=1) == test_labels).float().mean().item()
    return (ends[-1] - ends[4]) / (steps - 5), held, 100 * right


MODEL_BYTES = sum(p.nbytes for p in network(0).parameters())
NETWORK = Network.flat(WORKERS + 1, 1e8)
BSP_SECONDS = 2 * WORKERS * 8 * MODEL_BYTES / 1e8
"""What a server's link needs for everybody's gradients and means."""


def timed(strategy: str, steps: int, compute_seconds: float, seed: int = 0) -> tuple[float, float, float]:
    compute = Compute(forward_seconds=compute_seconds)
    ends = laconic.simulate(lambda: train(strategy, steps, seed), WORKERS, NETWORK, compute, servers=1).results
    return max(seconds for seconds, _, _ in ends), ends[0][1], ends[0][2]


@pytest.mark.long
@pytest.mark.technique("osp", check=2)
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_what_fits_in_the_computation_costs_no_time(share: float) -> None:
    seconds, held, _ = timed(f"osp(share={share})", 25, 1.1 * BSP_SECONDS)
    first_stage = BSP_SECONDS * (1 - held / MODEL_BYTES)
    assert 0.7 * share * MODEL_BYTES < held <= share * MODEL_BYTES
    assert seconds == pytest.approx(1.1 * BSP_SECONDS + first_stage, rel=0.03)


@pytest.mark.long
@pytest.mark.technique("osp", check=3)
def test_half_of_the_bytes_later_is_a_quarter_faster() -> None:
    bsp_seconds, _, _ = timed("bsp / ps", 25, BSP_SECONDS)
    seconds, held, _ = timed("osp(share=0.5)", 25, BSP_SECONDS)
    assert bsp_seconds == pytest.approx(2 * BSP_SECONDS, rel=0.03)
    assert held > 0.45 * MODEL_BYTES and bsp_seconds >= 1.25 * seconds


@pytest.mark.long
@pytest.mark.technique("osp", check=3)
def test_half_of_the_bytes_later_is_as_accurate() -> None:
    def accuracy(strategy: str) -> float:
        ends = [laconic.simulate(lambda k=k: train(strategy, 400, k), WORKERS).results[0] for k in range(3)]
        return sum(right for _, _, right in ends) / 3

    assert accuracy("osp(share=0.5) / allreduce") >= accuracy("bsp") - 0.5


def test_the_budget_is_what_fits_times_the_share_by_which_the_loss_has_fallen() -> None:
    """Two workers whose logged losses differ, decided on after every ten steps: at first, at a quarter, above it."""

    def body() -> list[tuple[float, ...]]:
        decided = []

        def look(run: rounds.Run, step: int) -> None:
            laconic.log(loss=(1 + laconic.rank()) * (1.0, 0.25, 2.0, 0.0)[step // 10])
            if step % 10 == 0:
                state = run.optimizer.session.partitions[0].tiers[0].sync_state
                held = run.optimizer.session.noted["held_bytes"]
                decided.append((float(state["budget"]), float(state["seconds_per_byte"]), held))

        rounds.train("osp", 31, after=look, before=lambda: laconic.log(loss=1.0 + laconic.rank()))
        return decided

    compute = Compute(forward_seconds=0.04, slowness=(1.0, 1.5))
    mine, theirs = laconic.simulate(body, 2, Network.flat(3, 1e6), compute, servers=1).results
    fits = [0.05 / ((a + b) / 2) for (_, a, _), (_, b, _) in zip(mine, theirs, strict=True)]
    budgets, held = ([[decided[i] for decided in worker] for worker in (mine, theirs)] for i in (0, 2))
    assert budgets[0] == budgets[1] == pytest.approx([0, 0.75 * fits[1], 0])
    assert held[0] == held[1] and [x > 0 for x in held[0]] == [False, False, True], "decided ten steps before"


@pytest.mark.long
def test_the_budget_grows_as_the_loss_falls_up_to_what_fits() -> None:
    _, early, _ = timed("osp", 9, 0.5 * BSP_SECONDS)
    _, later, _ = timed("osp", 150, 0.5 * BSP_SECONDS)
    assert early == 0 < later <= 0.55 * MODEL_BYTES
