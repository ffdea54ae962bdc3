"""Processes that train side by side: started together, and asked by pipes that no wait outlasts."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any

STARTING = 90.0  # seconds after which a process that is not ready has failed
ANSWERING = 30.0  # beyond what was asked for


def serve(pipe: Connection, kind: str, device: str, small: bool) -> None:
    """Build a training, and do what the pipe says until it says nothing more."""
    import torch
    from bench.sharing.models import Training

    torch.set_num_threads(1)
    try:
        training = Training(kind, device, small)
        pipe.send(("ready", None))
        while True:
            what, *given = pipe.recv()
            if what == "rate":
                begin, seconds = given
                time.sleep(max(begin - time.monotonic(), 0.0))
                pipe.send(("rate", training.rate(seconds)))
            elif what == "busy":
                pipe.send(("busy", training.kernel_seconds()))
            else:
                return
    except EOFError:
        return
    except Exception as error:
        pipe.send(("failed", f"{type(error).__name__}: {str(error)[:300]}"))


class Failed(RuntimeError):
    """A process did not do what it was asked for."""


class Worker:
    """A process that trains."""

    def __init__(self, kind: str, device: str, small: bool, share: float) -> None:
        self.kind, self.share = kind, share
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, kind, device, small), daemon=True)
        self._process.start()
        theirs.close()

    def ask(self, *what: Any) -> None:
        """Ask for something; of a process that has ended, the answer says so."""
        with suppress(OSError):
            self._pipe.send(what)

    def answer(self, seconds: float) -> Any:
        """Return the answer, or fail after so many seconds."""
        if not self._pipe.poll(seconds):
            raise Failed(f"a process that trains {self.kind} did not answer within {seconds:.0f} s")
        try:
            what, value = self._pipe.recv()
        except (EOFError, OSError):
            raise Failed(f"a process that trains {self.kind} has ended without a word") from None
        if what == "failed":
            raise Failed(f"a process that trains {self.kind} failed: {value}")
        return value

    def end(self) -> None:
        """Ask the process to end."""
        with suppress(OSError):
            self._pipe.send(("end",))

    def close(self, seconds: float) -> None:
        """Wait so long for its end, and then kill it."""
        self._process.join(seconds)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(5)


@contextmanager
def workers(
    wanted: Sequence[tuple[str, float]], device: str, small: bool, environment: Mapping[str, str] | None = None
) -> Iterator[list[Worker]]:
    """Start processes at once, by kind and by the share of the GPU's multiprocessors that MPS caps them at, and end
    them. The environment is set for them alone."""
    kept = dict(os.environ)
    started: list[Worker] = []
    try:
        os.environ.update(environment or {})
        for kind, share in wanted:
            if share < 1:
                os.environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = f"{100 * share:.0f}"
            else:
                os.environ.pop("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", None)
            started.append(Worker(kind, device, small, share))
        os.environ.clear()
        os.environ.update(kept)
        until = time.monotonic() + STARTING
        for worker in started:
            worker.answer(max(until - time.monotonic(), 0.1))
        yield started
    finally:
        os.environ.clear()
        os.environ.update(kept)
        for worker in started:
            worker.end()
        until = time.monotonic() + 5
        for worker in started:
            worker.close(max(until - time.monotonic(), 0.1))


def rates(together: Sequence[Worker], seconds: float, repeats: int) -> list[list[float]]:
    """Let processes train at the same time, and return for each repetition the steps a second of each."""
    rows = []
    for _ in range(repeats):
        begin = time.monotonic() + 0.05
        for worker in together:
            worker.ask("rate", begin, seconds)
        rows.append([worker.answer(seconds + ANSWERING) for worker in together])
    return rows


def busy_seconds(worker: Worker) -> float:
    """Return for how long kernels of a process run in a step."""
    worker.ask("busy")
    found: float = worker.answer(ANSWERING)
    return found


def pool_for(cases: Sequence[Sequence[tuple[str, float]]]) -> list[tuple[str, float]]:
    """Return the processes with which each of some cases can be run, one after the other."""
    most: Counter[tuple[str, float]] = Counter()
    for jobs in cases:
        most |= Counter(jobs)
    return list(most.elements())


def pick(pool: Sequence[Worker], wanted: Sequence[tuple[str, float]]) -> list[Worker]:
    """Return workers of a pool of these kinds and shares, each once."""
    left, found = list(pool), []
    for kind, share in wanted:
        one = next(worker for worker in left if (worker.kind, worker.share) == (kind, share))
        left.remove(one)
        found.append(one)
    return found
