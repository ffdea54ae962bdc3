"""A SuperLink and SuperNodes on the loopback, and a run of an app on them."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "app"
version = "1.0.0"
description = ""
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "laconic"

[tool.flwr.app.components]
serverapp = "flower_app:server"
clientapp = "flower_app:client"

[tool.flwr.app.config]
"""


def free_ports(count: int) -> list[int]:
    """Return ports on which nobody listens."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def script(name: str) -> str:
    """Return the path of one of Flower's commands."""
    return str(Path(sys.executable).parent / name)


class Counter:
    """A port that hands all bytes on to another, and counts them."""

    def __init__(self, to: int) -> None:
        self._to, self._listener = to, socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.up = self.down = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                if self._listener.fileno() < 0:
                    return
                near.close()  # nobody listens there yet
                continue
            for source, sink, up in ((near, far, True), (far, near, False)):
                threading.Thread(target=self._hand_on, args=(source, sink, up), daemon=True).start()

    def _hand_on(self, source: socket.socket, sink: socket.socket, up: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if up:
                    self.up += len(data)
                else:
                    self.down += len(data)
                sink.sendall(data)
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


@contextmanager
def federation(folder: Path, nodes: int, way: str) -> Iterator[tuple[dict[str, str], list[Counter]]]:
    """Run a SuperLink and so many SuperNodes; give the environment of commands that talk to them, and what counts the
    bytes of each node."""
    link, *ports = free_ports(nodes + 1)
    counters = [Counter(link) for _ in range(nodes)]
    home = folder / "home"
    home.mkdir(parents=True)
    own = {"FLWR_HOME": str(home), "WAY": way, "OUT": str(folder / "out.json"), "PYTHONPATH": f"{ROOT}/src:{ROOT}"}
    environment = {
        **os.environ,
        **own,
        "FLWR_TELEMETRY_ENABLED": "0",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{link}"\ninsecure = true\n'
    )
    log = (folder / "log.txt").open("ab")
    commands = [
        [script("flower-superlink"), "--insecure", "--port", str(link), "--disable-runtime-dependency-installation"]
    ]
    commands += [
        [
            *(
                script("flower-supernode"),
                "--insecure",
                "--superlink",
                f"127.0.0.1:{counter.port}",
                "--port",
                str(port),
            ),
            *("--node-config", f"partition-id={client}"),
        ]
        for client, (port, counter) in enumerate(zip(ports, counters, strict=True))
    ]
    started = [
        subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True)
        for command in commands
    ]
    try:
        yield environment, counters
    finally:
        for process in started:
            process.terminate()
        for process in started:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait()
        log.close()
        for counter in counters:
            counter.close()


def run_app(folder: Path, environment: dict[str, str], seconds: float) -> dict[str, Any]:
    """Let `flwr run` run the app, and return what it has written."""
    app = folder / "app"
    app.mkdir()
    (app / "pyproject.toml").write_text(PROJECT)
    shutil.copy(ROOT / "tests/integrations/flower_app.py", app / "flower_app.py")
    end = time.monotonic() + seconds
    while True:
        done = subprocess.run(
            [script("flwr"), "run", str(app)],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            check=False,
            text=True,
            timeout=seconds,
        )
        if done.returncode == 0 or time.monotonic() > end:
            break
        time.sleep(1.0)  # the SuperLink is not there yet
    out = folder / "out.json"
    while not out.exists():
        if time.monotonic() > end:
            raise TimeoutError(done.stdout + done.stderr + (folder / "log.txt").read_text()[-4000:])
        time.sleep(0.2)
    found: dict[str, Any] = json.loads(out.read_text())
    return found
