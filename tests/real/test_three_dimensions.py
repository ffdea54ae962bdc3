"""Pipeline, data and tensor parallelism at once, on eight processes: the training of one process."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import pytest

from tests.real.launching import Launched

SCRIPT = Path(__file__).parents[2] / "examples" / "three_dimensions.py"
STEPS = 300  # by then the uncompressed loss is a tenth above what no model can predict, ln(4) / 16


def losses(output: str) -> dict[int, float]:
    return {int(step): float(value) for step, value in re.findall(r"step (\d+): loss ([\d.]+)", output)}


def alone(*arguments: str) -> dict[int, float]:
    """Train in one process."""
    run = subprocess.run(
        [sys.executable, str(SCRIPT), "--pp", "1", "--dp", "1", "--tp", "1", *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    return losses(run.stdout)


def on_eight(run: Launched, seconds: float) -> tuple[dict[int, float], float, float]:
    """Wait for a training on eight processes; return its losses, and the bytes sent between stages and copies."""
    run.process.wait(seconds)
    logs = [run.log(rank) for rank in range(8)]
    sent = re.search(r"bytes sent: pp (\d+), dp (\d+)", logs[0])
    assert sent is not None, run.console
    return {step: value for log in logs for step, value in losses(log).items()}, float(sent[1]), float(sent[2])


def dense_bytes() -> int:
    """Return the bytes that all devices send for one exchange of all gradients between two copies, uncompressed: each
    sends its part of what is cut, and all of the rest."""
    total = 0
    for stage in runpy.run_path(str(SCRIPT))["stages"](2):
        for name, parameter in stage.named_parameters():
            inside = any(f".{part}." in f".{name}" for part in ("query", "key", "value", "up"))
            is_cut = inside or name.endswith(("out.weight", "down.weight"))
            total += 4 * parameter.numel() * (2 if is_cut else 4)
    return total


@pytest.mark.long
@pytest.mark.technique("megatron_3d", check=3)
@pytest.mark.parametrize("schedule", ["one_f_one_b", "gpipe(recompute=true)"])
def test_two_by_two_by_two_trains_as_one_process(launch: Callable[..., Launched], schedule: str) -> None:
    run = launch("--workers", "8", "--", "--schedule", schedule, "--steps", "8", script=SCRIPT)
    expected = alone("--steps", "8")
    found, _, among_copies = on_eight(run, 500)
    assert len(expected) == 8 and expected[7] < expected[0] - 0.3, run.console
    assert found == pytest.approx(expected, abs=1e-4), run.console
    assert among_copies == 8 * dense_bytes()


@pytest.mark.long
@pytest.mark.parametrize(("strategy", "share"), [("int8", 0.27), ("topk(0.01)+ef", 0.02)])
def test_the_loss_with_compressed_copies_and_boundaries(
    launch: Callable[..., Launched], strategy: str, share: float
) -> None:
    """Gradients between copies and activations between stages are compressed, and the loss of the last epoch is at most
    two hundredths above the uncompressed one, which on eight processes is that of one."""
    script = ["--steps", str(STEPS), "--microbatches", "2"]
    expected = alone(*script)
    run = launch("--workers", "8", "--", *script, "--strategy", strategy, "--boundary", "aq_sgd", script=SCRIPT)
    found, between_stages, among_copies = on_eight(run, 1500)
    assert len(found) == STEPS, run.console
    last = range(STEPS - 5, STEPS)  # an epoch
    assert fmean(found[k] for k in last) < 1.02 * fmean(expected[k] for k in last)
    assert among_copies < share * STEPS * dense_bytes()
    exchanged = STEPS * 16 * 16 * 32 * 4 * 2  # a batch's activations there, their gradients back, in 32 bits
    assert between_stages < 0.3 * 2 * exchanged  # on each of the devices that cut matrices
