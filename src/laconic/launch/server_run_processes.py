"""The processes of a run with servers: the environment and command of each, and how it is started and restarted."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from laconic.launch import processes
from laconic.launch.launch_context import LaunchContext
from laconic.launch.net import find
from laconic.launch.request import Request
from laconic.liveness.detection import Lost
from laconic.liveness.pipe_heartbeat import HeartbeatPipe
from laconic.values.run_config import RunConfig

_DIE_WITH_PARENT = Path(__file__).with_name("die_with_parent.py")


@dataclass(eq=False)
class RestartableProcess:
    """A worker or server process that may be restarted: `life` counts its starts from 0; all append to one log.

    Where the run continues another, the lives of `config` begin after those of that run.
    """

    name: str
    machine: str
    is_server: bool
    restarts: int  # how often it may be restarted
    log: Path
    config: RunConfig
    environment: Mapping[str, str]
    command: Sequence[str]
    life: int = -1
    code: int | None = None  # the exit code of its latest life; None while it runs
    gone: bool = False  # it died, and is not restarted
    _process: subprocess.Popen[bytes] | None = None
    _heartbeats: HeartbeatPipe | None = None

    def start(self) -> None:
        """Start the process, for the first time or again."""
        self.life += 1
        self.code = None
        pipe = self._heartbeats = HeartbeatPipe(self.machine, self.config.heartbeat_seconds)
        run_environment = replace(self.config, life=self.config.life + self.life, heartbeat_pipe=pipe.writer).to_env()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command,
                env={**os.environ, **self.environment, **run_environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that what it starts itself can be ended with it
                pass_fds=(pipe.writer,),
            )
        pipe.close_writer()

    def poll(self) -> int | None:
        """Return its exit code if it has ended since the last poll; the processes it has started are ended too."""
        if self._process is None or (code := self._process.poll()) is None:
            return None
        processes.kill([self._process])
        self.code, self._process = code, None  # its process id may soon be reused
        if self._heartbeats is not None:
            self._heartbeats.close()
            self._heartbeats = None
        return code

    def kill_if_silent(self) -> Lost | None:
        """Kill it if its heartbeats have stopped, and return that loss: a frozen process is lost as a dead one is."""
        silence = None if self._heartbeats is None else self._heartbeats.look()
        if silence is not None:
            processes.kill(self.processes)
        return silence

    @property
    def processes(self) -> list[subprocess.Popen[bytes]]:
        """The running process, if any."""
        return [] if self._process is None else [self._process]


def build_processes(
    request: Request, context: LaunchContext, config: RunConfig, node: int, port: int
) -> list[RestartableProcess]:
    """Return this host's workers, and on the first host the servers, before any has started.

    A server runs the same script with the same arguments. Its RANK follows those of the workers, so that what the
    script does on rank 0 only is not done twice; WORLD_SIZE counts workers only.
    """
    workers, size = request.workers, request.workers * request.nodes
    places = None if request.net is None else find(request.net).places
    python = (sys.executable, *request.python_arguments())

    def member(is_server: bool, number: int, rank: int, local: int, place: int) -> RestartableProcess:
        command = python if places is None else places[place].command(python)
        kind = "server" if is_server else "rank"
        return RestartableProcess(
            name=f"{kind} {number}",
            machine=context.host_name,
            is_server=is_server,
            restarts=request.server_restarts if is_server else request.restarts,
            log=context.log_of(kind, number),
            config=replace(config, role="server" if is_server else "worker", index=number if is_server else 0),
            environment={
                "RANK": str(rank),
                "WORLD_SIZE": str(size),
                "LOCAL_RANK": str(local),
                "LOCAL_WORLD_SIZE": str(workers),
                "MASTER_ADDR": context.address if request.rendezvous is None else request.endpoint[0],
                "MASTER_PORT": str(port),
            },
            command=(sys.executable, "-I", "-S", str(_DIE_WITH_PARENT), str(os.getpid()), *command),
        )

    first = node * workers
    servers = [
        member(True, k, size + k, k, k % workers if request.colocate else workers + k)
        for k in range(request.servers if node == 0 else 0)
    ]
    return [*servers, *(member(False, first + k, first + k, k, k) for k in range(workers))]
