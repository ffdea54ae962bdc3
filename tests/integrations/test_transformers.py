"""Transformers' `Trainer` with laconic's communication: the bits of DDP under `bsp`, and checkpoints that are exact."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.integrations.scripts import EXAMPLES, changed_lines, needs, torchrun, without_laconic

pytestmark = [pytest.mark.long, needs("transformers")]

EXAMPLE = EXAMPLES / "transformers_text.py"
MEMORY = "local(4) / topk(0.1)+ef"


def weights(output: str) -> str:
    found = re.search(r"weights (\S+),", output)
    assert found is not None, output
    return found[1]


@pytest.mark.parametrize("accumulated", ["1", "3"])
def test_the_example_has_the_bits_of_a_plain_trainer(tmp_path: Path, accumulated: str) -> None:
    assert changed_lines(EXAMPLE.name) <= 3
    size = ["--steps", "6", "--accumulate", accumulated, "--folder", str(tmp_path / "run")]
    own = weights(torchrun(without_laconic(EXAMPLE.name, tmp_path), *size))
    assert weights(torchrun(EXAMPLE, *size)) == own
    assert weights(torchrun(EXAMPLE, *size, "--strategy", "bf16")) != own


def test_a_resumed_run_ends_with_the_weights_of_an_undisturbed_one(tmp_path: Path) -> None:
    """Saved in step 5, between two averages, when models and memories differ from rank to rank."""
    common = ["--strategy", MEMORY, "--save-every", "5", "--folder", str(tmp_path / "run")]
    undisturbed = weights(torchrun(EXAMPLE, "--steps", "10", *common))
    (tmp_path / "run" / "checkpoint-10").rename(tmp_path / "elsewhere")
    assert weights(torchrun(EXAMPLE, "--steps", "10", "--resume", *common)) == undisturbed


ACCUMULATING = """
import sys
sys.argv = ["example", "--strategy", "accumulate(2)", "--steps", "2", "--folder", sys.argv[1]]
sys.path.insert(0, EXAMPLES)
import laconic
from transformers_text import main
try:
    main()
except laconic.ContractError as error:
    print("refused:", error)
"""


def test_sums_of_gradients_over_steps_are_refused(tmp_path: Path) -> None:
    script = tmp_path / "accumulating.py"
    script.write_text(ACCUMULATING.replace("EXAMPLES", repr(str(EXAMPLES))))
    output = torchrun(script, str(tmp_path / "run"), workers=1)
    assert "refused: `accumulate(2)` sums gradients over steps" in output
