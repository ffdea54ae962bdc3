"""Overlap-Local-SGD: pulled towards an anchor that is one round old, which nobody waits for."""

from __future__ import annotations

from statistics import mean

import pytest
import torch

import laconic
from laconic.network.network_tree import Network
from laconic.real.connect import connect
from laconic.virtual.compute import Compute
from tests.sync.digits import sgd as digits_sgd
from tests.sync.digits import trained
from tests.sync.rounds import WORKERS, adamw, assert_same, by_hand, net, sgd, simulated, timed, train, with_momentum

LOCAL = "local_sgd({})"
PERIOD = 4
ELEMENTS = sum(p.numel() for p in net().parameters())


@pytest.mark.technique("overlap_local_sgd", check=1)
def test_without_a_pull_workers_never_meet() -> None:
    runs = simulated("overlap_local_sgd(period=3, alpha=0)", 11, adamw)
    assert_same(runs, by_hand(11, 3, adamw, None), 0.0)


@pytest.mark.technique("overlap_local_sgd", check=1)
def test_pulled_all_the_way_all_restart_from_the_anchor() -> None:
    runs = simulated("overlap_local_sgd(period=3, alpha=1)", 9, sgd)
    for step in range(9):
        same = all(torch.equal(run.path[step], runs[0].path[step]) for run in runs)
        assert same == ((step + 1) % 3 == 0)
    assert all(torch.equal(run.path[-1], run.remembered("point")) for run in runs)


@pytest.mark.technique("overlap_local_sgd", check=2)
@pytest.mark.parametrize("beta", [0, 0.7])
def test_a_pull_moves_the_mean_towards_the_anchor_by_alpha(beta: float) -> None:
    strategy, alpha, steps = f"overlap_local_sgd(period={PERIOD}, alpha=0.6, beta={beta})", 0.6, 3 * PERIOD
    runs = simulated(strategy, steps, with_momentum)
    before = before_the_pull(strategy, steps)
    middle, middle_before = (torch.stack(x).mean(dim=0) for x in ([r.path[-1] for r in runs], before))
    anchor = runs[0].remembered("point")
    assert all(torch.equal(run.remembered("point"), anchor) for run in runs)
    torch.testing.assert_close(middle, (1 - alpha) * middle_before + alpha * anchor, rtol=0, atol=1e-14)


def before_the_pull(strategy: str, steps: int) -> list[torch.Tensor]:
    """Every worker's parameters when its optimizer has stepped for the last time and the rule has not communicated."""

    def body() -> torch.Tensor:
        seen: list[torch.Tensor] = []

        def make(parameters: object) -> torch.optim.Optimizer:
            optimizer = with_momentum(parameters)  # type: ignore[arg-type]
            parts = optimizer.param_groups[0]["params"]
            optimizer.register_step_post_hook(
                lambda *_: seen.append(torch.cat([p.detach().flatten().clone() for p in parts]))
            )
            return optimizer

        train(strategy, steps, make)
        return seen[-1]

    return laconic.simulate(body, WORKERS).results


def test_the_anchor_is_the_mean_of_a_round_ago() -> None:
    """Without momentum, what workers are pulled to is the mean of where the pull before left them."""
    runs = simulated(f"overlap_local_sgd(period={PERIOD}, beta=0)", 2 * PERIOD, sgd)
    left = torch.stack([run.path[PERIOD - 1] for run in runs]).mean(dim=0)
    torch.testing.assert_close(runs[0].remembered("point"), left, rtol=0, atol=1e-14)


@pytest.mark.technique("overlap_local_sgd", check=2)
def test_it_sends_as_much_as_local_sgd() -> None:
    overlapped, local = (
        simulated(strategy, 3 * PERIOD) for strategy in (f"overlap_local_sgd(period={PERIOD})", LOCAL.format(PERIOD))
    )
    assert [run.sent_bytes for run in overlapped] == [run.sent_bytes for run in local]


@pytest.mark.long
@pytest.mark.technique("overlap_local_sgd", check=3)
@pytest.mark.parametrize("share", [0.5, 0.999, 1.5])
def test_averaging_is_hidden_while_it_takes_less_than_a_round(share: float) -> None:
    """`share` is the time of one averaging over the computing time of a round."""
    compute, steps = Compute(0.4, 0.5, 0.1), 5 * PERIOD
    network = Network.flat(WORKERS, 8 * 8 * ELEMENTS * 2 * (WORKERS - 1) / WORKERS / (share * PERIOD))

    averaging = share * PERIOD
    local, _ = timed(LOCAL.format(PERIOD), steps, network, compute)
    assert local == pytest.approx(steps * (1 + averaging / PERIOD))
    overlapped, waited = timed(f"overlap_local_sgd(period={PERIOD})", steps, network, compute)
    late = max(0.0, averaging - PERIOD)
    assert overlapped == pytest.approx(steps + late * 4)  # the fifth is not waited for
    assert (waited == 0) == (share <= 1)


@pytest.mark.technique("overlap_local_sgd", check=3)
@pytest.mark.long
def test_it_is_as_accurate_as_local_sgd_within_a_point() -> None:
    accuracy = {
        strategy: mean(trained(strategy, 30 * 12, 16, digits_sgd(0.4), seed=seed).accuracy for seed in range(3))
        for strategy in ("overlap_local_sgd(period=12)", "local_sgd(12)")
    }
    assert accuracy["overlap_local_sgd(period=12)"] > accuracy["local_sgd(12)"] - 1


def test_a_model_of_one_tensor_is_averaged_too() -> None:
    def work() -> torch.Tensor:
        worker = connect()
        model = torch.nn.Linear(3, 1, bias=False)
        module, optimizer = laconic.distribute(model, sgd(model.parameters()), "overlap_local_sgd(period=2, alpha=1.0)")
        for step in range(6):
            optimizer.zero_grad()
            module(torch.full((2, 3), float(worker.rank + step))).square().mean().backward()
            optimizer.step()
        return model.weight.detach().clone()

    one, other = laconic.simulate(work, 2).results
    assert one.isfinite().all() and torch.equal(one, other)  # after a round both are at the anchor
