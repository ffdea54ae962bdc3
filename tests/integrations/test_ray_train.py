"""Ray Train with laconic's communication, on a local cluster: the bits of its own DDP under `bsp`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.integrations.scripts import EXAMPLES, changed_lines, needs, python, without_laconic

pytestmark = [pytest.mark.long, needs("ray")]
EXAMPLE = EXAMPLES / "ray_digits.py"


def weights(script: Path, strategy: str, home: Path) -> str:
    """What rank 0 prints; Ray's results, and a token that it makes, are kept in a home of the test's own."""
    output = python(str(script), "--epochs", "1", "--strategy", strategy, HOME=str(home), RAY_USAGE_STATS_ENABLED="0")
    found = re.search(r"weights (\S+)", output)
    assert found is not None, output
    return found[1]


def test_the_example_has_the_bits_of_rays_own(tmp_path: Path) -> None:
    assert changed_lines(EXAMPLE.name) <= 3
    own = weights(without_laconic(EXAMPLE.name, tmp_path), "bsp", tmp_path)
    assert weights(EXAMPLE, "bsp", tmp_path) == own
    assert weights(EXAMPLE, "local(4)", tmp_path) != own
