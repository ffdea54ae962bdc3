"""Low rank and error memory for whole buckets: the bytes, results and memories of tensors one by one."""

from __future__ import annotations

import pytest
import torch

from laconic.compression.bucket import BucketMeet, TensorBucket
from laconic.compression.optional import exchange_bucket_of, exchange_rest_of
from tests.compression import buckets
from tests.compression.table import compressor

SHAPES = [(24, 20), (16, 3, 5, 5), (200, 7), (5, 130), (40, 40)]
"""Square, convolutional, tall and wide."""


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize(
    "text",
    [
        "power_sgd(1)",
        "power_sgd(3)+ef",
        "power_sgd(2)+ef(decay=0.9)",
        "power_sgd(2)+ef(low_pass=0.5, inside=true)",
    ],
)
def test_a_whole_bucket_is_what_its_tensors_are(text: str, workers: int) -> None:
    made, specs = compressor(text), buckets.specs_of(SHAPES)
    assert all(made.accepts(spec) for spec in specs)
    buckets.assert_equal(buckets.as_a_whole(made, specs, workers, 4), buckets.one_by_one(made, specs, workers, 4))


def test_power_sgd_with_memory_keeps_the_rest_while_it_writes_the_result() -> None:
    specs = buckets.specs_of(SHAPES)
    meet = BucketMeet(0, 1, 0, 1.0, False, lambda: [])
    empty = TensorBucket(specs, torch.zeros(sum(spec.numel for spec in specs)))
    assert exchange_rest_of(compressor("power_sgd(2)"), empty, empty.flat, meet) is not None
    assert exchange_rest_of(compressor("alternating(2)"), empty, empty.flat, meet) is None  # its errors are its own
    double = TensorBucket(specs, empty.flat.double())
    assert exchange_bucket_of(compressor("power_sgd(2)"), double, meet) is None
