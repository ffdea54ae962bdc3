"""Start a run on this host and control it to its end: signals, time limit, console, and a report of how it ended.

A *process manager* starts the processes and reports which were lost. It runs in a thread, so that this (the main)
thread can always react to Ctrl-C and --timeout, even while the manager waits in native code for a host that does not
answer.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from laconic.errors import LaconicError
from laconic.launch.failure_report import explain, print_line, shown
from laconic.launch.log_follower import LogFollower
from laconic.launch.net import find
from laconic.launch.request import Request
from laconic.launch.run_folder import RunRecord, choose_folder, forget_figures
from laconic.launch.summary import as_fields, missed_targets, read_traffic, summarise
from laconic.liveness.detection import name_ranks
from laconic.network.interfaces import prepare_environment
from laconic.real.recording import forget, merge

if TYPE_CHECKING:
    from laconic.launch.process_manager import ProcessManager

EXIT_TIMEOUT = 124
"""Exit code of a run that --timeout ended, as timeout(1) has it."""

_STOP_SECONDS = 3.0


def launch(request: Request) -> int:
    """Run to the end, and return the exit code for the shell."""
    if request.dry_run:
        return _dry_run(request)
    if request.engine == "virtual":
        from laconic.launch.virtual import launch_virtually

        return launch_virtually(request)
    host, _ = request.endpoint
    folder = choose_folder(request.folder, request.stem)
    config = request.config(folder)
    os.environ.update(config.to_env(), OMP_NUM_THREADS=str(request.threads), PYTHONUNBUFFERED="1")
    os.environ.setdefault(
        "TORCH_CPP_LOG_LEVEL", "ERROR"
    )  # a lost connection is reported in a sentence, without C++ frames
    if request.net is None:
        prepare_environment(host)
        return _Run(request, folder).execute()
    with find(request.net).hub.entered():  # the manager's thread too: threads start in their parent's namespace
        return _Run(request, folder).execute()


def exit_process(exit_code: int) -> NoReturn:
    """End this process without waiting for threads of torch's stores, which are blocked in native code.

    Python's own way of ending them now and then aborts the whole process with `terminate called`.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def _dry_run(request: Request) -> int:
    """Run one process without a group, in which `laconic.distribute` reports the run's cost and ends the script."""
    environment = {
        **os.environ,
        **request.config(None).to_env(),
        "RANK": "0",
        "OMP_NUM_THREADS": str(request.threads),
    }
    environment.pop("WORLD_SIZE", None)
    command = [sys.executable, *request.python_arguments()]
    try:
        return subprocess.run(command, env=environment, timeout=request.timeout_seconds, check=False).returncode
    except subprocess.TimeoutExpired:
        print_line(
            f"the dry run was ended after --timeout {request.timeout_seconds:g} s: it never reached distribute()."
        )
        return EXIT_TIMEOUT
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


