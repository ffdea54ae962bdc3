"""The heartbeat: how a rank learns, within seconds, that another is gone, and which one.

A backend only guesses ("connection closed by peer", or nothing at all when the peer is frozen), and the thread that
waits in a collective cannot be interrupted from Python. So each worker runs two threads beside it: a `Watch` writes its
heartbeat to the run's store and reads all others; a guard decides, prints one sentence, and ends the process.

The guard also covers what the watch cannot: a store that freezes or is cut off blocks the watch in native code.
A rank that holds Python's global lock for longer than the limit cannot send heartbeats and counts as frozen.
"""

from __future__ import annotations

import math
import os
import re
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from laconic.errors import LaconicError, WorkerLost
from laconic.liveness.detection import (
    EXIT_LOST,
    REFUSED,
    START_SECONDS,
    UNKNOWN,
    Judge,
    Lost,
    interval,
    lost_file,
    name_ranks,
)
from laconic.liveness.store_thread import StoreAddress, Watch
from laconic.network.interfaces import host_towards
from laconic.values.run_config import VARIABLE

_LEAVE_SECONDS = 3.0  # for the main thread to raise and unwind by itself once it knows who was lost
_EAGER_SECONDS = 3.0  # read often at first, to learn the hosts of all ranks
_ANNOUNCE_SECONDS = 2.0
_FLUSH_SECONDS = 1.0
_ORPHANED_SECONDS = 0.3  # a launcher that is killed closes its sockets before its workers are told of its end
_NAMED_CHARACTERS = 200
_PEER_TROUBLE = re.compile(r"connect|closed|reset|broken pipe|timed? ?out|remote|unreachable|no route|abort", re.I)


