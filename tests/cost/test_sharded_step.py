"""Gathers one layer ahead and scatters beside backward, by hand."""

from __future__ import annotations

import random

import pytest

from laconic.cost.sharded_step import Hop, ModuleStep, ShardedStep


def module(
    forward: float, backward: float, gather: float, scatter: float, again: float | None = None, **coding: float
) -> ModuleStep:
    first = Hop("outside", gather, **coding)
    second = None if again is None else Hop("outside", again, **coding)
    return ModuleStep(forward, backward, first, second, (Hop("outside", scatter, **coding),))


def test_without_messages_a_step_is_its_computing() -> None:
    step = ShardedStep([module(1, 2, 0, 0, 0), module(3, 6, 0, 0, 0)], 0.5, 1.0, 0.25)
    assert step.seconds() == step.computing_seconds == 1 + 2 + 3 + 6 + 0.5 + 1 + 0.25


def test_only_the_first_gather_and_the_last_scatter_show_where_computing_is_longer() -> None:
    step = ShardedStep([module(10, 20, 1, 2, 1) for _ in range(4)], optimizer_seconds=3)
    # the gather for backward of what is around, and of the last block, wait for forward to end
    assert step.seconds() == 1 + 40 + 2 + 80 + 2 + 3


def test_messages_one_after_another_where_they_are_longer() -> None:
    step = ShardedStep([module(0.01, 0.02, 1, 2, 1) for _ in range(4)])
    assert step.seconds() == pytest.approx(4 * (1 + 1 + 2), rel=0.03)


def test_weights_that_are_kept_are_gathered_once() -> None:
    kept = ShardedStep([module(0.01, 0.02, 1, 2) for _ in range(4)])
    assert kept.seconds() == pytest.approx(4 * (1 + 2), rel=0.03)


def test_a_gather_is_one_module_ahead_and_no_more() -> None:
    """The third module's gather waits until the first has computed, though the network is free."""
    long = ShardedStep([module(100, 0, 1, 0), module(1, 0, 1, 0), module(1, 0, 50, 0)])
    assert long.seconds() == 1 + 100 + 50 + 1
    free = ShardedStep([module(1, 0, 1, 0), module(100, 0, 1, 0), module(1, 0, 50, 0)])
    assert free.seconds() == 1 + 1 + 100 + 1


def test_hops_inside_hosts_go_beside_those_across() -> None:
    def step(lane: str) -> float:
        hops = (Hop(lane, 5), Hop("outside", 5))
        return ShardedStep([ModuleStep(0, 0, Hop("outside", 0), None, hops) for _ in range(4)]).seconds()

    assert step("outside") == 4 * 10
    assert step("inside") == 5 + 4 * 5


def test_the_output_waits_for_its_weights() -> None:
    step = ShardedStep([module(0, 0, 0, 0, 5), module(0, 0, 0, 0, 0)], backward_before=1)
    assert step.seconds() == 5 + 1


def test_the_optimizer_waits_for_all_gradients() -> None:
    late = ModuleStep(0, 0, Hop("outside", 0), None, (Hop("inside", 50),))
    assert ShardedStep([module(1, 2, 0, 1), late], optimizer_seconds=3).seconds() == 1 + 50 + 3


def test_coding_takes_computing_time() -> None:
    plain = ShardedStep([module(10, 20, 1, 2, 1) for _ in range(4)])
    coded = ShardedStep([module(10, 20, 1, 2, 1, encode_seconds=0.5, decode_seconds=0.25) for _ in range(4)])
    assert coded.coding_seconds == 4 * 3 * 0.75
    assert coded.seconds() == pytest.approx(plain.seconds() + coded.coding_seconds, rel=0.02)


@pytest.mark.parametrize("seed", range(5))
def test_a_step_lies_between_the_longest_part_and_the_sum(seed: int) -> None:
    draw = random.Random(seed)
    modules = [module(*(draw.random() for _ in range(5))) for _ in range(draw.randint(1, 6))]
    step = ShardedStep(modules, draw.random(), draw.random(), draw.random())
    wire = sum(m.gather.seconds + (m.again or Hop("", 0)).seconds + m.scatter[0].seconds for m in modules)
    assert step.serial_seconds() == pytest.approx(step.computing_seconds + wire)
    assert max(step.computing_seconds, wire) <= step.seconds() <= step.serial_seconds() + 1e-9
