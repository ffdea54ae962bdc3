"""Emulated compute: the profile's tensors in its order and time, by a given clock; bits as on virtual workers."""

from __future__ import annotations

import pytest
import torch

import laconic
from laconic.profile.emulate import Pacer, emulated
from laconic.values.profile import ModelTimes, Profile, Seconds, TensorTime
from tests.real.pool import Pool, PoolRank


def profile() -> Profile:
    tensors = (
        TensorTime("head.weight", (5, 3), "float32", 0.25),
        TensorTime("head.bias", (5,), "float64", 0.5),
        TensorTime("body.0.weight", (3, 2), "float32", 0.125),
    )
    return Profile(ModelTimes(tensors, Seconds(1.0), Seconds(0.875), Seconds(0.0625)))


class Clock:
    """Time that passes in sleep alone, each of which is late by so much."""

    def __init__(self, late: float = 0.0) -> None:
        self.now, self.late = 100.0, late
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds + self.late


def test_gradients_arrive_in_the_profiles_order_and_time() -> None:
    clock = Clock()
    model = emulated(profile(), 2.0, Pacer(clock, clock.sleep))
    arrived: list[tuple[str, float]] = []
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda p, name=name: arrived.append((name, clock.now - 100.0)))
    y = model(7.0)
    assert y.item() == 7.0 and clock.now - 100.0 == 2 * (1.0 + 0.0625)
    (y * 3).backward()
    assert arrived == [("head.weight", 2.625), ("head.bias", 3.625), ("body.0.weight", 3.875)]
    for tensor in profile().model.tensors:
        gradient = model.get_parameter(tensor.name).grad
        assert gradient is not None and gradient.dtype == getattr(torch, tensor.dtype)
        assert torch.equal(gradient, torch.full(tensor.shape, 3.0, dtype=gradient.dtype))


def test_overshoot_is_taken_off_the_next_wait() -> None:
    clock = Clock(late=0.0625)
    pacer = Pacer(clock, clock.sleep)
    pacer.begin()
    for _ in range(8):
        pacer.wait(0.25)
    assert clock.now == 100.0 + 8 * 0.25 + 0.0625  # late once, not eight times
    assert clock.slept == [0.25, *[0.1875] * 7]
    pacer.wait(0.03125)
    assert len(clock.slept) == 8  # already later than that


def test_no_dilation_no_wait() -> None:
    clock = Clock()
    emulated(profile(), 0.0, Pacer(clock, clock.sleep))(1.0).backward()
    assert clock.slept == []


def train(member: PoolRank | None = None) -> torch.Tensor:
    options = {} if member is None else {"process_group": member.process_group}
    model: torch.nn.Module = emulated(profile(), 0.0)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = laconic.distribute(model, optimizer, "bsp / none / allreduce(rank) / wfbp(0)", **options)
    for step in range(4):
        (model(1.0) * (0.1 + laconic.rank() + step)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cat([p.detach().double().flatten() for p in model.parameters()])


@pytest.mark.long
def test_both_engines_end_with_the_same_bits(pool: Pool) -> None:
    real = pool.run(train, workers=2)
    virtual = laconic.simulate(train, workers=2).results
    assert all(torch.equal(a, b) for a, b in zip(real, virtual, strict=True))
