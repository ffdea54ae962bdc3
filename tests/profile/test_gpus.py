"""The table of GPUs, what fits on them, and how far its estimates are from measured steps."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.errors import LaconicError
from laconic.profile.gpus import GPUS, default_batch, gpu, memory_bytes, memory_of, profile_of, usable_bytes
from laconic.profile.gpus.measured import H200, Case, cited, definition, held_out, own, published, unfitted
from laconic.profile.gpus.roofline import HIGH, LOW, forward_seconds
from laconic.profile.zoo import MODELS, model
from laconic.values.profile import Profile
from tests import data


def errors(cases: list[Case]) -> tuple[float, float]:
    """Mean and largest, as shares of what was measured."""
    size = np.abs([case.error() for case in cases])
    return float(size.mean()), float(size.max())


def test_errors_on_our_own_steps_are_the_documented_ones() -> None:
    """49 steps on one H200, of ten models in three precisions; and four figures of NVIDIA's."""
    assert errors(list(own())) == pytest.approx((0.18, 0.74), abs=0.01)
    assert errors(list(cited())) == pytest.approx((0.03, 0.12), abs=0.01)


def test_errors_on_published_steps_are_the_documented_ones() -> None:
    """66 steps on three other GPUs, of which none was made for this."""
    data.rows("ddl-benchmarks/inputs.csv")
    data.rows("pollux/traces/bert/placements.csv")
    data.rows("vtrain/single_sample.csv")
    cases = list(published(data.FOLDER))
    by_source = {name: errors([c for c in cases if c.source == name]) for name in {case.source for case in cases}}
    assert by_source == {
        "RTX 2080 Ti, survey": pytest.approx((0.11, 0.19), abs=0.01),
        "T4, Pollux": pytest.approx((0.38, 0.63), abs=0.01),
        "A100, vTrain": pytest.approx((0.26, 0.48), abs=0.01),
    }
    everything = [*own(), *cited(), *cases]
    ratios = [case.seconds / case.predicted_seconds() for case in everything]
    assert np.quantile(ratios, [0.1, 0.9]) == pytest.approx([LOW, HIGH], abs=0.02)
    assert errors(everything) == pytest.approx((0.23, 0.74), abs=0.01)


def test_errors_on_cited_steps_that_nothing_was_fitted_to() -> None:
    """60 steps of three models on ten GPUs, of which two are among those that were fitted to."""
    cases = list(unfitted())
    assert len(cases) == 60 and len({case.gpu.name for case in cases}) == 10
    mean, largest = errors(cases)
    assert mean <= 0.15 and largest == pytest.approx(0.54, abs=0.01)


def test_a_chip_with_more_power_is_faster_and_no_limit_is_left_out() -> None:
    tensors, chip, batch = model("ResNet-50"), GPUS["H100 PCIe"], 1024  # the host keeps up
    plain = forward_seconds(tensors, chip, batch, "bf16")
    for better in ({"watts": 2 * chip.watts}, {"half": 2 * chip.half}, {"memory_bytes_per_second": 4e12}):
        assert (forward_seconds(tensors, replace(chip, **better), batch, "bf16") < plain).all()


def test_errors_on_steps_that_nothing_was_fitted_to() -> None:
    data.rows("ddl-benchmarks/inputs.csv")  # skips where the folder is absent
    cases = list(held_out(data.FOLDER))
    assert len(cases) == 8
    assert errors(cases) == pytest.approx((0.23, 0.43), abs=0.01)


def test_memory_is_near_what_was_measured() -> None:
    """Estimated over the most ever allocated: programs that keep more than they need make the lower end."""
    ratios = [
        memory_bytes(definition(name), batch, precision, optimizer) / (gigabytes * 1e9)
        for name, batch, optimizer, _, _, _, *both in H200
        for precision, gigabytes in zip(("fp32", "bf16"), both, strict=True)
        if gigabytes is not None
    ]
    assert (min(ratios), max(ratios)) == pytest.approx((0.56, 1.22), abs=0.02)
    assert np.median(ratios) == pytest.approx(0.95, abs=0.03)


