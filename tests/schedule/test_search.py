"""A scheduler that decides to merge or to split."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings

from laconic.schedule.bytescheduler import ByteScheduler
from laconic.schedule.dear import DeAR
from laconic.schedule.mg_wfbp import MGWFBP
from laconic.schedule.search import search
from laconic.schedule.sequential import Sequential
from laconic.schedule.wfbp import WFBP
from laconic.values.price import Price, ring
from laconic.values.tensor_spec import TensorSpec
from laconic.values.timing import Timing
from tests.schedule.cnns import profile
from tests.schedule.plans import Case, cases, of_layers


@pytest.mark.long
@pytest.mark.technique("general_scheduler", check=1)
@pytest.mark.parametrize("duplex", [False, True])
def test_it_is_never_worse_than_what_it_starts_from(duplex: bool) -> None:
    """Nor than the same systems planned by themselves: one buffer, every tensor, merged ones, pieces by priority."""

    @given(cases(duplex=duplex, elements=2_000_000))
    @settings(max_examples=25, deadline=None)
    def check(given: Case) -> None:
        found = search(given.specs, given.arrival, given.timing)
        assert found.seconds == given.seconds(found.plan) <= min(found.starts)
        words = [Sequential(), WFBP(0), MGWFBP(), ByteScheduler(), *([] if duplex else [DeAR(0)])]
        assert found.seconds <= min(map(given.seconds, words)) * (1 + 1e-9)

    check()


def bert_large() -> list[int]:
    """Elements of its 398 tensors, in the order of the forward pass."""
    width, inner = 1024, 4096
    norm = [width, width]
    square = [width * width, width]
    block = [*square * 4, *norm, width * inner, inner, inner * width, width, *norm]
    words = [30522 * width, 512 * width, 2 * width, *norm]
    return [*words, *block * 24, *square, *square, *norm, 30522, 2 * width, 2]


def bert_case(price: Price) -> Case:
    sizes = bert_large()
    specs = tuple(TensorSpec(str(i), (n,), torch.float32) for i, n in enumerate(sizes))
    total = sum(sizes[1:])
    shares = [0.0, *(n / total for n in sizes[1:])]  # looking words up takes next to nothing
    timing = Timing(tuple(0.08 * s for s in shares), tuple(0.16 * s for s in shares), price)
    return Case(specs, tuple(reversed(range(len(specs)))), timing)


@pytest.mark.long
@pytest.mark.technique("general_scheduler", check=2)
def test_it_merges_where_start_ups_decide() -> None:
    """BERT-Large on 32 GPUs, whose ring starts up in two milliseconds: fewer messages than tensors, none is cut."""
    given = bert_case(ring(32, Price(3e-5, 8 / 1e11)))
    assert len(given.specs) == 398
    found = search(given.specs, given.arrival, given.timing)
    assert found.decision.piece is None and len(found.plan.messages) == len(found.plan.buckets) < 100
    assert found.seconds < 0.8 * given.seconds(WFBP(0))


@pytest.mark.long
@pytest.mark.technique("general_scheduler", check=2)
def test_it_splits_where_large_tensors_stand_in_the_way() -> None:
    """VGG-16 at servers, with next to no start-up: more messages than tensors."""
    layers = profile("vgg16")
    price = Price(2e-6, 2 * layers.compute_seconds / sum(layers.nbytes))
    given = of_layers(layers, price, duplex=True)
    found = search(given.specs, given.arrival, given.timing)
    assert found.decision.piece is not None and len(found.plan.messages) > 2 * len(given.specs)
    assert found.seconds < 0.8 * given.seconds(WFBP(0))
