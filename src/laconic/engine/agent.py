"""torch's elastic agent, taught to say who was lost.

torch's own agent ends all other workers the moment one fails, so the survivors die without a word. This one tells them
first (through the slot of the run's store that their heartbeats watch), gives them a moment to say it in their logs,
and only then lets torch do its bookkeeping. It runs in a thread of its own, since waiting for other machines may block
in native code; the main thread stays free for signals and the clock (`launch.py`).
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from typing import Any

from torch.distributed import TCPStore
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs
from torch.distributed.elastic.multiprocessing.api import SubprocessContext

from laconic.engine.beats import EXIT_LOST, Judge, Lost, describe_exit, interval, lost_file
from laconic.engine.config import attempt_prefix
from laconic.engine.watch import Place, Watch

GRACE_SECONDS = 5.0
"""How long survivors may take to say who was lost: they read it within a second, and their exit takes a moment."""

_READ_SECONDS = 0.25
_TELL_SECONDS = 2.0


@dataclass(frozen=True)
class Site:
    """Where this agent runs: its address for the other machines, its name for people, its run folder."""

    address: str
    machine: str
    folder: Path
    nodes: int
    heartbeat_seconds: float

    def log(self, rank: int) -> Path:
        return self.folder / "logs" / f"rank-{rank}.log"


class Agent(LocalElasticAgent):
    """One per machine. `lost` and `codes` (exit code per rank) say afterwards how the last attempt ended."""

    def __init__(
        self, spec: WorkerSpec, site: Site, say: Callable[[str], None], on_start: Callable[[WorkerGroup], None]
    ) -> None:
        super().__init__(spec, logs_specs=_Inherited(), exit_barrier_timeout=0, shutdown_timeout=1)
        self.site = site
        self.lost: Lost | None = None
        self.codes: dict[int, int] = {}
        self._say, self._on_start = say, on_start
        self._watch: Watch | None = None
        self._peers: Watch | None = None
        self._server: TCPStore | None = None
        self._starting = threading.Lock()
        self._stopping = False

    @property
    def attempt(self) -> int:
        """Attempts so far, from 0."""
        return self._worker_group.spec.max_restarts - self._remaining_restarts

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks on this machine."""
        return tuple(worker.global_rank for worker in self._worker_group.workers)

    def stop(self, number: signal.Signals, cause: str, seconds: float) -> None:
        """End everything from another thread: tell the other machines, forward the signal, then kill what is left."""
        with self._starting:  # either all workers have been started, or none will be
            self._stopping = True
        if self._watch is not None and self.site.nodes > 1:
            lost = Lost(self.ranks, self.site.machine, cause, "The run was ended there on purpose.", final=True)
            self._watch.announce(lost, _TELL_SECONDS)
        _signal_groups(self._workers(), number)
        self._await_exits(seconds)
        self._kill_groups()

    def linger(self) -> None:
        """Keep the store alive until other machines have read why the run ended, where this process hosts it."""
        if self._server is not None and self.site.nodes > 1:
            time.sleep(2.5 * interval(self.site.heartbeat_seconds))

    # ------------------------------------------------------------------------------ what torch's agent calls

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        """Also give each attempt a store of its own (torch reuses one, with the addresses of dead workers in it).

        All agents count attempts as the first machine does, so that one that joins later reads the same prefix.
        """
        super()._rendezvous(worker_group)
        group: Any = worker_group  # torch declares its fields as None
        self._server = None
        if group.group_rank == 0:
            self._server = TCPStore(self.site.address, 0, is_master=True, wait_for_workers=False)
            group.store.set("laconic/store", f"{self.attempt} {self._server.port} {self.site.address}")
        attempt, port, group.master_addr = group.store.get("laconic/store").decode().split()
        group.master_port = int(port)
        self._remaining_restarts = group.spec.max_restarts - int(attempt)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        with self._starting:
            if self._stopping:
                threading.Event().wait()  # the main thread is ending the process
            self.lost, self.codes = None, {}
            lost_file(self.site.folder, attempt_prefix(self.attempt)).unlink(missing_ok=True)
            self._watch_store(worker_group)
            self._on_start(worker_group)
            processes: dict[int, Any] = super()._start_workers(worker_group)
            return processes

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        if self._stopping:
            threading.Event().wait()
        failed = {r: code for r, p in self._workers().items() if (code := p.poll()) not in (None, 0)}
        if failed or (self._watch is not None and self._watch.lost is not None):
            self._settle(failed)
        result: RunResult = super()._monitor_workers(worker_group)
        return result

    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        total = worker_group.spec.max_restarts + 1
        self._say(f"starting all workers again: attempt {self.attempt + 1} of {total}")
        if self.site.nodes > 1:
            self._say(f"waiting for all {self.site.nodes} machines to join again")
        super()._restart_workers(worker_group)

    def _exit_barrier(self) -> None:
        """Wait until the other machines have finished too: this process may host their store."""
        if self._peers is None or self._watch is None:
            return
        self._peers.done(_TELL_SECONDS)
        while not (self._peers.all_done() or self._peers.gone or self._peers.lost or self._watch.lost):
            time.sleep(0.1)
        self.lost = None if self._peers.all_done() else self._watch.lost or self._peers.lost
        if self.lost is not None:
            self._say(self.lost.sentence())

    # ------------------------------------------------------------------------------ how a loss is handled

    def _settle(self, failed: dict[int, int]) -> None:
        """Find the first cause, tell the survivors, wait for their last words, end what remains."""
        self.lost = self._find_cause(failed)
        self._say(self.lost.sentence())
        if self.lost.final:
            self._remaining_restarts = 0
        self._await_exits(GRACE_SECONDS)
        self.codes = {r: code for r, p in self._workers().items() if (code := p.poll()) is not None}
        self._kill_groups()
        if self._remaining_restarts > 0 and self._is_cut_off():
            self._say("this machine is cut off from the run's store, so it does not start again")
            self._remaining_restarts = 0
        for watch in (self._watch, self._peers):
            if watch is not None:
                watch.stop()

    def _find_cause(self, failed: dict[int, int]) -> Lost:
        if self._watch is not None and self._watch.lost is not None:
            return self._watch.lost
        victims = all(code == EXIT_LOST for code in failed.values())
        note = lost_file(self.site.folder, attempt_prefix(self.attempt))
        if victims and note.exists():  # a heartbeat's verdict that could not reach the store
            return Lost.decode(note.read_text())
        # Signals before exit codes before victims: a peer's death makes others fail within the same moment.
        worst = min(failed, key=lambda rank: (failed[rank] == EXIT_LOST, failed[rank] > 0, rank))
        lost = Lost((worst,), self.site.machine, *describe_exit(failed[worst]))
        return lost if self._watch is None else self._watch.announce(lost, _TELL_SECONDS)

    def _watch_store(self, worker_group: WorkerGroup) -> None:
        size = worker_group.workers[0].world_size
        host, port, prefix = worker_group.master_addr, worker_group.master_port, attempt_prefix(self.attempt)
        assert host is not None and port is not None
        self._watch = Watch(Place(host, port, prefix, size), _READ_SECONDS)
        self._watch.start()
        if self.site.nodes > 1:
            step, rank = interval(self.site.heartbeat_seconds), worker_group.group_rank
            judge = Judge(self.site.nodes, rank, self.site.heartbeat_seconds, step, time.monotonic())
            place = Place(host, port, f"{prefix}/machines", self.site.nodes)
            self._peers = Watch(place, step, rank, self.site.machine, judge=judge.look)
            self._peers.start()

    def _is_cut_off(self) -> bool:
        if self._watch is None or self._server is not None:
            return False
        return self._watch.gone or time.monotonic() - self._watch.answered > self.site.heartbeat_seconds / 2

    # ------------------------------------------------------------------------------ processes

    def _workers(self) -> dict[int, Popen[bytes]]:
        if not isinstance(self._pcontext, SubprocessContext):
            return {}
        handlers = self._pcontext.subprocess_handlers
        return {w.global_rank: handlers[w.local_rank].proc for w in self._worker_group.workers if handlers}

    def _await_exits(self, seconds: float) -> None:
        """Wait until all workers have ended, but not for those that are stopped: they have no last words."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if all(process.poll() is not None or _is_stopped(process.pid) for process in self._workers().values()):
                return
            time.sleep(0.02)

    def _kill_groups(self) -> None:
        """Also end what the workers have started themselves: each worker leads a process group."""
        _signal_groups(self._workers(), signal.SIGKILL, only_running=False)
        for process in self._workers().values():
            process.wait(timeout=10)


def _signal_groups(workers: dict[int, Popen[bytes]], number: signal.Signals, only_running: bool = True) -> None:
    for process in workers.values():
        if process.poll() is None or not only_running:
            with suppress(ProcessLookupError, PermissionError):  # already gone
                os.killpg(process.pid, number)


def _is_stopped(pid: int) -> bool:
    """Whether a signal has stopped the process; where there is no /proc, nobody knows."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except (OSError, IndexError):
        return False


class _Inherited(LogsSpecs):
    """Leave the workers' streams alone: the command that starts them appends both to one file per rank."""

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        nothing = dict.fromkeys(envs, "")
        return LogsDest(stdouts=nothing, stderrs=dict(nothing), error_files=dict(nothing))

    @property
    def root_log_dir(self) -> str:
        return ""
