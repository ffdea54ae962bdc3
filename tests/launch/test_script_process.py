"""The process that runs a script: as Python would, with a sentence for a refusal, and not alone without a word."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch.distributed as dist

from laconic.errors import ContractError
from laconic.launch.request import Request
from laconic.launch.virtual import launch_virtually
from laconic.liveness.detection import EXIT_REFUSED
from laconic.runtime import undistributed
from laconic.values.run_config import RunConfig

SOURCE = Path(__file__).parents[2] / "src"
ALONE = """
import torch
from torch import nn
model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1000):
    model(torch.ones(4, 2)).square().mean().backward()
    optimizer.step()
    print("step", step)
print("trained")
"""


def process(
    config: RunConfig, *words: str, folder: Path, largest_file: int = resource.RLIM_INFINITY
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **config.to_env(), "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-u", "-m", "laconic.launch.script_process", *words]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, resource.RLIM_INFINITY)),
    )  # fmt: skip


def test_training_without_distribute_is_refused_in_its_first_steps(tmp_path: Path) -> None:
    """Before, N separate trainings ended with exit code 0."""
    (tmp_path / "alone.py").write_text(ALONE)
    done = process(RunConfig(workers=2), "alone.py", folder=tmp_path)
    assert done.returncode == EXIT_REFUSED, done.stderr
    assert done.stdout == "step 0\nstep 1\n"
    (line,) = done.stderr.splitlines()
    assert line.startswith("laconic: the script does not call laconic.distribute(), and its optimizer steps")
    assert "each of the 2 workers" in line and "laconic.distribute(model, optimizer)" in line


@pytest.mark.parametrize(
    ("config", "refused"),
    [(RunConfig(), False), (RunConfig(dry_run=True), True), (RunConfig(profile_to="profile.json"), True)],
    ids=["run", "dry run", "rehearsal"],
)
def test_a_script_with_a_group_of_its_own_may_train_but_not_in_a_rehearsal(
    monkeypatch: pytest.MonkeyPatch, config: RunConfig, refused: bool
) -> None:
    """DDP without `distribute()` is no training alone; a dry run, or a plan's rehearsal, would train it to its end."""
    for name, value in config.to_env().items():
        monkeypatch.setenv(name, value)
    undistributed.forget_all()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        undistributed.before_step()
        undistributed.before_step()
        with pytest.raises(ContractError, match="does not call") if refused else nullcontext():
            undistributed.before_step()
    finally:
        dist.destroy_process_group()
        undistributed.forget_all()


def test_virtual_workers_that_train_without_distribute_are_refused_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LACONIC_RUN", "{}")  # given back at the end
    (tmp_path / "alone.py").write_text(ALONE)
    request = Request(command=(str(tmp_path / "alone.py"),), workers=3, engine="virtual", folder=str(tmp_path / "run"))
    with pytest.raises(ContractError, match=r"does not call laconic\.distribute.* each of the 3 workers"):
        launch_virtually(request)


def test_an_error_of_the_script_has_the_traceback_that_python_shows(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(
        "import sys\nprint(__name__, __file__, sys.argv[1:])\nraise ValueError('mine')\n"
    )
    done = process(RunConfig(), "wrong.py", "--deep", folder=tmp_path)
    plain = subprocess.run(
        [sys.executable, "wrong.py", "--deep"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == plain.returncode == 1
    assert (done.stdout, done.stderr) == (plain.stdout, plain.stderr)


def test_a_full_disk_in_the_middle_of_a_run_is_a_sentence(tmp_path: Path) -> None:
    fill = "file = open('big', 'wb', buffering=0)\nfile.write(bytes(5000))\nfile.write(b'.')\n"
    (tmp_path / "fill.py").write_text(fill)
    done = process(RunConfig(), "fill.py", folder=tmp_path, largest_file=5000)
    assert done.returncode == EXIT_REFUSED
    (line,) = done.stderr.splitlines()
    assert "fill.py writes in line 3 does not fit on the disk: File too large" in line


def test_a_refusal_of_laconic_is_a_sentence_without_a_traceback(tmp_path: Path) -> None:
    script = tmp_path / "refused.py"
    script.write_text("from laconic.errors import ContractError\nraise ContractError('this cannot\\nbe done')\n")
    done = process(RunConfig(), str(script), folder=tmp_path)
    assert done.returncode == EXIT_REFUSED
    assert done.stderr == "laconic: this cannot be done\n"
