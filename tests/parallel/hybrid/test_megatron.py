"""Megatron-LM's formulas and rules, held against the table of its ten models."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from laconic.errors import LaconicError
from laconic.parallel.hybrid.cluster import DGX_A100
from laconic.parallel.hybrid.megatron import megatron_3d, pipeline_seconds, training_days
from laconic.parallel.hybrid.published import sc21
from laconic.parallel.hybrid.transformer import TRANSFORMERS, transformer


@pytest.mark.technique("megatron_3d", check=1)
def test_the_ten_sizes_come_out_to_the_printed_digit() -> None:
    assert len(sc21()) == 10
    for row in sc21():
        assert round(row.run.model.parameters / 1e9, 1) == row.printed


@pytest.mark.technique("megatron_3d", check=2)
@pytest.mark.evidence("megatron_3d")
@pytest.mark.parametrize("first", [0, 1])
def test_efficiency_by_hidden_size_predicts_every_second_row(first: int) -> None:
    rows = sc21()
    busy = []
    for row in rows:
        layout = row.run.layout
        count = row.run.batch // (layout.data * layout.microbatch)
        waiting = pipeline_seconds(count, layout.pipeline, 1.0, layout.chunks) / count
        busy.append((row.teraflops or math.nan) * waiting)
    hidden = [row.run.model.hidden for row in rows]
    known = range(first, len(rows), 2)
    curve = np.interp(hidden, [hidden[k] for k in known], [busy[k] for k in known])
    worst = max(abs(curve[k] / busy[k] - 1) for k in range(len(rows)) if k not in known)
    assert worst < 0.10


def test_the_bubble_is_divided_by_the_chunks() -> None:
    assert pipeline_seconds(8, 4, 2.0) == 22.0
    assert pipeline_seconds(8, 4, 2.0, chunks=3) == 18.0


def test_a_trillion_parameters_take_the_published_days() -> None:
    # SC 2021, section 5.1: 300 billion tokens on 1024 GPUs take 34 days, 450 billion on 3072 GPUs 84 days
    assert round(training_days(300e9, 175e9, 1024, 140e12)) == 34
    assert round(training_days(450e9, 1008e9, 3072, 163e12)) == 84


def test_tensors_fill_a_host_before_layers_are_cut() -> None:
    layouts = {row.name: megatron_3d(row.run.model, row.run.layout.gpus, row.run.batch, DGX_A100) for row in sc21()}
    for row in sc21():
        layout = layouts[row.name]
        assert layout.gpus == row.run.layout.gpus
        assert layout.tensor == 8 or layout.pipeline == 1
    assert layouts["1.7B"].tensor == 1 and layouts["18.4B"].tensor > 1
    assert layouts["1008B"].pipeline > layouts["310.1B"].pipeline > layouts["39.1B"].pipeline > 1


def test_less_memory_takes_more_stages() -> None:
    model, batch = transformer("gpt3-175b")
    wide = megatron_3d(model, 1024, batch, DGX_A100)
    narrow = megatron_3d(model, 1024, batch, replace(DGX_A100, memory_bytes=DGX_A100.memory_bytes / 2))
    assert narrow.pipeline > wide.pipeline and narrow.data < wide.data


def test_a_model_that_never_fits_is_refused() -> None:
    model, batch = transformer("megatron-1t")
    with pytest.raises(LaconicError, match=r"1008\.0 billion parameters"):
        megatron_3d(model, 64, batch, DGX_A100)


def test_names_are_found_as_people_write_them() -> None:
    assert transformer("GPT3")[0] == TRANSFORMERS["gpt3-175b"][0]
    assert round(transformer("gpt3-175b")[0].parameters / 1e9) == 175
    with pytest.raises(LaconicError, match="did you mean"):
        transformer("gpt3-170b")
