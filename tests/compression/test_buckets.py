"""Low rank, one bit a column and error memory for whole buckets: the bytes, results and memories of single tensors."""

from __future__ import annotations

import pytest
import torch

from laconic.compression.bucket import BucketMeet, KeyTables, Moment, TensorBucket
from laconic.compression.optional import exchange_bucket_of, exchange_rest_of
from laconic.runtime.flat_memory import FlatMemories
from laconic.runtime.meeting import Meeting
from laconic.values.tensor_spec import TensorSpec
from tests.cases import first_of
from tests.compression import buckets
from tests.compression.table import compressor, meet, spec_of

SHAPES = [(24, 20), (16, 3, 5, 5), (200, 7), (5, 130), (40, 40)]
"""Square, convolutional, tall and wide."""


@pytest.mark.parametrize("workers", first_of([3, 1], 1))
@pytest.mark.parametrize(
    "text",
    [
        "power_sgd(1)",
        "power_sgd(3)+ef",
        "power_sgd(2)+ef(decay=0.9)",
        "power_sgd(2)+ef(low_pass=0.5, inside=true)",
        "one_bit",
        "one_bit+ef",
        "one_bit(per=tensor)+ef",
        "one_bit+ef(decay=0.9)",
        "power_sgd(2)+ef(precision=bf16)",
        "power_sgd(2)+ef(precision=int8)",
        "one_bit+ef(precision=int8)",
        "scaled_sign+ef(precision=bf16)",
        "scaled_sign+ef(decay=0.9, precision=int8)",
        "alternating(2)",
        "alternating(3)+ef",
        "alternating(2)+ef(inside=true)",
    ],
)
def test_a_whole_bucket_is_what_its_tensors_are(text: str, workers: int) -> None:
    made, specs = compressor(text), buckets.specs_of(SHAPES)
    assert all(made.accepts(spec) for spec in specs)
    alone = buckets.one_by_one(made, specs, workers, 4)
    buckets.assert_equal(buckets.as_a_whole(made, specs, workers, 4), alone)
    unasked = buckets.as_a_whole(made, specs, workers, 4, own=False)
    unasked.sent = alone.sent
    buckets.assert_equal(unasked, alone)


def test_power_sgd_with_memory_keeps_the_rest_while_it_writes_the_result() -> None:
    specs = buckets.specs_of(SHAPES)
    meet = BucketMeet(0, 1, False, specs, None)
    empty = TensorBucket(specs, torch.zeros(sum(spec.numel for spec in specs)))
    assert exchange_rest_of(compressor("power_sgd(2)"), empty, empty.flat, meet) is not None
    double = TensorBucket(specs, empty.flat.double())
    assert exchange_bucket_of(compressor("power_sgd(2)"), double, meet) is None


def test_alternating_factors_whose_turns_differ_are_exchanged_one_by_one() -> None:
    made, specs = compressor("alternating(2)"), buckets.specs_of(SHAPES[:2])
    states = [made.init(spec) for spec in specs]
    states[1]["turn"] += 1
    bucket = FlatMemories().of(
        specs, torch.zeros(sum(s.numel for s in specs)), dict(zip(specs, states, strict=True)).__getitem__
    )
    assert exchange_bucket_of(made, bucket, BucketMeet(0, 1, False, specs, None)) is None


def test_keys_of_a_recorded_exchange_are_those_of_the_step() -> None:
    """All 64 bits of each, as whole numbers with a sign; renewed once a step, for as many draws as there are."""
    tables = KeyTables(torch.device("cpu"))
    specs = tuple(TensorSpec(f"x{i}", (3,), torch.float32) for i in range(40))
    once, twice = tables.table("", 1, specs), tables.table("more", 2, specs[:3])
    for step in (4, 5):
        meets = {spec: Meeting(1, 2, step, spec.name) for spec in specs}
        tables.renew(Moment(step, 0.1, meets.__getitem__))
        keys = [meets[spec].key() for spec in specs]
        assert [key % 2**64 for key in once.tolist()] == keys and max(keys) >= 2**63 > min(keys)
        more = [meets[spec].key("more") for spec in specs[:3]]
        assert [key % 2**64 for key in twice.tolist()] == more * 2


@pytest.mark.parametrize("text", ["topk(0.2)+ef", "one_bit+ef", "int8+ef"])
def test_the_memory_around_a_codec_that_gathers_stays_where_it_is(text: str) -> None:
    """No second memory is made for it in a step: encoding leaves there what is not sent."""
    made, x = compressor(text), torch.randn(480, generator=torch.Generator().manual_seed(1))
    state = made.init(spec_of(x))
    place, came, sent = state["error"].data_ptr(), torch.zeros(480), torch.zeros(480)
    for step in range(3):
        (outcome,) = meet(made, [x], [state], step)
        state, came, sent = outcome.state, came + x, sent + outcome.result
        assert state["error"].data_ptr() == place
        torch.testing.assert_close(state["error"], came - sent, atol=1e-5, rtol=1e-5)


def test_parts_of_a_bucket_are_scaled_each_by_its_own_factor() -> None:
    specs = (TensorSpec("a", (2,), torch.float32), TensorSpec("b", (1, 3), torch.float32))
    flat = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    bucket = TensorBucket(specs, flat)
    assert bucket.scaled(flat, [2.0, 0.5]).tolist() == [2.0, 4.0, 1.5, 2.0, 2.5]
    assert bucket.scaled(flat, [3.0, 3.0]).tolist() == [3.0, 6.0, 9.0, 12.0, 15.0]
    assert flat.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
