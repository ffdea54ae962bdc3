"""Start a run on this machine and see it through: signals, clock, console, and a clean account of how it ended.

torch's elastic launcher does rendezvous, process start and restarts; `agent.py` names who was lost. The agent lives in
a thread, so that this (the main) thread can always answer Ctrl-C and --timeout, even while the agent waits in native
code for a machine that does not answer.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from laconic.engine.beats import EXIT_LOST, describe_exit, name_ranks
from laconic.engine.config import RunConfig
from laconic.engine.folder import Record, choose_folder
from laconic.engine.follow import Follow
from laconic.engine.interfaces import address_towards, machine_towards, prepare_environment
from laconic.engine.request import Request
from laconic.errors import LaconicError

if TYPE_CHECKING:
    from torch.distributed.elastic.agent.server.api import WorkerGroup

    from laconic.engine.agent import Agent

EXIT_TIMEOUT = 124
"""Exit code of a run that --timeout ended, as timeout(1) has it."""

_STOP_SECONDS = 3.0
_TAIL_LINES = 15


def launch(request: Request) -> int:
    """Run to the end; the exit code for the shell."""
    if request.dry_run:
        return _dry_run(request)
    host, _ = request.endpoint
    folder = choose_folder(request.folder, request.stem)
    config = _config(request, str(folder))
    os.environ.update(config.to_env(), OMP_NUM_THREADS=str(request.threads), PYTHONUNBUFFERED="1")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # a lost connection is worth a sentence, not C++ frames
    prepare_environment(host)
    return _Run(request, folder).carry_out()


def say(text: str) -> None:
    """A line of the launcher's own, apart from what the script prints."""
    print(f"laconic: {text}", file=sys.stderr, flush=True)


def _config(request: Request, folder: str | None) -> RunConfig:
    return RunConfig(
        strategy=request.strategy,
        folder=folder,
        heartbeat_seconds=request.heartbeat_seconds,
        threads=request.threads,
        dry_run=request.dry_run,
        workers=request.workers * request.nodes,
        targets=dict(request.targets),
    )


def _dry_run(request: Request) -> int:
    """One process, no group: `laconic.distribute` reports what the run would cost, and ends the script."""
    environment = {
        **os.environ,
        **_config(request, None).to_env(),
        "RANK": "0",
        "OMP_NUM_THREADS": str(request.threads),
    }
    environment.pop("WORLD_SIZE", None)
    command = [sys.executable, *request.python_arguments()]
    try:
        return subprocess.run(command, env=environment, timeout=request.timeout_seconds, check=False).returncode
    except subprocess.TimeoutExpired:
        say(f"the dry run was ended after --timeout {request.timeout_seconds:g} s: it never reached distribute().")
        return EXIT_TIMEOUT
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


