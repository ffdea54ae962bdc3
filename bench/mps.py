"""NVIDIA's MPS, under which the kernels of several processes run on one GPU at the same time."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def daemon() -> Iterator[tuple[Mapping[str, str] | None, str]]:
    """Start MPS's control daemon with folders of its own, yield the environment of its clients, and end it; None and
    the reason where it does not start."""
    program = shutil.which("nvidia-cuda-mps-control")
    if program is None:
        yield None, "nvidia-cuda-mps-control is not installed"
        return
    with tempfile.TemporaryDirectory(prefix="mps", ignore_cleanup_errors=True) as folder:
        pipes, logs = Path(folder, "pipes"), Path(folder, "logs")
        pipes.mkdir()
        logs.mkdir()
        environment = {"CUDA_MPS_PIPE_DIRECTORY": str(pipes), "CUDA_MPS_LOG_DIRECTORY": str(logs)}

        said = Path(folder, "said.txt")  # no pipe: a daemon may hold its end of one open

        def control(*arguments: str, given: str = "") -> int:
            with said.open("w") as out:
                done = subprocess.run(
                    [program, *arguments],
                    check=False,
                    input=given,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    text=True,
                    timeout=20,
                    env={**os.environ, **environment},
                )
            return done.returncode

        try:
            status = control("-d")
        except (subprocess.TimeoutExpired, OSError) as error:
            yield None, f"the daemon did not start: {error}"
            return
        if status:
            yield None, f"the daemon did not start (status {status}): {said.read_text().strip()[:300]}"
            return
        time.sleep(1.0)
        try:
            yield environment, ""
        except Exception as error:
            written = " / ".join(line for log in logs.glob("*.log") for line in log.read_text().splitlines()[-3:])
            error.args = (f"{error}; the daemon's log ends with: {written[:500]}",)
            raise
        finally:
            try:
                control(given="quit\n")
            except subprocess.TimeoutExpired:
                print("the MPS daemon did not end within 20 s", flush=True)
