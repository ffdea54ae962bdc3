"""The crew of a run with servers: processes that may die and come back one by one.

Nobody here waits in a collective, so a death concerns nobody else: a worker is started again, or the run goes on
without it; a server always comes back, and goes on from its snapshot. torch's elastic agent can only start all again.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from subprocess import Popen
from typing import Any

from laconic.launch import processes
from laconic.launch.failure_report import show_log
from laconic.launch.hosts import Hosts, join_hosts, keys_file
from laconic.launch.members import ServerRunProcess, enlist
from laconic.launch.process_manager import OnStart
from laconic.launch.request import Request
from laconic.launch.site import Site
from laconic.liveness.beats import EXIT_LOST, describe_exit, name_ranks

_LOOK_SECONDS = 0.05
_GOODBYE_SECONDS = 3.0  # for servers to end by themselves once all workers have said goodbye
_END_SECONDS = 5.0


@dataclass(frozen=True)
class Loss:
    """Somebody's death, `seconds` after the run began."""

    who: str
    machine: str
    cause: str
    seconds: float
    life: int
    restarted: bool


class Supervisor:
    """Starts this machine's processes, and looks after each by itself."""

    def __init__(
        self,
        site: Site,
        machines: Hosts,
        members: list[ServerRunProcess],
        say: Callable[[str], None],
        on_start: OnStart,
    ) -> None:
        self.site, self._machines, self._members = site, machines, members
        self.losses: list[Loss] = []
        self._say, self._on_start = say, on_start
        self._workers = [member for member in members if not member.is_server]
        self._servers = [member for member in members if member.is_server]
        self._began_seconds = time.monotonic()
        self._acting = threading.Lock()
        self._stopping = False
        self._failure: str | None = None
        self._served_returns: dict[str, int] = {}

    @property
    def ranks(self) -> tuple[int, ...]:
        first = self._machines.node * len(self._workers)
        return tuple(range(first, first + len(self._workers)))

    def see_through(self) -> None:
        self._on_start(self._machines.node, self.ranks, len(self._workers) * self.site.nodes)
        try:
            self._act(self._start)
            while self._failure is None and not self._is_over():
                self._act(self._look)
                time.sleep(_LOOK_SECONDS)
            if not any(member.gone for member in self._members):
                processes.await_exits(self._processes(self._servers), _GOODBYE_SECONDS)
        finally:
            self._act(self._end_all)
            self._machines.leave()

    def stop(self, number: signal.Signals, cause: str, seconds: float) -> None:
        with self._acting:  # nobody is being started, and nobody will be
            self._stopping = True
        everybody = self._processes(self._members)
        processes.forward(everybody, number)
        processes.await_exits(everybody, seconds)
        processes.kill(everybody)
        self._machines.leave()

    def account(self) -> int:
        """A run without some of its workers has still ended well; one without any, or without a server, has not."""
        if again := [f"{member.name} ({member.life})" for member in self._members if member.life > 0]:
            self._say(f"started again: {', '.join(again)}")
        gone = {member.name: member for member in self._members if member.gone}
        for loss in (loss for loss in self.losses if not loss.restarted):
            self._say(f"{loss.who} was lost after {loss.seconds:.1f} s for good: {loss.cause}")
            if loss.who in gone:
                show_log(loss.who, gone[loss.who].log, tail=loss.who != "rank 0")
        if self._failure is None and not all(worker.gone for worker in self._workers):
            return 0
        self._say(f"the run failed: {self._failure or 'no worker of this machine came to its end.'}")
        code = next((member.code for member in gone.values() if member.code), EXIT_LOST)
        return 128 - code if code < 0 else code

    def facts(self) -> dict[str, Any]:
        return {
            "lost": [loss.who for loss in self.losses if not loss.restarted],
            "losses": [asdict(loss) for loss in self.losses],
            "restarts": {member.name: member.life for member in self._members if member.life > 0},
        }

    # ------------------------------------------------------------------------------ one look at everybody

    def _start(self) -> None:
        for member in self._members:
            member.start()

    def _look(self) -> None:
        for member in self._members:
            if code := member.look():
                self._lose(member, code)
        self._revive_servers()
        self._failure = self._failure or self._machines.trouble()
        if (lost := self._machines.lost()) is not None:
            self._note(name_ranks(lost.ranks), lost.machine, lost.cause)
            self._say(f"{lost.sentence()} The run goes on.")

    def _lose(self, member: ServerRunProcess, code: int) -> None:
        """Say who died and why; then start it again, or go on without."""
        cause, advice = describe_exit(code)
        again = member.life < member.restarts
        self._note(member.name, self.site.machine, cause, member.life, again)
        said = f"{member.name} on {self.site.machine} was lost: {cause}."
        if again:
            whence = " from its snapshot" if member.is_server else ""
            self._say(f"{said} It starts again{whence}: restart {member.life + 1} of {member.restarts}.")
            member.start()
            return
        member.gone = True
        if member.is_server:
            self._failure = (
                f"{said} It was started again {member.restarts} times already (--server-restarts), and nobody can go "
                f"on without it. {advice}"
            )
            return
        self._say(f"{said} {advice} The run goes on without it.")

    def _note(self, who: str, machine: str, cause: str, life: int = 0, restarted: bool = False) -> None:
        seconds = round(time.monotonic() - self._began_seconds, 3)
        self.losses.append(Loss(who, machine, cause, seconds, life, restarted))

    def _revive_servers(self) -> None:
        """A server that ends because everybody had said goodbye is needed again when somebody comes back meanwhile:
        once for each time that somebody does."""
        returns = sum(worker.life for worker in self._workers)
        for server in self._servers:
            if server.code == 0 and returns > self._served_returns.get(server.name, 0):
                self._served_returns[server.name] = returns
                server.start()

    def _is_over(self) -> bool:
        return all(worker.gone or worker.code == 0 for worker in self._workers) and self._machines.may_end()

    def _end_all(self) -> None:
        everybody = self._processes(self._members)
        processes.forward(everybody, signal.SIGTERM)
        processes.await_exits(everybody, _END_SECONDS)
        processes.kill(everybody)

    def _act(self, act: Callable[[], object]) -> None:
        """Unless the main thread is ending the process: then wait until it has."""
        with self._acting:
            if not self._stopping:
                act()
                return
        threading.Event().wait()

    @staticmethod
    def _processes(members: list[ServerRunProcess]) -> list[Popen[bytes]]:
        return [process for member in members for process in member.processes]


def build_supervisor(request: Request, folder: Path, say: Callable[[str], None], on_start: OnStart) -> Supervisor:
    """A supervisor ready to run: the run's store is up (or reached), the keys are made, nothing is started yet."""
    site = Site.of(request, folder)
    machines = join_hosts(request, site)
    config = replace(request.config(folder), keys_file=str(keys_file(request, folder)))
    return Supervisor(site, machines, enlist(request, site, config, machines.node, machines.port), say, on_start)
