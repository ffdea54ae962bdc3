"""Timelines on the virtual engine: all workers record into one timeline, in virtual seconds (see `timeline.py`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from laconic.network.fluid import Job
from laconic.runtime.timeline import Recorder, Timeline


class Recording:
    """One timeline with a recorder for each worker, which also notes when messages are in flight."""

    def __init__(self, workers: int) -> None:
        self.timeline = Timeline()
        self.recorders = [Recorder(self.timeline, rank) for rank in range(workers)]

    def waited(self, rank: int, what: str, begin_seconds: float, end_seconds: float) -> None:
        """Record that a worker was blocked in an operation."""
        self.recorders[rank].waited(what.split()[0], begin_seconds, end_seconds)

    def follow(
        self, job: Job, what: str, group: Sequence[int], contributions: Mapping[int, Any], seconds: float
    ) -> None:
        """Record for each member of an operation, complete at `seconds`, when its transfer begins and when it ends."""
        operation, finished = what.split()[0], job.finished
        recorders = [self.recorders[rank] for rank in group]
        messages = [r.message(*_describe(operation, place, contributions[place])) for place, r in enumerate(recorders)]
        job.finished = _recording_end(job, recorders, messages, seconds, finished)


def _recording_end(
    job: Job,
    recorders: Sequence[Recorder],
    messages: Sequence[Mapping[str, Any]],
    complete_seconds: float,
    finished: Callable[[float], None],
) -> Callable[[float], None]:
    def end(seconds: float) -> None:
        for recorder, message in zip(recorders, messages, strict=True):
            recorder.queued(message["operation"], complete_seconds, job.began_seconds)
            recorder.transferred(message, job.began_seconds, seconds)
        finished(seconds)

    return end


def _describe(operation: str, place: int, contribution: Any) -> tuple[str, int, int]:
    """Return operation, bytes and elements for one member: a message's first member sends, its second receives."""
    if operation == "message":
        operation = ("send", "receive")[place]
    tensor = contribution[0] if isinstance(contribution, tuple) else contribution
    return (operation, tensor.nbytes, tensor.numel()) if isinstance(tensor, Tensor) else (operation, 0, 0)
