"""Times of encoding and decoding, solved for buckets, tensors and elements, on the path that training takes."""

from __future__ import annotations

import csv
from dataclasses import fields
from importlib.resources import files

import pytest
import torch

from laconic.planner.codec_times import codecs_on
from laconic.profile.gpus import gpu
from laconic.real.profiling.codecs import Codecs, _solved
from laconic.real.profiling.echo_group import EchoGroup
from laconic.runtime.ledger import Ledger
from laconic.values.profile import CodecTimes
from laconic.values.tensor_spec import TensorSpec

COUNTS = [(1, 4, 1024), (1, 32, 8192), (6, 20, 10_000_000)]


def test_three_cases_tell_a_bucket_a_tensor_and_an_element_apart() -> None:
    bucket, tensor, element = 3e-4, 2e-5, 1e-9
    seconds = [b * bucket + t * tensor + e * element for b, t, e in COUNTS]
    assert _solved(COUNTS, seconds) == pytest.approx((bucket, tensor, element), rel=0.02)


def test_no_time_is_negative_and_none_is_more_than_was_measured() -> None:
    for seconds in ([1e-3, 5e-4, 2e-3], [1e-3, 2e-3, 1e-5], [0.0, 0.0, 0.0]):
        solved = _solved(COUNTS, seconds)
        assert min(solved) >= 0
        whole = sum(count * each for count, each in zip(COUNTS[2], solved, strict=True))
        assert whole == pytest.approx(seconds[2])


@pytest.mark.parametrize(("chain", "whole"), [("qsgd+ef", True), ("sidco+ef", False)])
def test_buckets_are_timed_as_training_exchanges_them(chain: str, whole: bool) -> None:
    echo = EchoGroup(0, (0, 1, 2), Ledger())
    specs = [TensorSpec(f"w{k}", (100, 90), torch.float32) for k in range(5)]
    codecs = Codecs(echo, echo, specs, [chain])
    codecs.round()
    found = codecs.result()[0]
    assert found.words == chain.replace("ef", "error_feedback") and found.seconds("encode", 5, 45_000) > 0
    reports = codecs.bucket_reports()
    assert [(report.one_by_one is None) for report in reports] == [whole] * len(reports)
    assert {name for report in reports[2:] for name in report.tensors} == {spec.name for spec in specs}
    assert all(report.exchanges == 2 for report in reports), "one warms up, the other is timed"


def test_the_planner_reads_the_table_that_the_benchmark_writes() -> None:
    text = (files("laconic.planner") / "measured" / "codecs.csv").read_text(encoding="utf-8")
    columns = csv.DictReader(text.splitlines()).fieldnames or ()
    assert list(columns) == ["device", "workers", *(field.name for field in fields(CodecTimes))]
    fast, slow = codecs_on(gpu("H200"))[0], codecs_on(gpu("V100"))[0]
    assert slow.encode_seconds_per_bucket == fast.encode_seconds_per_bucket
    assert slow.decode_seconds_per_element >= fast.decode_seconds_per_element
