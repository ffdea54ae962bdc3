"""Out-of-order backpropagation: the same gradients in another order, and what that is worth."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from torch import nn

from laconic.runtime.deferred_weight_grad import DeferredWeightGradients
from laconic.schedule.bytescheduler import ByteScheduler
from laconic.schedule.out_of_order import OutOfOrder
from laconic.values.price import Price
from tests.schedule.chains import Chain
from tests.schedule.plans import Case, case, cases


class Pair(nn.Module):
    """Convolutions, a layer that is used twice, and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 3, 3), nn.Conv2d(3, 3, 3, padding=1)
        self.twice, self.norm, self.head = nn.Linear(12, 12), nn.LayerNorm(12), nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.second(torch.relu(self.first(x)))).flatten(1)
        out: torch.Tensor = self.head(self.norm(self.twice(torch.tanh(self.twice(h)))))
        return out


@pytest.mark.technique("ooo_backprop_dp", check=1)
@pytest.mark.parametrize(("first", "waiting"), [(0, 0), (3, 2), (6, 6), (10, 8)])
def test_gradients_are_those_of_ordinary_backpropagation(first: int, waiting: int) -> None:
    """To the bit, over two passes that add up. A norm never waits, nor does half a layer."""
    torch.manual_seed(2)
    model, plain = Pair(), Pair()
    plain.load_state_dict(model.state_dict())
    came: list[int] = []
    parameters = list(model.parameters())
    postponed = DeferredWeightGradients(model, parameters, came.append)
    postponed.choose(range(first))
    for _ in range(2):
        x = torch.randn(4, 1, 4, 4)
        for one in (model, plain):
            one(x).square().sum().backward()
        postponed.run()
    for p, q in zip(parameters, plain.parameters(), strict=True):
        assert p.grad is not None and q.grad is not None
        assert torch.equal(p.grad, q.grad)
    assert len(came) == 2 * waiting


@pytest.mark.long
@pytest.mark.technique("ooo_backprop_dp", check=3)
def test_the_first_weights_come_last_and_the_very_first_of_them_first() -> None:
    chain = Chain((3, 5, 4, 6, 3, 7, 2))  # six tensors
    run = chain.train("bsp / ps / ooo(3)", servers=1)
    assert run.timeline is not None
    for step in (1, 8):
        spans = [s for s in run.timeline.of(0, "compute") if s.arguments["step"] == step]
        backward = [s.name for s in spans if s.arguments["part"] == "backward"]
        assert backward == [f"backward {i}.weight" for i in (5, 4, 3, 0, 1, 2)]
    plain = chain.train("bsp / ps / sequential", servers=1)
    assert all(map(torch.equal, run.results[0], plain.results[0]))


@pytest.mark.long
@given(cases(duplex=True))
@settings(max_examples=60, deadline=None)
@pytest.mark.technique("ooo_backprop_dp", check=2)
def test_none_postponed_is_bytescheduler_and_the_best_number_is_never_worse(given: Case) -> None:
    partition, credit = 2000, 4000
    plain = given.seconds(ByteScheduler(partition, credit))
    assert given.seconds(OutOfOrder(0, partition, credit)) == plain
    assert given.seconds(OutOfOrder(None, partition, credit)) <= plain * (1 + 1e-12)


@pytest.mark.parametrize(("seed", "best"), [(1, 8), (13, 2), (35, 9), (38, 6)])
def test_without_a_number_powers_of_two_and_eighths_are_tried(seed: int, best: int) -> None:
    """Random models of 24 tensors at servers, each with another best number."""
    chance = random.Random(seed)
    elements = [chance.choice([200, 1000, 6000]) for _ in range(24)]
    forward, backward = ([chance.uniform(0, longest) for _ in range(24)] for longest in (0.3, 1.0))
    given = case(forward, backward, elements, Price(0.0, chance.choice([1, 2, 3]) / 12000), duplex=True)
    tried = {0, 1, 2, 4, 8, 16, 3, 6, 9, 12, 15, 18, 21, 24}
    seconds = {first: given.seconds(OutOfOrder(first, 1000, 0)) for first in tried}
    assert min(sorted(tried), key=lambda first: seconds[first]) == best and seconds[best] < seconds[0]
    assert given.seconds(OutOfOrder(None, 1000, 0)) == seconds[best]


@pytest.mark.technique("ooo_backprop_dp", check=2)
def test_it_gains_where_the_first_tensor_is_waited_for() -> None:
    """Six layers of one second each; the first has all the weights, which take three seconds each way."""
    given = case([0.1] * 6, [1.0] * 6, [6000, *[500] * 5], Price(0.0, 1 / 4000), duplex=True)
    plain, best = given.seconds(ByteScheduler(500, 0)), given.seconds(OutOfOrder(None, 500, 0))
    assert best < plain - 0.3
