"""Expert and context parallelism between real processes: what one process computes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from laconic.parallel.context.parts import Parts
from laconic.parallel.context.price import backward_bytes, forward_bytes
from laconic.real.connect import connect
from tests.parallel.context import attending
from tests.parallel.experts.training import agrees, gradients
from tests.real.launching import Launched
from tests.real.pool import Pool, PoolRank

SCRIPT = Path(__file__).parents[2] / "examples" / "experts.py"


def mesh_of(member: PoolRank, name: str) -> DeviceMesh:
    return DeviceMesh.from_group(member.process_group, "cpu", mesh_dim_names=(name,))


def on_a_device(member: PoolRank, counts: list[int], options: dict[str, Any]) -> dict[str, Any]:
    return gradients(counts, member.rank, mesh_of(member, "ep"), **options)


@pytest.mark.parametrize("counts", [[7, 4], [5, 0, 9, 2]])
@pytest.mark.parametrize("options", [{}, {"top": 1, "capacity_factor": 0.6}, {"avoid": (0, 1, 2, 3, 5)}])
def test_cut_experts_are_the_whole_layer(pool: Pool, counts: list[int], options: dict[str, Any]) -> None:
    expected = gradients(counts, None, None, **options)
    agrees(pool.run(on_a_device, counts, options, workers=len(counts)), expected, 1e-6)


def test_codes_change_little_and_send_less(pool: Pool) -> None:
    counts, codes = [9, 8], {"forward": "int8(64)", "backward": "bf16"}
    plain, coded = (pool.run(on_a_device, counts, {"averaged": False, **how}) for how in ({}, codes))
    for own, exact in zip(coded, plain, strict=True):
        assert own["bytes"] < 0.5 * exact["bytes"]
        assert 0 < float((own["output"] - exact["output"]).abs().max()) < 0.05
        assert torch.allclose(own["input"], exact["input"], atol=0.02)


def attended(member: PoolRank, length: int, causal: bool, zigzag: bool, codes: Any) -> tuple[list[Tensor], float]:
    ledger = connect().ledger
    before = ledger.sent_bytes()
    found = attending.cut(mesh_of(member, "cp"), length, causal, zigzag, codes)
    return found, ledger.sent_bytes() - before


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize(("causal", "zigzag"), [(False, False), (True, False), (True, True)])
def test_a_ring_attends_to_the_whole_sequence(pool: Pool, workers: int, causal: bool, zigzag: bool) -> None:
    for length in (24, 13):
        results = pool.run(attended, length, causal, zigzag, None, workers=workers)
        assert attending.furthest([found for found, _ in results], attending.whole(length, causal)) < 1e-5
        parts = Parts(length, workers, zigzag)
        token_bytes = 4 * attending.BATCH * attending.HEADS * (2 * attending.WIDTH + 2)
        both = zip(forward_bytes(parts, token_bytes), backward_bytes(parts, token_bytes), strict=True)
        assert [sent for _, sent in results] == [sum(each) for each in both]


def test_codes_of_keys_and_gradients_between_processes(pool: Pool) -> None:
    codes = {"forward": "int8(64)", "backward": "cast_bf16"}
    results = pool.run(attended, 24, True, True, codes, workers=3)
    assert 1e-4 < attending.furthest([found for found, _ in results], attending.whole(24, True)) < 0.05


def losses(output: str) -> dict[int, float]:
    return {int(step): float(value) for step, value in re.findall(r"step (\d+): loss ([\d.]+)", output)}


@pytest.mark.long
@pytest.mark.parametrize("codes", [[], ["--forward", "int8(256)", "--backward", "cast_bf16(stochastic)"]])
def test_two_by_two_trains_as_one_process(launch: Callable[..., Launched], codes: list[str]) -> None:
    run = launch("--workers", "4", "--", "--ep", "2", "--cp", "2", "--steps", "12", *codes, script=SCRIPT)
    alone = subprocess.run(
        [sys.executable, str(SCRIPT), "--ep", "1", "--cp", "1", "--steps", "12"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    run.process.wait(500)
    found, expected = losses(run.log(0)), losses(alone.stdout)
    assert len(expected) == 12 and expected[11] < expected[0] - 0.3, alone.stdout
    assert found == pytest.approx(expected, abs=0.05 if codes else 1e-4), run.console
