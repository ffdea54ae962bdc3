"""`laconic profile` on two real workers: a sound profile, and kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from laconic.real.connect import connect
from laconic.real.profiling.steps import model_times
from laconic.real.profiling.worker import profile_training
from laconic.values.profile import Profile
from laconic.values.run_config import RunConfig
from tests.real.launching import SOURCE, START_SECONDS
from tests.real.pool import SIZE, Pool, PoolRank

SCRIPT = """
import torch, laconic
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = laconic.distribute(model, optimizer)
for step in range(40):
    torch.nn.functional.mse_loss(model(torch.ones(4, 8)), torch.zeros(4, 4)).backward()
    optimizer.step()
    optimizer.zero_grad()
print("the whole script ran")
"""


def laconic(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LACONIC_RUN")}
    return subprocess.run(
        [sys.executable, "-m", "laconic", *arguments],
        cwd=cwd,
        env={**environment, "PYTHONPATH": str(SOURCE), "XDG_CACHE_HOME": str(cwd / "cache")},
        capture_output=True,
        text=True,
        timeout=4 * START_SECONDS,
        check=False,
    )


@pytest.mark.long
def test_a_profiling_run_leaves_a_sound_profile(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    asked = ("profile", "--workers", "2", "--steps", "1", "--out", "p.json", "train.py")
    done = laconic(*asked, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "the whole script ran" not in done.stdout
    profile = Profile.read(tmp_path / "p.json")
    assert [tensor.name for tensor in profile.model.tensors] == ["2.bias", "2.weight", "0.bias", "0.weight"]
    assert profile.workers == 2 and profile.model.seconds > 0
    assert (profile.kind, profile.optimizer) == ("classifier", "sgd")
    assert profile.links is not None
    names = {times.operation for times in profile.links.operations}
    assert names == {"all_reduce", "all_gather", "all_to_all", "broadcast"}
    assert {"cast_fp16", "cast_fp16+error_feedback", "allreduce", "allreduce(rank)"} <= {
        c.words for c in profile.codecs
    }

    again = laconic(*asked, cwd=tmp_path)
    assert again.returncode == 0 and "starting" not in again.stderr  # kept


def compiled_steps(member: PoolRank, backend: str | None) -> list[set[str]]:
    """Take three steps in a profiling run; return the parts of each that were marked."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    backward = torch.autograd.backward
    try:
        config = RunConfig(profile_steps=1000)  # so many that no profile is written
        model, optimizer = profile_training(model, optimizer, connect(), config, gather_sparse=True)
        called = model if backend is None else torch.compile(model, backend=backend)
        for _ in range(3):
            called(torch.ones(4, 8)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    finally:
        torch.autograd.backward = backward
    steps = optimizer.session.worker.steps  # type: ignore[attr-defined]
    model_times(steps, optimizer.session.parameters.specs)  # type: ignore[attr-defined]
    return [{part for _, part, _ in step} for step in steps]


@pytest.mark.long
def test_compiled_models_are_profiled_too(pool: Pool) -> None:
    """No hook runs in a compiled forward pass; its end is the begin of backward."""
    for backend in (None, "aot_eager"):
        for seen in pool.run(compiled_steps, backend, workers=SIZE):
            assert seen == [{"forward", "backward", "step"}] * 3
