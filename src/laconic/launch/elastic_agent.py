"""torch's elastic agent, extended to report which worker was lost.

torch's own agent ends all other workers the moment one fails, so the survivors cannot log why. This one announces the
loss to them first (through the slot of the run's store that their heartbeats watch), gives them a moment to log it, and
only then lets torch do its bookkeeping. It runs in a thread of its own, since waiting for other hosts may block in
native code; the main thread stays free for signals and the time limit (`launch.py`).
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from inspect import signature
from subprocess import Popen
from typing import Any

from torch.distributed import TCPStore
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs
from torch.distributed.elastic.multiprocessing.api import SubprocessContext

from laconic.launch import processes
from laconic.launch.failure_report import report_failure
from laconic.launch.launch_context import LaunchContext
from laconic.launch.process_manager import OnStart
from laconic.launch.run_store import open_store
from laconic.liveness.detection import EXIT_LOST, EXIT_REFUSED, Judge, Lost, describe_exit, interval, lost_file
from laconic.liveness.store_thread import StoreAddress, Watch
from laconic.values.run_config import attempt_prefix

GRACE_SECONDS = 5.0
"""How long survivors may take to log who was lost: they read it within a second, and their exit takes a moment."""

_READ_SECONDS = 0.25
_ANNOUNCE_SECONDS = 2.0
_LAUNCHER_PATIENCE = 1.5
# In heartbeats: launchers watch each other too, for scripts without a heartbeat, but ranks know more and report first.


# seconds between SIGTERM and SIGKILL, for a torch with that option (2.13 has it, 2.11 has not)
_SHUTDOWN: dict[str, Any] = (
    {"shutdown_timeout": 1} if "shutdown_timeout" in signature(LocalElasticAgent.__init__).parameters else {}
)


class Agent(LocalElasticAgent):
    """The process manager of a run without servers, one on each host.

    `attempt` counts from 0; `lost` and `codes` (the exit code of each rank) are how the last attempt ended.
    """

    def __init__(
        self, spec: WorkerSpec, context: LaunchContext, print_line: Callable[[str], None], on_start: OnStart
    ) -> None:
        super().__init__(spec, logs_specs=_Inherited(), exit_barrier_timeout=0, **_SHUTDOWN)
        self.context = context
        self.attempt = 0
        self.lost: Lost | None = None
        self.codes: dict[int, int] = {}
        self._print_line, self._on_start = print_line, on_start
        self._watch: Watch | None = None
        self._peers: Watch | None = None
        self._server: TCPStore | None = None
        self._starting = threading.Lock()
        self._stopping = False
        self._failed = False

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks on this host."""
        return tuple(worker.global_rank for worker in self._worker_group.workers)

    def run_to_end(self) -> None:
        result = self.run()
        self._failed = result is None or result.is_failed()

    def report(self) -> int:
        if not self._failed and self.lost is None:
            return 0
        self._keep_store_alive()
        return report_failure(self)

    def result_fields(self) -> dict[str, Any]:
        return {"attempts": self.attempt + 1, "lost": None if self.lost is None else asdict(self.lost)}

    def stop(self, number: signal.Signals, cause: str, seconds: float) -> None:
        """End everything from another thread: notify the other hosts, forward the signal, then kill what is left."""
        with self._starting:  # either all workers have been started, or none will be
            self._stopping = True
        if self._watch is not None and self.context.nodes > 1:
            lost = Lost(self.ranks, self.context.host_name, cause, "It was ended there on purpose.", final=True)
            self._announce(lost)
        workers = self._workers().values()
        processes.forward(workers, number)
        processes.await_exits(workers, seconds)
        processes.kill(workers)

    def _keep_store_alive(self) -> None:
        """Keep the store alive until other hosts have read why the run ended, where this process hosts it."""
        if self._server is not None and self.context.nodes > 1:
            time.sleep(2.5 * interval(self.context.heartbeat_seconds))

    # ------------------------------------------------------------------------------ what torch's agent calls

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        """Join the rendezvous; give the attempt a store of its own in the first host's agent, which outlives workers.

        All agents count attempts as that one does, so that a host that joins again later reads the same prefix.
        """
        super()._rendezvous(worker_group)
        group: Any = worker_group  # torch declares its fields as None
        attempt = group.spec.max_restarts - self._remaining_restarts
        self._server = None
        if group.group_rank == 0:
            self._server = open_store(self.context.address)
            group.store.set("laconic/store", f"{attempt} {self._server.port} {self.context.address}")
        attempt, port, group.master_addr = group.store.get("laconic/store").decode().split()
        self.attempt, group.master_port = int(attempt), int(port)
        self._remaining_restarts = group.spec.max_restarts - self.attempt

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        with self._starting:
            if self._stopping:
                threading.Event().wait()  # the main thread is ending the process
            self.lost, self.codes = None, {}
            lost_file(self.context.folder, attempt_prefix(self.attempt)).unlink(missing_ok=True)
            self._watch_store(worker_group)
            self._on_start(worker_group.group_rank or 0, self.ranks, worker_group.workers[0].world_size)
            ids: dict[int, Any] = super()._start_workers(worker_group)
            return ids

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        if self._stopping:
            threading.Event().wait()
        failed = {r: code for r, p in self._workers().items() if (code := p.poll())}
        announced = self._announced()
        if failed or announced is not None:
            self._handle_loss(announced or self._find_cause(failed))
        result: RunResult = super()._monitor_workers(worker_group)
        return result

    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        total = worker_group.spec.max_restarts + 1
        self._print_line(f"starting all workers again: attempt {self.attempt + 2} of {total}")
        if self.context.nodes > 1:
            self._print_line(f"waiting for all {self.context.nodes} machines to join again")
        super()._restart_workers(worker_group)

    def _exit_barrier(self) -> None:
        """Wait until the other hosts have finished too: this process may host their store."""
        if self._peers is None or self._watch is None:
            return
        self._peers.done(_ANNOUNCE_SECONDS)
        while not (self._peers.all_done() or self._peers.gone or self._watch.gone):  # gone: the host has finished
            self.lost = self._announced()
            if self.lost is not None:
                self._print_line(self.lost.sentence())
                return
            time.sleep(0.1)

    # ------------------------------------------------------------------------------ how a loss is handled

    def _handle_loss(self, lost: Lost) -> None:
        """Announce a loss to the survivors, wait until they have logged it and ended, and kill what remains."""
        self.lost = self._announce(lost)
        self._print_line(self.lost.sentence())
        if self.lost.final:
            self._remaining_restarts = 0
        workers = self._workers()
        processes.await_exits(workers.values(), GRACE_SECONDS)
        self.codes = {rank: code for rank, worker in workers.items() if (code := worker.poll()) is not None}
        processes.kill(workers.values())
        if self._remaining_restarts > 0 and self._is_cut_off(self.context.heartbeat_seconds / 2):
            self._print_line("this machine is cut off from the run's store, so it does not start again")
            self._remaining_restarts = 0
        for watch in (self._watch, self._peers):
            if watch is not None:
                watch.stop()

    def _announce(self, lost: Lost) -> Lost:
        """Announce a loss, and return the one announced first. A store that seems cut off is not waited for."""
        if self._watch is None:
            return lost
        return self._watch.announce(lost, 0.5 if self._is_cut_off(1.0) else _ANNOUNCE_SECONDS)

    def _announced(self) -> Lost | None:
        """Return a loss that did not begin on this host: one that a rank has announced, or another host's silence."""
        if self._watch is None or self._watch.lost is not None or self._peers is None:
            return None if self._watch is None else self._watch.lost
        if self._peers.lost is not None:
            return replace(self._peers.lost, ranks=())  # hosts are numbered there, not ranks
        if self._is_cut_off(_LAUNCHER_PATIENCE * self.context.heartbeat_seconds):
            host = str(self._worker_group.master_addr)
            advice = f"Check that machine, and the link to it from {self.context.host_name}."
            return Lost((), host, "the run's store, which was there, does not answer any more", advice)
        return None

    def _find_cause(self, failed: dict[int, int]) -> Lost:
        """Return which of the processes that failed on this host failed first."""
        lost_note = lost_file(self.context.folder, attempt_prefix(self.attempt))
        if lost_note.exists():  # a loss that a heartbeat could not announce in the store
            return Lost.decode(lost_note.read_text())
        # Signals before exit codes before victims: a peer's death makes others fail within the same moment.
        worst = min(failed, key=lambda rank: (failed[rank] == EXIT_LOST, failed[rank] > 0, rank))
        is_final = failed[worst] == EXIT_REFUSED
        return Lost((worst,), self.context.host_name, *describe_exit(failed[worst]), final=is_final)

    def _watch_store(self, worker_group: WorkerGroup) -> None:
        size = worker_group.workers[0].world_size
        host, port, prefix = worker_group.master_addr, worker_group.master_port, attempt_prefix(self.attempt)
        assert host is not None and port is not None
        self._watch = Watch(StoreAddress(host, port, prefix, size), _READ_SECONDS)
        self._watch.start()
        if self.context.nodes > 1:
            step, rank = interval(self.context.heartbeat_seconds), worker_group.group_rank
            judge = Judge(
                self.context.nodes, rank, _LAUNCHER_PATIENCE * self.context.heartbeat_seconds, step, time.monotonic()
            )
            place = StoreAddress(host, port, f"{prefix}/machines", self.context.nodes)
            self._peers = Watch(place, step, rank, self.context.host_name, judge=judge.look)
            self._peers.start()

    def _is_cut_off(self, silent_seconds: float) -> bool:
        if self._watch is None or self._server is not None or not (self._watch.connected or self._watch.gone):
            return False
        return self._watch.gone or time.monotonic() - self._watch.answered > silent_seconds

    def _workers(self) -> dict[int, Popen[bytes]]:
        if not isinstance(self._pcontext, SubprocessContext):
            return {}
        handlers = self._pcontext.subprocess_handlers
        return {w.global_rank: handlers[w.local_rank].proc for w in self._worker_group.workers if handlers}


class _Inherited(LogsSpecs):
    """Leave the workers' streams alone: the command that starts them appends both to one file per rank."""

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        nothing = dict.fromkeys(envs, "")
        return LogsDest(stdouts=nothing, stderrs=dict(nothing), error_files=dict(nothing))

    @property
    def root_log_dir(self) -> str:
        return ""
