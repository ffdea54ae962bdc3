"""One worker of a gang: an actor that prepares its job's work, and steps until it is done or asked to stop."""

from __future__ import annotations

import os
import socket
import time
from typing import NamedTuple

import ray

from laconic.cluster.grant import Grant
from laconic.cluster.ray.work import GO_ON, SAVE, STOP, Seat, Task, Work
from laconic.errors import ClusterError
from laconic.places import class_at


class Seen(NamedTuple):
    """How far a worker is: the work that is done, and the part of it that the last checkpoint holds."""

    done: float
    saved: float


class Ended(NamedTuple):
    """How a worker's run ended.

    - `is_done`: whether the work is; otherwise it was asked to stop.
    - `work`: how much of it is, all of which is saved.
    - `at`: when the last step ended, in seconds since 1970.
    """

    is_done: bool
    work: float
    at: float


@ray.remote(num_cpus=0, max_restarts=0, concurrency_groups={"work": 1, "control": 2})
class Member:
    """A worker process. What it does happens in one thread, and what it is told and asked meanwhile in others.

    - `task`: how the work is made.
    - `device`: the number of the device that it may use, of its host's.
    """

    def __init__(self, task: Task, device: int) -> None:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(device)  # before anything looks for devices
        self._task = task
        self._seen, self._asked_to_stop = Seen(0.0, 0.0), False

    @ray.method(concurrency_group="work")
    def prepare(self) -> tuple[str, int]:
        """Prepare the work, and return an address at which the gang can meet."""
        kind = class_at(self._task.place)
        if not (isinstance(kind, type) and issubclass(kind, Work)):
            raise ClusterError(f"{self._task.place} is no laconic.cluster.ray.work.Work; let its class extend that")
        self._work = kind(**self._task.arguments)
        self._work.prepare()
        self._held = socket.socket()
        self._held.bind(("", 0))  # held until the gang begins
        return ray.util.get_node_ip_address(), self._held.getsockname()[1]

    @ray.method(concurrency_group="work")
    def begin(self, seat: Seat, target: float, save_every: float) -> float:
        """Join the gang, and return the work that is done.

        - `seat`: this worker's place.
        - `target`: the work that there is to do.
        - `save_every`: seconds between checkpoints.
        """
        self._held.close()
        self._rank, self._target, self._save_every = seat.rank, target, save_every
        done = self._work.begin(seat)
        self._seen = Seen(done, done)
        return done

    @ray.method(concurrency_group="work")
    def run(self) -> Ended:
        """Step until the work is done or somebody asks to stop; what is done then is saved."""
        work, done, saved = self._work, self._seen.done, time.monotonic()
        ended = time.time()
        while True:
            wish = self._wish(time.monotonic() - saved)
            is_done = done >= self._target
            agreed = STOP if is_done else work.agree(wish)
            if agreed >= SAVE:
                work.save()
                self._seen, saved = Seen(done, done), time.monotonic()
            if agreed == STOP:
                return Ended(is_done, done, ended)
            done, ended = work.step(), time.time()
            self._seen = self._seen._replace(done=done)

    def _wish(self, since_saved: float) -> int:
        if self._rank:
            return GO_ON
        return STOP if self._asked_to_stop else SAVE if since_saved >= self._save_every else GO_ON

    @ray.method(concurrency_group="control")
    def seen(self) -> Seen:
        """Return how far the worker is."""
        return self._seen

    @ray.method(concurrency_group="control")
    def stop(self) -> None:
        """Ask to stop after the step that is being taken."""
        self._asked_to_stop = True

    @ray.method(concurrency_group="control")
    def tune(self, grant: Grant) -> None:
        """Go on with another batch or clock.

        - `grant`: what the job holds now.
        """
        self._work.tune(grant)
