"""Virtual time: what the catalogue's recursions say is what the simulation gives, to rounding."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

import laconic
from laconic.errors import LaconicError
from laconic.network.network_tree import Network
from laconic.real.connect import connect
from laconic.virtual.compute import Compute, Stragglers

BITS, ALPHA = 8e6, 1e-4  # a megabyte per second: seconds are easy to read


def chain(widths: list[int]) -> nn.Module:
    return nn.Sequential(*(nn.Linear(a, b, bias=False) for a, b in pairwise(widths)))


def stepper(widths: list[int], strategy: str, steps: int) -> Any:
    """Train; returns each step's end, the messages' bytes in order of departure and the tensors they wait for."""

    def run() -> dict[str, Any]:
        torch.manual_seed(0)
        model = chain(widths)
        model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=0.01), strategy)
        worker, begins, ends = connect(), [], []
        for _ in range(steps):
            begins.append(worker.clock_seconds())
            model(torch.randn(2, widths[0])).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            ends.append(worker.clock_seconds())
        messages = optimizer.session.reducer.messages
        sizes = [4.0 * sum(stop - start for _, start, stop in piece.ranges) for piece in messages]
        sizes[-1] += 4.0 * messages[-1].bucket.control_numel
        return {
            "begins": begins,
            "ends": ends,
            "sizes": sizes,
            "members": [piece.carried for piece in messages],
            "shares": [p.numel() / sum(q.numel() for q in model.parameters()) for p in model.parameters()],
        }

    return run


def ring_seconds(size: int, nbytes: float) -> float:
    return 2 * (size - 1) * ALPHA + 2 * (size - 1) / size * nbytes / (BITS / 8)


@pytest.mark.technique("bsp", check=3)
@pytest.mark.parametrize("slow", [1.0, 3.0])
def test_an_iteration_is_the_slowest_compute_plus_the_exchange(slow: float) -> None:
    compute = Compute(0.5, 1.0, 0.25, slowness=(1.0, 1.0, slow, 1.0))
    network = Network.flat(4, BITS, ALPHA)
    out = laconic.simulate(stepper([50, 40, 30], "bsp / sequential", 4), 4, network, compute).results
    exchange = ring_seconds(4, sum(out[0]["sizes"]))
    ends = [max(r["ends"][k] for r in out) for k in range(4)]
    periods = [b - a for a, b in pairwise(ends[1:])]
    assert periods == pytest.approx([1.75 * slow + exchange] * 2, rel=1e-12)


def recursion(out: dict[str, Any], size: int, compute: Compute) -> float:
    """The last arrival of wait-free backpropagation: tauc_i = max(tauc_{i+1} + t_{i+1}, r_i), from backward's start."""
    ready, time = {}, 0.0
    for i in reversed(range(len(out["shares"]))):
        time += out["shares"][i] * compute.backward_seconds
        ready[i] = time
    free = 0.0
    for nbytes, members in zip(out["sizes"], out["members"], strict=True):
        free = max(free, *(ready[i] for i in members)) + ring_seconds(size, nbytes)
    return free


@pytest.mark.technique("wfbp_a2a", check=1)
@pytest.mark.parametrize("seed", range(6))
def test_wait_free_backpropagation_follows_its_recursion(seed: int) -> None:
    draw = random.Random(seed)
    widths = [draw.randint(5, 120) for _ in range(draw.randint(3, 8))]
    compute = Compute(draw.uniform(0, 0.2), draw.uniform(0.01, 0.3), draw.uniform(0, 0.05))
    size = draw.choice([2, 3, 5])
    network = Network.flat(size, BITS, ALPHA, lanes=1)
    out = laconic.simulate(stepper(widths, "wfbp_a2a", 3), size, network, compute).results[0]
    expected = compute.forward_seconds + recursion(out, size, compute) + compute.step_seconds
    assert out["ends"][2] - out["begins"][2] == pytest.approx(expected, rel=1e-9)


@pytest.mark.long
@pytest.mark.technique("pytorch_ddp", check=1)
def test_merging_by_size_lies_between_its_extremes() -> None:
    widths, compute, network = [60, 80, 100, 40, 10], Compute(0.05, 0.1, 0.01), Network.flat(4, BITS, ALPHA, lanes=1)

    def period(strategy: str) -> float:
        out = laconic.simulate(stepper(widths, strategy, 3), 4, network, compute).results[0]
        return out["ends"][2] - out["begins"][2]

    assert period("bsp / wfbp(0)") == period("wfbp_a2a")
    assert period("bsp / wfbp(1GiB, first_bytes=1GiB)") == pytest.approx(period("bsp_a2a"), rel=1e-12)


def test_runs_are_the_same_twice_and_random_states_are_each_workers_own() -> None:
    def body() -> list[float]:
        torch.manual_seed(laconic.rank())
        model = chain([6, 5, 4])
        model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=0.01))
        drawn = []
        for _ in range(3):
            drawn.append(torch.rand(1).item() + random.random())
            model(torch.randn(2, 6)).sum().backward()
            optimizer.step()
        return [*drawn, *(p.sum().item() for p in model.parameters())]

    compute = Compute(0.1, 0.2, straggling=Stragglers(0.3, 5.0))
    runs = [laconic.simulate(body, 5, Network.flat(5, BITS, ALPHA), compute) for _ in range(2)]
    assert runs[0].results == runs[1].results and runs[0].seconds == runs[1].seconds
    assert len({row[0] for row in runs[0].results}) == 5


def test_one_workers_error_ends_all_and_is_raised() -> None:
    def body() -> None:
        connect().world.barrier().wait()
        if laconic.rank() == 2:
            raise ValueError("a deliberate mistake")
        connect().world.barrier().wait()

    with pytest.raises(ValueError, match="deliberate"):
        laconic.simulate(body, 4)


def test_workers_that_wait_for_each_other_are_named() -> None:
    def body() -> None:
        group = connect().world
        if laconic.rank() == 0:
            group.all_reduce(torch.ones(3)).wait()

    with pytest.raises(LaconicError, match="rank 0 in all_reduce of 3 sum; rank 1, 2 ended already"):
        laconic.simulate(body, 3)


def test_messages_between_two_take_their_time() -> None:
    def body() -> tuple[float, float]:
        group, rank = connect().world, laconic.rank()
        x = torch.full((1000,), float(rank))
        if rank == 0:
            group.send(x, 1, tag=3).wait()
        elif rank == 1:
            x = group.receive(x, 0, tag=3).wait()
        return connect().clock_seconds(), float(x.mean())

    out = laconic.simulate(body, 3, Network.flat(3, BITS, ALPHA)).results
    assert out[0][0] == out[1][0] == pytest.approx(ALPHA + 4000 / (BITS / 8)) and out[1][1] == 0.0
    assert out[2][0] == 0.0
