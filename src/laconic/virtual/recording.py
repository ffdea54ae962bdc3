"""The virtual engine's side of `timeline.py`: one timeline for all workers, in virtual seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from laconic.network.fluid import Job
from laconic.runtime.timeline import Recorder, Timeline


class Recording:
    """A pen for each worker, and an eye on the network."""

    def __init__(self, workers: int) -> None:
        self.timeline = Timeline()
        self.recorders = [Recorder(self.timeline, rank) for rank in range(workers)]

    def waited(self, rank: int, what: str, begin_seconds: float, end_seconds: float) -> None:
        self.recorders[rank].waited(what.split()[0], begin_seconds, end_seconds)

    def follow(self, job: Job, what: str, group: Sequence[int], handed: Mapping[int, Any], seconds: float) -> None:
        """All members are there at `seconds`: note when the job flows and when it ends, on each of them."""
        operation, finished = what.split()[0], job.finished
        recorders = [self.recorders[rank] for rank in group]
        messages = [r.message(*_described(operation, place, handed[place])) for place, r in enumerate(recorders)]
        job.finished = _ending(job, recorders, messages, seconds, finished)


def _ending(
    job: Job,
    recorders: Sequence[Recorder],
    messages: Sequence[Mapping[str, Any]],
    all_there_seconds: float,
    finished: Callable[[float], None],
) -> Callable[[float], None]:
    def end(seconds: float) -> None:
        for recorder, message in zip(recorders, messages, strict=True):
            recorder.queued(message["operation"], all_there_seconds, job.began_seconds)
            recorder.transferred(message, job.began_seconds, seconds)
        finished(seconds)

    return end


def _described(operation: str, place: int, handed: Any) -> tuple[str, int, int]:
    """Operation, bytes and elements as one member sees them: a message's first member sends, its second receives."""
    if operation == "message":
        operation = ("send", "receive")[place]
    tensor = handed[0] if isinstance(handed, tuple) else handed
    return (operation, tensor.nbytes, tensor.numel()) if isinstance(tensor, Tensor) else (operation, 0, 0)
