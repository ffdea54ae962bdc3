"""Calibrated waits: a job that takes as long as its progress says and computes nothing, so that a few cores can hold
many such jobs and what is measured is the driver."""

from __future__ import annotations

import json
import time
from pathlib import Path

from laconic.cluster.grant import Grant
from laconic.cluster.job import Progress
from laconic.cluster.ray.work import Seat, Work
from laconic.files import is_file, write_text


class Waits(Work):
    """Steps that wait. Rank 0 counts the work; the others wait beside it. Jobs on shares of one device do not slow each
    other down beyond what their shares say.

    - `progress`: how fast the job proceeds on what it is given.
    - `tick`: the seconds of a step; a step that comes to where the rate changes is shorter.
    """

    def __init__(self, progress: Progress, tick: float = 0.25) -> None:
        self.progress, self.tick = progress, tick
        self.done, self.steps = 0.0, 0

    def prepare(self) -> None:
        return  # who waits has no model

    def begin(self, seat: Seat) -> float:
        self.seat, self._grant = seat, seat.grant
        if is_file(self._file):
            kept = json.loads(self._file.read_text())
            self.done, self.steps = kept["done"], kept["steps"]
        self._clock = time.monotonic()
        self._rate()
        return self.done

    def step(self) -> float:
        if self._rated is not self._grant:
            self._rate()
        if self._left <= self.tick:
            self._wait(self._left)
            self.done = self._until
        else:
            self._wait(self.tick)
            self.done += self.tick * self._speed
        self._left -= self.tick
        self.steps += 1
        if self._left <= 0 and self.done < self.progress.work:
            self._rate()
        return self.done

    def save(self) -> None:
        if self.seat.rank == 0:
            write_text(self._file, json.dumps({"done": self.done, "steps": self.steps}))

    def tune(self, grant: Grant) -> None:
        self._grant = grant

    @property
    def _file(self) -> Path:
        return Path(self.seat.folder) / "waits.json"

    def _rate(self) -> None:
        """Find out how long it takes from here until the rate changes."""
        self._rated = self._grant
        rate = self.progress.rate(self.done, self._rated, self.seat.cluster, [])
        self._until, self._left = rate.until, rate.seconds(self.done)
        self._speed = (rate.until - self.done) / self._left if self._left else 0.0

    def _wait(self, seconds: float) -> None:
        """Wait until so long after the last step's end, however late that was noticed."""
        self._clock += seconds
        time.sleep(max(self._clock - time.monotonic(), 0.0))
