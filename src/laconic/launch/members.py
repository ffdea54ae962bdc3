"""The processes of a run with servers: what each is told, and how it is started, again too."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from laconic.launch import processes
from laconic.launch.net import find
from laconic.launch.request import Request
from laconic.launch.site import Site
from laconic.values.run_config import RunConfig

_LEASH = Path(__file__).with_name("leash.py")


@dataclass(eq=False)
class ServerRunProcess:
    """One process and its successors: `life` counts them from 0. It appends to one log in all its lives."""

    name: str
    is_server: bool
    restarts: int  # how often it may be started again
    log: Path
    config: RunConfig
    environment: Mapping[str, str]
    command: Sequence[str]
    life: int = -1
    code: int | None = None  # how its latest life ended; None while it lasts
    gone: bool = False  # for good: it died, and nobody starts it again
    _process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Begin the next life."""
        self.life += 1
        self.code = None
        letter = replace(self.config, life=self.life).to_env()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command,
                env={**os.environ, **self.environment, **letter},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that what it starts itself can be ended with it
            )

    def look(self) -> int | None:
        """Its exit code if it has ended since it was last looked at; what it has started itself is ended too."""
        if self._process is None or (code := self._process.poll()) is None:
            return None
        processes.kill([self._process])
        self.code, self._process = code, None  # its number may soon be another process's
        return code

    @property
    def processes(self) -> list[subprocess.Popen[bytes]]:
        """The one that lives, if any."""
        return [] if self._process is None else [self._process]


def enlist(request: Request, site: Site, config: RunConfig, node: int, port: int) -> list[ServerRunProcess]:
    """This machine's workers, and on the first machine the servers, before any has started.

    A server runs the same script with the same arguments. Its RANK follows those of the workers, so that what rank 0
    does for all is not done twice; WORLD_SIZE counts workers only.
    """
    workers, size = request.workers, request.workers * request.nodes
    places = None if request.net is None else find(request.net).places
    python = (sys.executable, *request.python_arguments())

    def member(is_server: bool, number: int, rank: int, local: int, place: int) -> ServerRunProcess:
        command = python if places is None else places[place].command(python)
        kind = "server" if is_server else "rank"
        return ServerRunProcess(
            name=f"{kind} {number}",
            is_server=is_server,
            restarts=request.server_restarts if is_server else request.restarts,
            log=site.log_of(kind, number),
            config=replace(config, role="server" if is_server else "worker", index=number if is_server else 0),
            environment={
                "RANK": str(rank),
                "WORLD_SIZE": str(size),
                "LOCAL_RANK": str(local),
                "LOCAL_WORLD_SIZE": str(workers),
                "MASTER_ADDR": site.address if request.rendezvous is None else request.endpoint[0],
                "MASTER_PORT": str(port),
            },
            command=(sys.executable, "-I", "-S", str(_LEASH), str(os.getpid()), *command),
        )

    first = node * workers
    servers = [
        member(True, k, size + k, k, k % workers if request.colocate else workers + k)
        for k in range(request.servers if node == 0 else 0)
    ]
    return [*servers, *(member(False, first + k, first + k, k, k) for k in range(workers))]