@pytest.mark.parametrize("chip", GPUS.values(), ids=GPUS.keys())
def test_figures_make_sense(chip) -> None:  # type: ignore[no-untyped-def]
    assert chip.fp32 <= (chip.tf32 or chip.half) <= chip.half
    assert 1e11 < chip.memory_bytes_per_second < 1e13 and chip.link_bytes_per_second < chip.memory_bytes_per_second
    assert (chip.dollars_per_hour is None) == (not chip.priced_by)
    assert gpu(chip.name.lower().replace(" ", "-")) is chip


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("a100", "A100 80GB"),
        ("A100-40", "A100 40GB"),
        ("h100", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("Tesla T4", "T4"),
        ("NVIDIA GeForce RTX 2080 Ti", "RTX 2080 Ti"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100 40GB"),
        ("NVIDIA A100 80GB PCIe", "A100 80GB PCIe"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("Tesla V100-SXM2-32GB", "V100 32GB"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("Tesla P100-PCIE-16GB", "P100"),
        ("NVIDIA RTX A6000", "A6000"),
        ("NVIDIA H200", "H200"),
    ],
)
def test_names_as_people_and_drivers_write_them(typed: str, meant: str) -> None:
    assert gpu(typed).name == meant


def test_unknown_ones_are_refused_with_the_nearest() -> None:
    with pytest.raises(LaconicError, match=r"no GPU 'H300'; known are .*did you mean H"):
        gpu("H300")
    with pytest.raises(LaconicError, match="P100 has no units for tf32"):
        profile_of("resnet50", "p100", precision="tf32")
    with pytest.raises(LaconicError, match="no precision 'int3'"):
        profile_of("resnet50", "p100", precision="int3")  # type: ignore[arg-type]
    with pytest.raises(LaconicError, match="at least one sample"):
        profile_of("resnet50", "p100", batch=0)
    with pytest.raises(LaconicError, match="no optimizer 'lion'"):
        profile_of("resnet50", "p100", optimizer="lion")


@pytest.mark.long
@settings(max_examples=40, deadline=None)
@given(st.sampled_from([*MODELS][:8]), st.sampled_from([*GPUS]), st.integers(1, 32))
def test_profiles_are_whole(name: str, chip: str, batch: int) -> None:
    """Gradients arrive from the last tensor to the first, backward is twice forward, the file brings it all back."""
    profile = profile_of(name, chip, batch)
    tensors = profile.model.tensors
    assert [(t.name, t.shape) for t in reversed(tensors)] == [(t.name, t.shape) for t in model(name)]
    assert sum(t.backward_seconds for t in tensors) == pytest.approx(profile.model.backward.median)
    assert profile.model.backward.median == pytest.approx(2 * profile.model.forward.median)
    assert profile.model.forward.low is not None and profile.model.forward.high is not None
    assert profile.model.forward.low < profile.model.forward.median < profile.model.forward.high
    assert Profile.from_json(profile.to_json()) == profile
    assert json.loads(profile.to_json())["machine"]["estimated"] is True
    twice = profile_of(name, chip, 2 * batch).model.forward.median
    assert twice >= profile.model.forward.median * (1 - 1e-12)  # equal, to rounding, where the host launches no faster


def test_no_layer_beats_the_roof() -> None:
    chip, tensors = gpu("v100"), model("vgg16")
    seconds = forward_seconds(tensors, chip, 64, "fp32")
    for tensor, taken in zip(tensors, seconds, strict=True):
        assert taken >= 2 * 64 * tensor.operations / chip.fp32
        assert taken >= 4 * 64 * (tensor.moved + tensor.after) / chip.memory_bytes_per_second


def test_a_default_batch_fits_and_what_does_not_is_said() -> None:
    for name in ("resnet50", "bert-large", "gpt2-xl"):
        for chip in (gpu("t4"), gpu("a100"), gpu("h200")):
            profile = profile_of(name, chip)
            assert profile.machine["batch"] == default_batch(name, chip, profile.machine["precision"])
            if profile.machine["batch"] > 1:
                assert profile.machine["fits"] and profile.machine["memory_bytes"] < usable_bytes(chip)
    whole = profile_of("llama3-70b", "h200")
    assert (whole.machine["batch"], whole.machine["fits"]) == (1, False)
    assert memory_bytes("llama3-70b", 1) > 16 * 70_553_706_496  # parameters, gradients and Adam's two states
    parts = memory_of("resnet50", 32, "fp32")
    assert parts.total == pytest.approx(12 * 25_557_032 + parts.activations)
