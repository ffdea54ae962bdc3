"""A scheduler that decides to merge or to split."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings

from laconic.cost.comm_plan import predicted_seconds
from laconic.schedule.bytescheduler import ByteScheduler
from laconic.schedule.dear import DeAR
from laconic.schedule.mg_wfbp import MGWFBP
from laconic.schedule.search import ScheduleChoice, _moved, search
from laconic.schedule.sequential import Sequential
from laconic.schedule.wfbp import WFBP
from laconic.values.price import Price, ring
from laconic.values.tensor_spec import TensorSpec
from laconic.values.timing import Timing
from tests.schedule.cnns import profile
from tests.schedule.plans import Case, case, cases, of_layers


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


@pytest.mark.technique("general_scheduler", check=1)
@pytest.mark.parametrize("word", [ByteScheduler(), ByteScheduler(100_000, 400_000)], ids=str)
def test_before_any_trial_it_is_as_fast_as_pieces_by_priority(word: ByteScheduler) -> None:
    """At servers, where the last layers have the weights and the first one is waited for: cut, they let it pass."""
    sizes = [1000, *[4 * word.partition] * 3]  # a second each, both ways
    given = case([0.1] * 4, [0.1] * 4, sizes, Price(0.0, 1 / (16 * word.partition)), duplex=True)
    found = search(given.specs, given.arrival, given.timing, trials=0)
    assert found.seconds <= given.seconds(word) < 0.9 * given.seconds(WFBP(0))
    assert given.seconds(word) in found.starts and found.decision.piece is not None


@pytest.mark.parametrize("late", [False, True])
def test_it_halves_all_reduces_where_that_is_cheaper(late: bool) -> None:
    given = case([0.1] * 3, [0.1] * 3, [1000] * 3, Price(1.0, 1e-4))
    for halved, expected in ((Price(0.1, 1e-4), True), (Price(2.0, 1e-4), False)):
        timing = replace(given.timing, halved=halved)
        found = search(given.specs, given.arrival, timing, late=late, trials=0)
        assert found.plan.halves is expected
        assert found.seconds == predicted_seconds(found.plan, given.arrival, timing)


@pytest.mark.technique("general_scheduler", check=1)
def test_without_late_messages_tensors_at_servers_may_go_alone() -> None:
    """Pulls run beside pushes, which the merging that is exact for one direction does not know: it joins both, as
    start-ups of two seconds suggest, and each alone is faster."""
    given = case([1.0, 1.0], [1.0, 1.0], [40_000, 40_000], Price(2.0, 5e-5), duplex=True)
    found = search(given.specs, given.arrival, given.timing, late=False, trials=0)
    assert found.decision == ScheduleChoice(((1,), (0,)))
    assert found.seconds == given.seconds(WFBP(0)) < 0.9 * given.seconds(MGWFBP())


@pytest.mark.technique("general_scheduler", check=1)
def test_merged_tensors_of_two_dtypes_need_not_wait_for_each_other() -> None:
    """Start-ups of a second make it merge, and two dtypes make it send two messages. The first layer is in the first
    one; it computes while the second is on its way."""
    given = case([1.0, 0.1, 0.1], [0.1] * 3, [1000] * 3, Price(1.0, 1e-6))
    dtypes = (torch.float32, torch.float16, torch.float32)
    specs = tuple(replace(spec, dtype=dtype) for spec, dtype in zip(given.specs, dtypes, strict=True))
    given = replace(given, specs=specs)
    found = search(given.specs, given.arrival, given.timing, trials=0)
    assert found.decision == ScheduleChoice(((2, 1, 0),), gated=True) and len(found.plan.messages) == 2
    assert found.seconds < 0.8 * min(map(given.seconds, (MGWFBP(), DeAR(0), ByteScheduler())))


def test_a_move_switches_the_order_by_urgency_on_and_off() -> None:
    def orders(credit: int | None) -> set[int | None]:
        choice = ScheduleChoice(((2, 1), (0,)), 1_000_000, credit, gated=True)
        return {_moved(choice, (2, 1, 0), random.Random(seed)).credit for seed in range(100)}

    assert orders(None) == {None, 4_000_000, 8_000_000, 2_000_000}
    assert orders(6_000_000) == {6_000_000, None, 12_000_000, 3_000_000}


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
