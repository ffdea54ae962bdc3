"""Examples of other frameworks under torchrun: as they are, and as one would write them without laconic.

A line of an example that ends in `# new` is laconic's; one that ends in `# was: …` replaces that text's.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from laconic.values.process_place import PLACE_VARIABLES
from laconic.values.run_config import VARIABLE

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
SECONDS = 400
_WAS = re.compile(r"^( *)(.*)  # was: (.*)$")


def needs(package: str) -> pytest.MarkDecorator:
    """Skip tests where a package is missing; it is not imported to find out, which takes seconds."""
    return pytest.mark.skipif(
        find_spec(package) is None, reason=f"{package} is not installed: pip install 'laconic[frameworks]'"
    )


def changed_lines(example: str) -> int:
    lines = (EXAMPLES / example).read_text().splitlines()
    return sum(line.endswith("# new") or _WAS.match(line) is not None for line in lines)


def without_laconic(example: str, folder: Path) -> Path:
    """The framework's own script, in a folder."""
    written = []
    for line in (EXAMPLES / example).read_text().splitlines():
        if line.endswith("# new"):
            continue
        was = _WAS.match(line)
        written.append(line if was is None else _as_it_was(was))
    script = folder / example
    script.write_text("\n".join(written) + "\n")
    assert "laconic" not in "\n".join(written).split('"""', 2)[2]
    return script


def _as_it_was(line: re.Match[str]) -> str:
    indent, now, was = line.groups()
    target, equals, _ = now.partition(" = ")
    keeps_target = equals and " = " not in was and "(" not in target
    return f"{indent}{target}{equals}{was}" if keeps_target else f"{indent}{was}"


def environment() -> dict[str, str]:
    """What a script is started in: this checkout, one thread, nothing of a launcher of the tests themselves, no GPU."""
    dropped = (VARIABLE, *PLACE_VARIABLES, "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    own = {name: value for name, value in os.environ.items() if name not in dropped}
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    offline = {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline", "CUDA_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "1"}
    return {**own, **offline, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def torchrun(script: Path, *arguments: str, workers: int = 2, folder: Path | None = None) -> str:
    """What a script prints under torchrun; it must end well."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    launcher = ["-m", "torch.distributed.run", f"--nproc-per-node={workers}", f"--master-port={port}"]
    return python(*launcher, str(script), *arguments, folder=folder)


def python(*arguments: str, folder: Path | None = None, **variables: str) -> str:
    """What a Python of its own prints, with these environment variables beside the others; it must end well."""
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**environment(), **variables},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
