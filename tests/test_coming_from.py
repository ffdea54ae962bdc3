"""The diffs of the page on other libraries: what each script becomes runs on virtual workers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import laconic
from laconic.strategy import Strategy

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "coming-from.md").read_text()
DIFFS: dict[str, str] = dict(re.findall(r"^## (.*?)\n+```diff\n(.*?)```", PAGE, re.MULTILINE | re.DOTALL))


def after(diff: str) -> str:
    lines = diff.splitlines()
    assert all(line[:1] in (" ", "+", "-", "") for line in lines)
    return "\n".join(line[1:] for line in lines if not line.startswith("-"))


def before(diff: str) -> str:
    return "\n".join(line[1:] for line in diff.splitlines() if not line.startswith("+"))


def test_the_page_has_its_libraries() -> None:
    assert {"DDP", "FSDP", "Accelerate", "DeepSpeed's 1-bit Adam", "Horovod", "hivemind"} <= DIFFS.keys()


@pytest.mark.parametrize("name", DIFFS)
def test_both_sides_are_python_and_only_one_is_laconics(name: str) -> None:
    compile(before(DIFFS[name]), name, "exec")
    compile(after(DIFFS[name]), name, "exec")
    assert "laconic" in after(DIFFS[name]) and "laconic" not in before(DIFFS[name])


@pytest.mark.parametrize("name", [name for name, diff in DIFFS.items() if "laconic.distribute" in diff])
def test_what_a_script_becomes_trains(name: str) -> None:
    """On two workers, whose models agree in the end and have changed."""

    def body() -> tuple[Tensor, Tensor]:
        torch.manual_seed(laconic.rank())
        data = TensorDataset(torch.randn(800, 6), torch.randn(800, 4))
        names: dict[str, Any] = {"Net": lambda: nn.Linear(6, 4), "dataset": data, "criterion": nn.functional.mse_loss}
        exec(after(DIFFS[name]), names)
        model, optimizer = names["model"], names["optimizer"]
        laconic.finish(model, optimizer)
        assert laconic.traffic().steps >= 12 and laconic.traffic().payload_bytes > 0
        torch.manual_seed(0)
        weight = model.weight.full_tensor() if hasattr(model.weight, "full_tensor") else model.weight
        return weight.detach().clone(), nn.Linear(6, 4).weight.detach()

    (first, start), (second, _) = laconic.simulate(body, 2).results
    assert torch.equal(first, second) and not torch.equal(first, start)


def test_sentences_of_the_page_are_read() -> None:
    quoted = re.findall(r'"([a-z][^"\n]* / [^"\n]*)"', PAGE)
    assert len(quoted) >= 4
    for sentence in quoted:
        Strategy.parse(sentence)
