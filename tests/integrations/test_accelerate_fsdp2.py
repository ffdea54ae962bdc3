"""Accelerate's FSDP2 with laconic's communication: the bits of its own, the bytes of a strategy, checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integrations.scripts import EXAMPLES, changed_lines, needs, torchrun, without_laconic

pytestmark = [pytest.mark.long, needs("accelerate")]

EXAMPLE = EXAMPLES / "accelerate_fsdp2.py"
HERE = Path(__file__).parent
ON_CPUS, SCRIPTS = HERE / "sharding_on_cpus.py", HERE / "accelerate_fsdp2_scripts.py"


@pytest.mark.parametrize("accumulated", ["1", "2"])
def test_the_example_has_the_bits_of_accelerates_own(tmp_path: Path, accumulated: str) -> None:
    assert changed_lines(EXAMPLE.name) <= 3
    size = ["--epochs", "1", "--accumulate", accumulated]
    own = torchrun(ON_CPUS, str(without_laconic(EXAMPLE.name, tmp_path)), *size)
    assert own.startswith("loss 2.")
    assert torchrun(ON_CPUS, str(EXAMPLE), *size) == own
    assert torchrun(ON_CPUS, str(EXAMPLE), *size, "--strategy", "zero_plus_plus") != own


@pytest.mark.parametrize("name", ["sent_and_remembered", "refused"])
def test_with_two_workers(tmp_path: Path, name: str) -> None:
    assert f"passed {name}" in torchrun(SCRIPTS, name, str(tmp_path))
