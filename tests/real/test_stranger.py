"""A package outside this repository, with a compressor and a sync rule: every command knows them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.real.launching import SOURCE
from tests.test_tutorial import files

SCRIPT = """
import torch
from torch import nn
import laconic

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 4))
model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=0.05))
draw = torch.Generator().manual_seed(laconic.rank())
for step in range(32):
    x = torch.randn(16, 20, generator=draw)
    loss = nn.functional.cross_entropy(model(x), x[:, :4].argmax(1))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    laconic.log(loss=loss.item())
laconic.finish(model, optimizer)
if laconic.rank() == 0:
    print("ends with", sum(p.double().sum().item() for p in model.parameters()))
"""
STRATEGY = "every_nth(4) / byte_signs+ef"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A package of two files and a training script, in a folder that knows nothing of this repository."""
    package = tmp_path / "kit"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "codecs.py").write_text(files()["codecs.py"])
    (package / "rules.py").write_text(files()["rules.py"])
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def laconic(folder: Path, *arguments: str, extended: bool = True) -> str:
    """Run a command in the folder, and return what it prints; it must end well."""
    extension = ["--extend", "kit/codecs.py", "--extend", "kit.rules"] if extended else []
    command, *rest = arguments
    done = subprocess.run(
        [sys.executable, "-m", "laconic", command, *extension, *rest],
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{SOURCE}{os.pathsep}{folder}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.long
def test_every_command_knows_a_stranger(folder: Path) -> None:
    names = {entry["name"]: entry["axis"] for entry in json.loads(laconic(folder, "list", "--json"))}
    assert names["byte_signs"] == "compression" and names["every_nth"] == "sync"
    assert "steps between two averages" in laconic(folder, "show", "every_nth")

    virtual = laconic(folder, "run", "--engine", "virtual", "--workers", "2", "--strategy", STRATEGY, "train.py")
    real = laconic(folder, "run", "--workers", "2", "--strategy", STRATEGY, "train.py")
    by_place = STRATEGY.replace("every_nth", "kit.rules:EveryNth").replace("byte_signs", "kit/codecs.py:ByteSigns")
    placed = laconic(folder, "run", "--workers", "2", "--strategy", by_place, "train.py", extended=False)
    ends = [next(line for line in out.splitlines() if "ends with" in line) for out in (virtual, real, placed)]
    assert len(set(ends)) == 1, ends

    rows = ["--strategy", "bsp", "--strategy", STRATEGY]
    compared = laconic(folder, "compare", "--engine", "virtual", "--workers", "2", *rows, "train.py")
    assert STRATEGY in compared
    ablated = laconic(folder, "ablate", "--workers", "2", STRATEGY, "train.py")
    assert "byte_signs" in ablated and "every_nth" in ablated
    planned = laconic(
        folder, "plan", "resnet50", "--gpu", "v100", "--workers", "32", "--network", "1Gbit", "--strategy", STRATEGY
    )
    assert "byte_signs" in planned


@pytest.mark.long
def test_an_entry_point_needs_no_option(folder: Path) -> None:
    installed = folder / "kit-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: kit\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text("[laconic.techniques]\nkit = kit.codecs\n")
    assert "byte_signs" in laconic(folder, "show", "byte_signs", extended=False)
