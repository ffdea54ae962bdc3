"""The process manager of a run with servers: its processes may die and be restarted one by one.

No worker waits in a collective, so a death affects no other process: a worker is restarted, or the run goes on without
it; a server is restarted and continues from its snapshot. torch's elastic agent can only restart all workers together.
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
from laconic.launch.launch_context import LaunchContext
from laconic.launch.process_manager import OnStart
from laconic.launch.request import Request
from laconic.launch.run_folder import first_life
from laconic.launch.server_run_hosts import Hosts, join_hosts, keys_file
from laconic.launch.server_run_processes import RestartableProcess, build_processes
from laconic.liveness.detection import EXIT_LOST, EXIT_REFUSED, describe_exit, name_ranks

_POLL_SECONDS = 0.05
_SERVER_EXIT_SECONDS = 3.0  # for servers to end by themselves once all workers have left
_END_SECONDS = 5.0


@dataclass(frozen=True)
class Loss:
    """The death of a worker or server, `seconds` after the run began."""

    who: str
    machine: str
    cause: str
    seconds: float
    life: int
    restarted: bool


class Supervisor:
    """Starts this host's processes, and watches and restarts each separately."""

    def __init__(
        self,
        context: LaunchContext,
        hosts: Hosts,
        members: list[RestartableProcess],
        print_line: Callable[[str], None],
        on_start: OnStart,
    ) -> None:
        self.context, self._hosts, self._members = context, hosts, members
        self.losses: list[Loss] = []
        self._print_line, self._on_start = print_line, on_start
        self._workers = [member for member in members if not member.is_server]
        self._servers = [member for member in members if member.is_server]
        self._began_seconds = time.monotonic()
        self._action_lock = threading.Lock()
        self._stopping = False
        self._failure: str | None = None
        self._served_returns: dict[str, int] = {}

    @property
    def ranks(self) -> tuple[int, ...]:
        first = self._hosts.node * len(self._workers)
        return tuple(range(first, first + len(self._workers)))

    def run_to_end(self) -> None:
        self._on_start(self._hosts.node, self.ranks, len(self._workers) * self.context.nodes)
        try:
            self._unless_stopping(self._start)
            while self._failure is None and not self._is_over():
                self._unless_stopping(self._check_all)
                time.sleep(_POLL_SECONDS)
            if not any(member.gone for member in self._members):
                processes.await_exits(self._processes(self._servers), _SERVER_EXIT_SECONDS)
        finally:
            self._unless_stopping(self._end_all)
            self._hosts.leave()

    def stop(self, number: signal.Signals, cause: str, seconds: float) -> None:
        with self._action_lock:  # no process is being started, and none will be
            self._stopping = True
        running = self._processes(self._members)
        processes.forward(running, number)
        processes.await_exits(running, seconds)
        processes.kill(running)
        self._hosts.leave()

    def report(self) -> int:
        """Report losses and restarts, and return the exit code for the shell.

        A run that has lost some of its workers has still ended well; one that has lost rank 0, which keeps what was
        learnt, or all of them, or a server, has not.
        """
        if restarted := [f"{member.name} ({member.life})" for member in self._members if member.life > 0]:
            self._print_line(f"started again: {', '.join(restarted)}")
        gone = {member.name: member for member in self._members if member.gone}
        for loss in (loss for loss in self.losses if not loss.restarted):
            self._print_line(f"{loss.who} was lost after {loss.seconds:.1f} s for good: {loss.cause}")
            if loss.who in gone:
                show_log(loss.who, gone[loss.who].log, tail=loss.who != "rank 0")
        failure = self._failure
        if failure is None and all(worker.gone for worker in self._workers):
            failure = "no worker of this machine came to its end."
        elif failure is None and "rank 0" in gone:
            failure = "rank 0 was lost for good, and with it what it alone does, such as saving the model."
        if failure is None:
            return 0
        self._print_line(f"the run failed: {failure}")
        code = next((member.code for member in gone.values() if member.code), EXIT_LOST)
        return 128 - code if code < 0 else code

    def result_fields(self) -> dict[str, Any]:
        return {
            "lost": [loss.who for loss in self.losses if not loss.restarted],
            "losses": [asdict(loss) for loss in self.losses],
            "restarts": {member.name: member.life for member in self._members if member.life > 0},
        }

    # ------------------------------------------------------------------------------ one check of all processes

    def _start(self) -> None:
        for member in self._members:
            member.start()

    def _check_all(self) -> None:
        for member in self._members:
            if code := member.poll():
                self._lose(member, code, *describe_exit(code))
            elif (silence := member.kill_if_silent()) is not None:
                self._lose(member, member.poll() or EXIT_LOST, silence.cause, silence.advice)
        self._restart_servers()
        self._failure = self._failure or self._hosts.failure()
        if (lost := self._hosts.lost()) is not None:
            self._note(name_ranks(lost.ranks), lost.machine, lost.cause)
            self._print_line(f"{lost.sentence()} The run goes on.")

    def _lose(self, member: RestartableProcess, code: int, cause: str, advice: str) -> None:
        """Report which process was lost and why; then restart it, or go on without it."""
        restarted = member.life < member.restarts and code != EXIT_REFUSED
        self._note(member.name, self.context.host_name, cause, member.life, restarted)
        loss_text = f"{member.name} on {self.context.host_name} was lost: {cause}."
        if restarted:
            source = " from its snapshot" if member.is_server else ""
            self._print_line(f"{loss_text} It starts again{source}: restart {member.life + 1} of {member.restarts}.")
            member.start()
            return
        member.gone = True
        if code == EXIT_REFUSED:
            self._failure = f"{cause.removesuffix('.')} ({member.name})."
            return
        if member.is_server:
            self._failure = (
                f"{loss_text} It was started again {member.restarts} times already (--server-restarts), and nobody can "
                f"go on without it. {advice}"
            )
            return
        self._print_line(f"{loss_text} {advice} The run goes on without it.")

    def _note(self, who: str, machine: str, cause: str, life: int = 0, restarted: bool = False) -> None:
        seconds = round(time.monotonic() - self._began_seconds, 3)
        self.losses.append(Loss(who, machine, cause, seconds, life, restarted))

    def _restart_servers(self) -> None:
        """Restart servers that ended because all workers had left, once for each worker that was restarted since."""
        returns = sum(worker.life for worker in self._workers)
        for server in self._servers:
            if server.code == 0 and returns > self._served_returns.get(server.name, 0):
                self._served_returns[server.name] = returns
                server.start()

    def _is_over(self) -> bool:
        return all(worker.gone or worker.code == 0 for worker in self._workers) and self._hosts.can_end()

    def _end_all(self) -> None:
        running = self._processes(self._members)
        processes.forward(running, signal.SIGTERM)
        processes.await_exits(running, _END_SECONDS)
        processes.kill(running)

    def _unless_stopping(self, act: Callable[[], object]) -> None:
        """Call `act`, unless the main thread is ending the process: then wait until it has."""
        with self._action_lock:
            if not self._stopping:
                act()
                return
        threading.Event().wait()

    @staticmethod
    def _processes(members: list[RestartableProcess]) -> list[Popen[bytes]]:
        return [process for member in members for process in member.processes]


def build_supervisor(
    request: Request, folder: Path, print_line: Callable[[str], None], on_start: OnStart
) -> Supervisor:
    """Return a supervisor that is ready to run: it has the run's store and keys, and has started nothing yet."""
    context = LaunchContext.of(request, folder)
    hosts = join_hosts(request, context)
    config = replace(
        request.config(folder), keys_file=str(keys_file(request, folder)), life=first_life(folder, request.resume)
    )
    return Supervisor(
        context, hosts, build_processes(request, context, config, hosts.node, hosts.port), print_line, on_start
    )