class _Run:
    """One launch: the agent's thread, the console, and the account at the end."""

    def __init__(self, request: Request, folder: Path) -> None:
        from laconic.engine.agent import Site
        from laconic.engine.elastic import build_agent

        host, _ = request.endpoint
        self._request, self._folder = request, folder
        self._record = Record(
            folder,
            command=sys.argv,
            worker_command=[sys.executable, *request.python_arguments()],
            strategy=request.strategy,
            workers=request.workers,
            nodes=request.nodes,
            rendezvous=request.rendezvous,
            threads=request.threads,
            heartbeat_seconds=request.heartbeat_seconds,
            restarts=request.restarts,
            targets=dict(request.targets),
        )
        site = Site(address_towards(host), machine_towards(host), folder, request.nodes, request.heartbeat_seconds)
        self._agent: Agent = build_agent(request, site, say, self._started)
        self._follow: Follow | None = None
        self._wake = threading.Event()
        self._signal: signal.Signals | None = None
        self._error: BaseException | None = None
        self._failed = False

    def carry_out(self) -> int:
        self._record.begin(0)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        if self._request.nodes > 1:
            say(f"waiting for {self._request.nodes} machines at {self._request.rendezvous}")
        begin = time.monotonic()
        threading.Thread(target=self._run_agent, name="laconic-agent", daemon=True).start()
        in_time = self._wake.wait(self._request.timeout_seconds)
        if self._signal is not None:
            code, state = self._interrupted(self._signal)
        elif not in_time:
            code, state = self._timed_out()
        else:
            code, state = self._account()
        lost = self._agent.lost
        self._record.end(
            state,
            code,
            attempts=self._agent.attempt + 1,
            seconds=round(time.monotonic() - begin, 3),
            lost=None if lost is None else json.loads(lost.encode()),
        )
        return code

    def _run_agent(self) -> None:
        try:
            result = self._agent.run()
            self._failed = result is None or result.is_failed()
        except BaseException as error:
            self._error = error
        self._wake.set()

    def _started(self, group: WorkerGroup) -> None:
        """Called by the agent before it starts an attempt's workers."""
        self._record.begin(group.group_rank or 0)
        ranks = [worker.global_rank for worker in group.workers]
        where = f"{name_ranks(ranks)} of {group.workers[0].world_size}"
        say(f"starting {where} on {self._agent.site.machine}; logs: {_shown(self._folder / 'logs')}/rank-N.log")
        if self._follow is not None:
            self._follow.stop()
        self._follow = None
        if 0 in ranks:
            self._follow = Follow(self._agent.site.log(0))
            self._follow.start()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._signal is None:  # a second Ctrl-C changes nothing: the first ends everything within seconds
            self._signal = signal.Signals(number)
            self._wake.set()

    def _interrupted(self, number: signal.Signals) -> tuple[int, str]:
        say(f"{number.name}: ending {self._request.workers} workers")
        self._agent.stop(number, f"its launcher was interrupted by {number.name}", _STOP_SECONDS)
        self._finish_console()
        say(f"interrupted; logs: {_shown(self._folder / 'logs')}")
        return 128 + number, "interrupted"

    def _timed_out(self) -> tuple[int, str]:
        limit = f"--timeout {self._request.timeout_seconds:g}"
        say(f"the time is up ({limit}): ending {self._request.workers} workers")
        self._agent.stop(signal.SIGTERM, f"its launcher ended the run after {limit} seconds", _STOP_SECONDS)
        self._finish_console()
        say(f"ended by {limit}: give it more time, or fewer steps; logs: {_shown(self._folder / 'logs')}")
        return EXIT_TIMEOUT, "timeout"

    def _account(self) -> tuple[int, str]:
        self._finish_console()
        if self._error is not None:
            say(f"the run could not go on: {_explain(self._error, self._request)}")
            return 1, "failed"
        if self._failed or self._agent.lost is not None:
            self._agent.linger()
            return self._report_failure(), "failed"
        return 0, "succeeded"

    def _report_failure(self) -> int:
        """One block: who was lost first, how it ended, where its log is and how that ends."""
        lost, codes = self._agent.lost, self._agent.codes
        ranks = lost.ranks if lost is not None else tuple(rank for rank, code in codes.items() if code)
        say("the run failed" + (f": {lost.headline()}" if lost is not None else "."))
        for rank in (r for r in ranks if r in self._agent.ranks):
            log = self._agent.site.log(rank)
            ended = f" ({describe_exit(codes[rank])[0]})" if rank in codes else ""
            print(f"  log of rank {rank}{ended}: {_shown(log)}", file=sys.stderr)
            if rank != 0:  # rank 0's is above already
                for line in _tail(log):
                    print(f"  | {line}", file=sys.stderr)
        codes_of_lost = [codes[rank] for rank in ranks if rank in codes]
        code = codes_of_lost[0] if codes_of_lost else EXIT_LOST
        return 128 - code if code < 0 else code or EXIT_LOST

    def _finish_console(self) -> None:
        if self._follow is not None:
            self._follow.stop()


def _explain(error: BaseException, request: Request) -> str:
    from torch.distributed.elastic.rendezvous import RendezvousClosedError, RendezvousTimeoutError

    if isinstance(error, RendezvousTimeoutError):
        return (
            f"not all {request.nodes} machines came to {request.rendezvous} in time. Start the same command on each, "
            f"and check that they reach that address."
        )
    if isinstance(error, RendezvousClosedError):
        return f"the run at {request.rendezvous} has been ended by another machine: look at its console."
    if isinstance(error, LaconicError):
        return str(error)
    return f"{type(error).__name__}: {error}"


def _tail(log: Path) -> list[str]:
    try:
        return log.read_bytes()[-64_000:].decode(errors="replace").splitlines()[-_TAIL_LINES:]
    except OSError:
        return []


def _shown(path: Path) -> str:
    """A path to copy into a shell, relative where that is shorter."""
    with suppress(ValueError):
        path = path.relative_to(Path.cwd())
    return shlex.quote(str(path))
