"""From layers to what a schedule plans with, and plans to iterations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from hypothesis import strategies as st

from laconic.cost.comm_plan import predicted_seconds
from laconic.schedule.base import Schedule
from laconic.values.comm_plan import CommPlan
from laconic.values.layer_times import LayerTimes
from laconic.values.price import Price
from laconic.values.tensor_spec import TensorSpec
from laconic.values.timing import Timing


@dataclass(frozen=True)
class Case:
    """A model of one tensor a layer, four bytes an element, whose backward pass runs from the last to the first."""

    specs: tuple[TensorSpec, ...]
    arrival: tuple[int, ...]
    timing: Timing

    def plan(self, schedule: Schedule) -> CommPlan:
        return schedule.plan(self.specs, self.arrival, self.timing)

    def seconds(self, plan: CommPlan | Schedule) -> float:
        made = plan if isinstance(plan, CommPlan) else self.plan(plan)
        return predicted_seconds(made, self.arrival, self.timing)

    @property
    def layers(self) -> LayerTimes:
        return self.timing.layers(self.specs, self.arrival)


def case(
    forward: Sequence[float], backward: Sequence[float], elements: Sequence[int], price: Price, duplex: bool = False
) -> Case:
    specs = tuple(TensorSpec(str(i), (n,), torch.float32) for i, n in enumerate(elements))
    arrival = tuple(reversed(range(len(specs))))
    return Case(specs, arrival, Timing(tuple(forward), tuple(backward), price, duplex))


def of_layers(layers: LayerTimes, price: Price, duplex: bool = False) -> Case:
    return case(layers.forward, layers.backward, [round(n / 4) for n in layers.nbytes], price, duplex)


@st.composite
def cases(
    draw: st.DrawFn,
    duplex: bool = False,
    most: int = 9,
    elements: int = 10_000,
    startups: Sequence[float] = (0.0, 0.01, 0.3),
) -> Case:
    count = draw(st.integers(1, most))
    forward, backward = (draw(st.lists(st.floats(0, 1), min_size=count, max_size=count)) for _ in range(2))
    sizes = draw(st.lists(st.integers(1, elements), min_size=count, max_size=count))
    price = Price(draw(st.sampled_from(startups)), draw(st.floats(0, 2 / elements)))
    return case(forward, backward, sizes, price, duplex)
