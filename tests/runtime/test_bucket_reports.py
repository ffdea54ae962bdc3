"""How a bucket was exchanged, told by sentence and bucket: whole or not and why, graphs, calls of plain torch."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
import torch
from torch import nn

import laconic
from laconic.compression.cast import CastBF16
from laconic.compression.signs import ScaledSign
from laconic.real.profiling.tried_buckets import tried_buckets
from laconic.runtime.bucket_uses import BucketReport
from laconic.strategy import Sentence, Strategy, Word
from laconic.values.tensor_spec import TensorSpec


class Halved(CastBF16):
    """Sends half of a tensor's values: a part is changed for one tensor and not for buckets."""

    def exchange(self, x, state, meet):  # type: ignore[no-untyped-def]
        return super().exchange(x / 2, state, meet)


class Flipped(ScaledSign):
    """Encodes with other signs, one tensor at a time."""

    def encode(self, x, meet):  # type: ignore[no-untyped-def]
        return super().encode(-x, meet)


def reported(sentence: Sentence | str, dtype: torch.dtype = torch.float32) -> BucketReport:
    chosen = Strategy.parse(sentence) if isinstance(sentence, str) else sentence
    assert isinstance(chosen, Sentence)
    specs = [TensorSpec("a", (40, 30), dtype), TensorSpec("b", (70,), dtype)]
    plan = chosen.schedule.make().plan(specs, [1, 0])
    (found,) = tried_buckets(chosen, plan, 3, torch.device("cpu"))
    return found


@pytest.mark.parametrize("chain", ["cast_bf16", "qsgd+ef", "topk(0.1)+ef", "power_sgd(2)+ef", "int8+two_hop"])
def test_a_bucket_that_is_exchanged_as_a_whole_has_no_reason(chain: str) -> None:
    found = reported(f"bsp / {chain}")
    assert (found.one_by_one, found.graphed, found.refusal, found.exchanges) == (None, False, None, 1)


@pytest.mark.parametrize(
    ("sentence", "dtype", "why"),
    [
        ("bsp / qsgd+ef", torch.float64, "gradients are float64, and whole buckets are of float32"),
        ("bsp / sidco+ef", torch.float32, "sidco declares no exchange of whole buckets"),
        ("bsp / gtopk+ef", torch.float16, "gtopk declares no exchange of whole buckets"),
        ("bsp / qsgd(coding=elias)", torch.float32, "qsgd declares no encoding of lists of tensors"),
        (Sentence.of(Word.of(Halved())), torch.float32, "Halved changes `exchange` and inherits `exchange_bucket`"),
        (Sentence.of(Word.of(Flipped())), torch.float32, "Flipped changes `encode` and inherits `feed_all`"),
        ("bsp / flat+topk(0.1)", torch.float32, "joins the tensors to one vector"),
    ],
)
def test_tensors_that_are_exchanged_one_by_one_have_a_reason(
    sentence: Sentence | str, dtype: torch.dtype, why: str
) -> None:
    assert why in (reported(sentence, dtype).one_by_one or "")


def test_a_session_counts_the_calls_of_plain_torch_by_bucket_and_begins_anew() -> None:
    def script() -> list[object]:
        found: list[object] = []
        for steps in (3, 2):
            model: nn.Module = nn.Linear(50, 20)
            model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), 0.1), "bsp / sidco(0.3)")
            for _ in range(steps):
                model(torch.randn(2, 50)).square().sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            found.append([asdict(report) for report in optimizer.session.bucket_reports()])  # type: ignore[attr-defined]
        return [*found, laconic.traffic().fallbacks]

    for first, second, whole in laconic.simulate(script, 2).results:
        (one,), (other,) = first, second
        assert one["sentence"].startswith("bsp / sidco(0.3)")
        assert (one["exchanges"], other["exchanges"]) == (3, 2), "the second session counts for itself"
        calls = [report["fallbacks"]["mean_of_sparse"] for report in (one, other)]
        assert calls == [6, 4], "two tensors in each step"
        assert whole["mean_of_sparse"] == 10, "a worker's traffic has all of them"
        json.dumps([one, whole])
