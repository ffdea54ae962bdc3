"""Lightning's `ModelParallelStrategy` with laconic: the bits of its own FSDP2, resumed runs, refusals."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.integrations.scripts import EXAMPLES, changed_lines, needs, torchrun, without_laconic

pytestmark = [pytest.mark.long, needs("lightning")]

EXAMPLE = EXAMPLES / "lightning_fsdp2.py"
SCRIPTS = Path(__file__).with_name("lightning_fsdp2_scripts.py")


def weights(output: str) -> str:
    found = re.search(r"weights (\S+)", output)
    assert found is not None, output
    return found[1]


@pytest.mark.parametrize("accumulated", ["1", "3"])
def test_the_example_has_the_bits_of_lightnings_own(tmp_path: Path, accumulated: str) -> None:
    assert changed_lines(EXAMPLE.name) <= 3
    size = ["--accumulate", accumulated, "--epochs", "1", "--folder"]
    own = weights(torchrun(without_laconic(EXAMPLE.name, tmp_path), *size, str(tmp_path / "own")))
    assert weights(torchrun(EXAMPLE, *size, str(tmp_path / "zero"))) == own
    coded = weights(torchrun(EXAMPLE, *size, str(tmp_path / "coded"), "--strategy", "zero_plus_plus"))
    assert coded != own


@pytest.mark.parametrize("name", ["resumed", "refused"])
def test_with_two_workers(tmp_path: Path, name: str) -> None:
    assert f"passed {name}" in torchrun(SCRIPTS, name, str(tmp_path))