class _Run:
    """One launch: the process manager's thread, the console, and the report at the end."""

    def __init__(self, request: Request, folder: Path) -> None:
        self._request, self._folder = request, folder
        self._record = RunRecord(
            folder,
            request.nodes,
            command=sys.argv,
            worker_command=[sys.executable, *request.script_words],
            strategy=request.strategy,
            workers=request.workers,
            rendezvous=request.rendezvous,
            net=request.net,
            threads=request.threads,
            heartbeat_seconds=request.heartbeat_seconds,
            restarts=request.restarts,
            servers=request.servers,
            slowness=list(request.slowness),
            stragglers=list(request.stragglers),
            targets=dict(request.targets),
        )
        self._manager: ProcessManager | None = None
        self._node = 0
        self._begun = False
        self._follow: LogFollower | None = None
        self._lock = threading.Lock()
        self._ending = False
        self._wake = threading.Event()
        self._signal: signal.Signals | None = None
        self._error: BaseException | None = None

    def execute(self) -> int:
        """Run to the end, write the record, and return the exit code for the shell."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        if self._request.nodes > 1 and not self._request.servers:
            print_line(f"waiting for {self._request.nodes} machines at {self._request.rendezvous}")
        begin = time.monotonic()
        threading.Thread(target=self._run_manager, name="laconic-process-manager", daemon=True).start()
        in_time = self._wake.wait(self._request.timeout_seconds)
        if self._signal is not None:
            code, state = self._interrupted(self._signal), "interrupted"
        elif not in_time:
            code, state = self._timed_out(), "timeout"
        else:
            code = self._report()
            state = "failed" if code else "succeeded"
        if self._request.trace and self._manager is not None:
            print_line(merge(self._folder, self._manager.ranks, self._node))
        result_fields = {"attempts": 0, "lost": None} if self._manager is None else self._manager.result_fields()
        try:
            self._record.end(
                state, code, seconds=round(time.monotonic() - begin, 3), **result_fields, **self._summarise(code)
            )
        except LaconicError as error:
            print_line(str(error))
            return code or 1
        return code

    def _summarise(self, code: int) -> dict[str, Any]:
        """Report what this host's workers did, unless the run failed, and return it for `run.json`."""
        traffic = [] if self._manager is None else read_traffic(self._folder, self._manager.ranks)
        if not traffic:
            return {}
        if code == 0:
            print_line(summarise(traffic))
            for sentence in missed_targets(self._folder, self._request.targets) if self._node == 0 else ():
                print_line(sentence)
        return as_fields(traffic)

    def _run_manager(self) -> None:
        try:
            manager = self._build_manager()
            with self._lock:
                if self._ending:
                    return
                self._manager = manager
            manager.run_to_end()
        except BaseException as error:
            self._error = error
        self._wake.set()

    def _build_manager(self) -> ProcessManager:
        if self._request.servers:
            from laconic.launch.supervisor import build_supervisor

            return build_supervisor(self._request, self._folder, print_line, self._started)
        from laconic.launch.elastic import build_agent

        return build_agent(self._request, self._folder, print_line, self._started)

    def _started(self, node: int, ranks: Sequence[int], size: int) -> None:
        """Called by the process manager before it starts processes."""
        assert self._manager is not None
        context, self._node = self._manager.context, node
        if node == 0 and not self._begun and not self._request.resume:  # another run's servers may have left some
            shutil.rmtree(self._folder / "snapshots", ignore_errors=True)
        if not self._begun:
            forget_figures(self._folder, ranks, size)
        self._begun = True
        self._record.begin(node)
        forget(self._folder, ranks)
        servers = f" and {self._request.servers} server(s)" if self._request.servers and node == 0 else ""
        who = f"{name_ranks(ranks)} of {size}{servers} on {context.host_name}"
        print_line(f"starting {who}; logs: {shown(self._folder / 'logs')}/rank-N.log")
        self._finish_console()
        if 0 in ranks:
            self._follow = LogFollower(context.log(0))
            self._follow.start()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._signal is None:  # a second Ctrl-C changes nothing: the first ends everything within seconds
            self._signal = signal.Signals(number)
            self._wake.set()

    def _interrupted(self, number: signal.Signals) -> int:
        print_line(f"{number.name}: ending the workers of this machine")
        self._end(number, f"the launcher there was interrupted by {number.name}")
        print_line(f"interrupted; logs: {shown(self._folder / 'logs')}")
        return 128 + number

    def _timed_out(self) -> int:
        limit = f"--timeout {self._request.timeout_seconds:g}"
        print_line(f"the time limit is reached ({limit}): ending the workers of this machine")
        self._end(signal.SIGTERM, f"the launcher there ended the run after {limit}")
        print_line(f"ended by {limit}: give it more time, or fewer steps; logs: {shown(self._folder / 'logs')}")
        return EXIT_TIMEOUT

    def _end(self, number: signal.Signals, cause: str) -> None:
        with self._lock:
            self._ending = True
        if self._manager is not None:
            self._manager.stop(number, cause, _STOP_SECONDS)
        self._finish_console()

    def _report(self) -> int:
        self._finish_console()
        if self._error is not None or self._manager is None:
            print_line(f"the run could not go on: {explain(self._error or RuntimeError(), self._request)}")
            return 1
        return self._manager.report()

    def _finish_console(self) -> None:
        if self._follow is not None:
            self._follow.stop()
            self._follow = None
