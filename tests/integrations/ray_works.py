"""Jobs that tell what they do, for the tests of the Ray driver."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from examples.cluster_digits import Digits

from laconic.cluster.ray.waits import Waits
from laconic.cluster.ray.work import Seat, Work


def note(work: Work, seat: Seat, what: str, **facts: Any) -> None:
    """Add a line to a file beside the checkpoints."""
    line = {"what": what, "rank": seat.rank, "size": seat.size, "pid": os.getpid(), **facts}
    with (Path(seat.folder) / "notes").open("a") as file:  # a short line is written whole
        file.write(json.dumps(line) + "\n")


def notes(folder: Path, job: str) -> list[dict[str, Any]]:
    """What the workers of a job have noted so far."""
    path = folder / "jobs" / job / "notes"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


class NotedWaits(Waits):
    """Waits whose steps are noted."""

    def begin(self, seat: Seat) -> float:
        done = super().begin(seat)
        note(self, seat, "begin", steps=self.steps, host=seat.grant.slots[seat.rank].host)
        return done

    def step(self) -> float:
        done = super().step()
        note(self, self.seat, "step", steps=self.steps, done=done)
        return done


class NotedDigits(Digits):
    """Digits whose beginnings are noted, and whose weights are at each checkpoint."""

    def begin(self, seat: Seat) -> float:
        done = super().begin(seat)
        note(self, seat, "begin", steps=self.steps)
        return done

    def save(self) -> None:
        super().save()
        weights = [float(p.detach().double().sum()) for p in self.model.parameters()]
        note(self, self.seat, "save", steps=self.steps, weights=weights)


class Raises(Waits):
    """A job that fails."""

    def begin(self, seat: Seat) -> float:
        raise ValueError("this job has no data")
