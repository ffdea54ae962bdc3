"""Pipeline, data and tensor parallelism at once, on eight processes: the training of one process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.real.launching import Launched

SCRIPT = Path(__file__).parents[2] / "examples" / "three_dimensions.py"


def losses(output: str) -> dict[int, float]:
    return {int(step): float(value) for step, value in re.findall(r"step (\d+): loss ([\d.]+)", output)}


@pytest.mark.long
@pytest.mark.technique("megatron_3d", check=3)
@pytest.mark.parametrize("schedule", ["one_f_one_b", "gpipe(recompute=true)"])
def test_two_by_two_by_two_trains_as_one_process(launch: Callable[..., Launched], schedule: str) -> None:
    run = launch("--workers", "8", "--", "--schedule", schedule, "--steps", "8", script=SCRIPT)
    alone = subprocess.run(
        [sys.executable, str(SCRIPT), "--pp", "1", "--dp", "1", "--tp", "1", "--steps", "8"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    run.process.wait(500)
    found = {step: value for rank in range(8) for step, value in losses(run.log(rank)).items()}
    expected = losses(alone.stdout)
    assert len(expected) == 8 and expected[7] < expected[0] - 0.3, run.console
    assert found == pytest.approx(expected, abs=1e-4), run.console
