"""Real workers that are slower than they are: the waits are the plan's, whatever else goes on."""

from __future__ import annotations

import copy
import pickle
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import laconic
from laconic.real.connect import connect
from laconic.real.slowdown import Slowdown
from laconic.values.worker_speeds import Stragglers, WorkerSpeeds
from laconic.virtual.compute import Compute
from tests.real.pool import Pool, PoolRank

FORWARD, BACKWARD, STEP = 2.0, 3.0, 0.5


class Clock:
    """A clock that moves when computing asks for it, and while a thread sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


class _Taking(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, clock: Clock) -> Tensor:
        context.clock = clock
        clock.now += FORWARD
        return x * 1

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        context.clock.now += BACKWARD
        return gradient, None


class Model(nn.Module):
    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.layer, self.clock = nn.Linear(3, 3), clock

    def forward(self, x: Tensor) -> Tensor:
        return _Taking.apply(self.layer(x), self.clock)


class Optimizer(torch.optim.SGD):
    def __init__(self, model: Model) -> None:
        super().__init__(model.parameters(), lr=0.1)
        torch.optim.SGD(model.parameters())  # from now on torch calls hooks for the parent's step, too
        self.clock, self.fails = model.clock, False

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        loss = super().step(closure)
        self.clock.now += STEP
        if self.fails:
            raise ValueError
        return loss


SPEEDS = WorkerSpeeds((1.0, 5.0), Stragglers(0.5, 3.0))


def training(member: PoolRank, strategy: str, steps: int) -> tuple[list[float], int]:
    """What a worker of SPEEDS sleeps; beside its steps the script evaluates and loads, which is nobody's matter."""
    clock, worker = Clock(), connect()
    worker.slowdown = Slowdown(SPEEDS, worker, clock, clock.sleep)  # type: ignore[attr-defined]
    try:
        model: nn.Module = Model(clock)
        model, optimizer = laconic.distribute(model, Optimizer(model), strategy, process_group=member.process_group)
        for _ in range(steps):
            clock.now += 100.0
            with torch.no_grad():
                model(torch.ones(2, 3))
            optimizer.zero_grad()
            with model.no_sync():
                model(torch.ones(2, 3)).sum().backward()
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
        return clock.slept, worker.slowdown.step  # type: ignore[attr-defined]
    finally:
        worker.slowdown = None  # type: ignore[attr-defined]


@pytest.mark.parametrize("strategy", ["bsp", "local_sgd(2)", "torch:ddp"])
def test_every_part_waits_as_planned_on_either_engine(pool: Pool, strategy: str) -> None:
    steps = 12
    virtual = Compute(slowness=SPEEDS.slowness, straggling=SPEEDS.straggling)
    for rank, (slept, counted) in enumerate(pool.run(training, strategy, steps)):
        factors = [virtual.factor(rank, step) for step in range(steps)]
        plan = [(f - 1) * took for f in factors if f > 1 for took in (*[FORWARD + BACKWARD] * 2, STEP)]
        assert slept == pytest.approx(plan) and plan
        assert counted == steps


def alone(clock: Clock, speeds: WorkerSpeeds) -> tuple[Model, Optimizer, Slowdown]:
    class Worker:
        rank, waited_seconds = 0, 0.0

    model = Model(clock)
    optimizer, pace = Optimizer(model), Slowdown(speeds, Worker(), clock, clock.sleep)
    pace.attach(model, optimizer, counts=True)
    return model, optimizer, pace


def test_a_step_with_a_closure_waits_once_for_each_part() -> None:
    clock = Clock()
    model, optimizer, _ = alone(clock, WorkerSpeeds((2.0,)))

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 3)).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert clock.slept == [FORWARD + BACKWARD, STEP]
    assert clock.now == 2 * (FORWARD + BACKWARD + STEP)


def test_a_step_that_raises_is_forgotten() -> None:
    clock = Clock()
    model, optimizer, pace = alone(clock, WorkerSpeeds((2.0,)))
    for optimizer.fails in (True, False):
        model(torch.ones(2, 3)).sum().backward()
        with suppress(ValueError):
            optimizer.step()
    assert clock.slept == [FORWARD + BACKWARD, FORWARD + BACKWARD, STEP] and pace.step == 1


def test_attaching_again_replaces_and_copies_are_left_alone() -> None:
    clock = Clock()
    model, optimizer, pace = alone(clock, WorkerSpeeds((2.0,)))
    pace.attach(model, optimizer, counts=True)
    copied, loaded = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    for other in (copied, loaded):
        other(torch.ones(2, 3)).sum().backward()
    assert clock.slept == []
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    assert clock.slept == [FORWARD + BACKWARD, STEP] and pace.step == 1


def test_equal_workers_have_no_pace() -> None:
    assert WorkerSpeeds.read((), ()).are_equal and WorkerSpeeds.read((1.0, 1.0), ()).are_equal
    assert not WorkerSpeeds.read((1.0, 2.0), ()).are_equal and not WorkerSpeeds.read((), (0.1, 2.0)).are_equal
