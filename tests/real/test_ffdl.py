"""A learner of a real job that is killed: the job goes on from its last checkpoint."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.real.launching import START_SECONDS, Launched


@pytest.mark.long
@pytest.mark.technique("ffdl", check=2)
def test_a_killed_learner_of_a_real_job_loses_one_checkpoint_interval_at_most(
    launch: Callable[..., Launched], tmp_path: Path
) -> None:
    script = Path(__file__).parent / "scripts" / "train.py"
    saved = ("--steps", "60", "--every", "10", "--checkpoint", str(tmp_path / "saved"))
    run = launch("--workers", "2", "--restarts", "1", "--", *saved, script=script)
    run.until_step(25, ranks=2)
    os.kill(run.pid(1), signal.SIGKILL)
    assert run.exit_code(2 * START_SECONDS) == 0, run.console
    for rank in range(2):
        first, second = re.split(r"^begins at step ", run.log(rank), flags=re.MULTILINE)[1:]
        reached = 1 + max(int(step) for step in re.findall(r"^step (\d+)", first, re.MULTILINE))
        resumed = int(second.splitlines()[0])
        assert resumed >= 20 and reached - 10 <= resumed <= reached
        assert second.rstrip().endswith("step 59")