class Heartbeat:
    """This rank's heartbeat, and its observation of all others. There is one per process, made by `start`."""

    def __init__(self, store: StoreAddress, rank: int, limit_seconds: float, folder: str | None) -> None:
        self._interval_seconds = interval(limit_seconds)
        self._limit_seconds = limit_seconds
        self._store, self._rank, self._folder = store, rank, folder
        self._host = host_towards(store.host)
        # Laconic's launcher starts one script everywhere; under another, some ranks may never use laconic at all.
        start_seconds = START_SECONDS if VARIABLE in os.environ else math.inf
        self._judge = Judge(store.size, rank, limit_seconds, self._interval_seconds, time.monotonic(), start_seconds)
        self._news = threading.Event()
        self._decided = threading.Event()
        self._stopped = False
        self._explaining = False
        self._verdict: Lost | None = None
        self._process, self._parent = os.getpid(), os.getppid()  # the parent is a launcher's agent, where there is one
        # Whoever hosts the store outlives the others: a launcher's agent, or rank 0 in a job that was started by hand.
        self._agent_hosts = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        self._watch = Watch(
            store, self._interval_seconds, rank, self._host, judge=self._judge.look, on_news=self._news.set
        )
        self._guard = threading.Thread(target=self._guard_loop, name="laconic-guard", daemon=True)

    @classmethod
    def start(
        cls, host: str, port: int, rank: int, size: int, prefix: str, limit_seconds: float, folder: str | None
    ) -> Heartbeat:
        """Start the heartbeat. Every rank of the run must do so, with the same `prefix`, which names the attempt."""
        heartbeat = cls(StoreAddress(host, port, prefix, size), rank, limit_seconds, folder)
        heartbeat._watch.start()
        heartbeat._watch.read_often(_EAGER_SECONDS)
        heartbeat._guard.start()
        return heartbeat

    def stop(self) -> None:
        """End the heartbeat: as finished, or as lost when the script ends in an error that was not caught.

        Call it at exit, before the process group is destroyed. Without it the others count this rank as lost.
        """
        if self._stopped or os.getpid() != self._process:  # a forked child owns neither the threads nor the slot
            return
        error: BaseException | None = getattr(sys, "last_value", None)
        crashed = error is not None and not isinstance(error, WorkerLost)
        if crashed and _PEER_TROUBLE.search(str(error)):  # a peer's death, perhaps: its launcher is about to name it,
            self._watch.read_often(_ANNOUNCE_SECONDS)  # and the guard then ends this process
            self._decided.wait(_ANNOUNCE_SECONDS)
        self._stopped = True
        if crashed and self._verdict is None:
            self._watch.announce(_describe_error(error, self._rank, self._host), _ANNOUNCE_SECONDS)
            return
        self._watch.done(_ANNOUNCE_SECONDS)
        if not self._agent_hosts and self._rank == 0:  # the store ends with this process: let the others read why
            _until(self._watch.all_done, 2.5 * self._interval_seconds)
        self._watch.stop()

    def explain(self, error: BaseException, timeout_seconds: float | None = None) -> WorkerLost | None:
        """Return who was lost, for a collective that failed with `error`; None when nobody was, so that `error` stands.

        It waits for the verdict up to `timeout_seconds` (default: until the limit must have struck), but only briefly
        for an error that has nothing to do with a peer, such as tensors of different shapes.
        """
        if timeout_seconds is None:
            trouble = _PEER_TROUBLE.search(str(error)) is not None
            timeout_seconds = (self._limit_seconds if trouble else 0.0) + 3 * self._interval_seconds
        self._explaining = True
        self._watch.read_often(timeout_seconds)
        deadline = time.monotonic() + timeout_seconds
        short = time.monotonic() + 3 * self._interval_seconds
        while not self._decided.wait(0.05) and time.monotonic() < deadline:
            if self._finished() and time.monotonic() > short:
                break
        if self._verdict is not None:
            return WorkerLost(self._sentence(self._verdict))
        self._explaining = False
        if finished := self._finished():
            return WorkerLost(
                f"{name_ranks(finished)} had already finished the script when rank {self._rank} still waited for it: "
                f"the ranks take different numbers of steps. Give all the same number, as `laconic.shard` does."
            )
        return None

    def _finished(self) -> list[int]:
        return [rank for rank, beat in enumerate(self._watch.beats) if beat.done and rank != self._rank]

    def _guard_loop(self) -> None:
        looked = awake_since = time.monotonic()
        while not self._stopped:
            self._news.wait(self._interval_seconds)
            now = time.monotonic()
            if now - looked > 3 * self._interval_seconds:  # this process was stopped: read the news before judging
                awake_since = now
            looked = now
            self._news.clear()
            verdict = self._watch.lost or self._judge_store(now - max(self._watch.answered, awake_since))
            if verdict is not None and not self._stopped:
                self._end(verdict)

    def _judge_store(self, silent_seconds: float) -> Lost | None:
        where = f"{self._store.host}:{self._store.port}"
        if self._watch.gone:
            _until(self._has_lost_launcher, _ORPHANED_SECONDS)
        if self._has_lost_launcher():
            lost = Lost((self._rank,), self._host, "its launcher has ended", "Start the run again.")
            return self._watch.announce(lost, _ANNOUNCE_SECONDS)
        if self._watch.gone:
            if self._watch.beats[0].done and not self._agent_hosts:
                self._stopped = True  # rank 0 finished and took the store with it: nothing is left to watch
                return None
            cause = f"the run's store at {where}, which was hosted there, is gone"
        elif silent_seconds > (self._judge.silence_limit_seconds if self._watch.connected else START_SECONDS):
            cause = f"the run's store at {where}, which is hosted there, has not answered for {silent_seconds:.1f} s"
        else:
            return None
        advice = f"Check that machine, and the link to it from {self._host}."
        machines = {r: beat.machine for r, beat in enumerate(self._watch.beats) if r != self._rank}
        ranks = tuple(r for r, machine in machines.items() if machine != self._host) if self._agent_hosts else (0,)
        known = sorted({machines[r] for r in ranks} - {UNKNOWN})
        return Lost(ranks, ", ".join(known) or self._store.host, cause, advice)

    def _has_lost_launcher(self) -> bool:
        return "TORCHELASTIC_RUN_ID" in os.environ and os.getppid() != self._parent

    def _end(self, lost: Lost) -> None:
        """Publish the verdict in this process, and end it: its main thread may hang in a collective for ever."""
        self._verdict = lost
        self._note(lost)
        explaining = self._explaining
        self._decided.set()
        if explaining:  # the main thread raises the same sentence: let it do so
            time.sleep(_LEAVE_SECONDS)
        _flush()
        with suppress(OSError):  # a closed stream must not keep the process
            os.write(2, f"laconic: rank {self._rank}: {self._sentence(lost)} This rank ends now.\n".encode())
        if "TORCHELASTIC_RUN_ID" in os.environ and VARIABLE not in os.environ:
            time.sleep(_LEAVE_SECONDS)  # torchrun blames whoever ends first: let it be the one that failed
        os._exit(EXIT_LOST)

    def _sentence(self, lost: Lost) -> str:
        if self._rank in lost.ranks:
            return f"this rank counts as lost: {lost.cause}. {lost.advice}"
        return lost.sentence()

    def _note(self, lost: Lost) -> None:
        if self._folder is not None:
            note = lost_file(Path(self._folder), self._store.prefix)
            with suppress(OSError), note.open("x") as file:  # unless another rank of this host was first
                file.write(lost.encode() + "\n")


def _flush() -> None:
    """Flush what the script printed; in a thread, because the main thread may hold the stream."""
    flusher = threading.Thread(target=lambda: (sys.stdout.flush(), sys.stderr.flush()), daemon=True)
    flusher.start()
    flusher.join(_FLUSH_SECONDS)


def _until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)


def _describe_error(error: BaseException | None, rank: int, machine: str) -> Lost:
    """Return the loss of a rank that ended with this error; a refusal is given in full, and is final."""
    if isinstance(error, LaconicError):
        why = " ".join(str(error).split()).removesuffix(".")
        return Lost((rank,), machine, f"{REFUSED}: {why}", "", final=True)
    first_line = textwrap.shorten((str(error).splitlines() or [""])[0], _NAMED_CHARACTERS, placeholder=" …")
    name = type(error).__name__ + (f": {first_line}" if first_line else "")
    return Lost((rank,), machine, f"it ended with {name}", "Its log holds the traceback.")
