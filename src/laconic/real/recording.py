"""The recording of a real process's timeline (see `timeline.py`).

Times are `perf_counter` from the moment the worker connected, and that moment is stored by the wall clock, so that
processes of one host line up when their files are merged. Between hosts they line up as well as the hosts' clocks do.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from laconic.liveness.detection import name_ranks
from laconic.runtime.timeline import Recorder, Timeline, TimelineError

if TYPE_CHECKING:
    from torch import Tensor


class Recording:
    """Records what one process computes, waits for and sends. The time between two marks counts as computing."""

    def __init__(self, rank: int) -> None:
        self._origin = self._marked = time.perf_counter()
        wall = max(time.time() - time.perf_counter() for _ in range(5))  # a pause in between makes it smaller
        self.timeline = Timeline(began_seconds=self._origin + wall)
        self._recorder = Recorder(self.timeline, rank)

    def computed(self, part: str, tensor: str | None) -> None:
        """Mark the end of a part: all time since the last mark was spent on it."""
        now = time.perf_counter()
        self._recorder.computed(part, tensor, self._marked - self._origin, now - self._origin)
        self._marked = now

    def waited(self, operation: str, begin_seconds: float, end_seconds: float) -> None:
        """Record a wait. The unmarked time before it counts as computing too, such as packing and unpacking."""
        self._recorder.computed("other", None, self._marked - self._origin, begin_seconds - self._origin)
        self._recorder.waited(operation, begin_seconds - self._origin, end_seconds - self._origin)
        self._marked = end_seconds

    def start_operation(self, operation: str, tensor: Tensor | None) -> RecordedOperation:
        """Note the start of an operation; call it before the operation is given to the backend."""
        nbytes, elements = (0, 0) if tensor is None else (tensor.nbytes, tensor.numel())
        return RecordedOperation(self, self._recorder.message(operation, nbytes, elements), time.perf_counter())

    def end_operation(self, message: Mapping[str, Any], begin_seconds: float, end_seconds: float) -> None:
        """Record an operation that has completed."""
        self._recorder.transferred(message, begin_seconds - self._origin, end_seconds - self._origin)

    def write_at_exit(self, path: Path) -> None:
        """Write the timeline at exit, also when the script raises, but not when the process is killed."""
        atexit.register(self.timeline.write, path)


class RecordedOperation:
    """An operation in flight. It completes once: when the backend says so, or when the worker has waited for it."""

    def __init__(self, recording: Recording, message: Mapping[str, Any], begin_seconds: float) -> None:
        self._recording, self._message, self._begin = recording, message, begin_seconds
        self._completed = threading.Lock()

    def follow(self, work: Any) -> None:
        """Note the moment of completion without waiting; gloo's point-to-point messages do not offer it."""
        try:
            work.get_future().add_done_callback(lambda _: self.complete())
        except RuntimeError:
            return

    def complete(self) -> None:
        """Record the completion, unless it was recorded before."""
        now = time.perf_counter()
        if self._completed.acquire(blocking=False):
            self._recording.end_operation(self._message, self._begin, now)

    def waited(self, begin_seconds: float, end_seconds: float) -> None:
        """Record that the worker was blocked by this operation in between."""
        self._recording.waited(self._message["operation"], begin_seconds, end_seconds)


def rank_file(folder: Path, rank: int) -> Path:
    """Return the file in which a process leaves its timeline for the launcher."""
    return folder / "trace" / f"rank-{rank}.json"


def forget(folder: Path, ranks: Sequence[int]) -> None:
    """Remove the timelines of an earlier attempt, so that attempts are not mixed."""
    for rank in ranks:
        rank_file(folder, rank).unlink(missing_ok=True)


def merge(folder: Path, ranks: Sequence[int], node: int) -> str:
    """Merge the timelines of this host's ranks, and return a sentence that names the file and the missing ranks."""
    path = folder / ("trace.json" if node == 0 else f"trace-node-{node}.json")
    path.unlink(missing_ok=True)
    present = [rank for rank in ranks if rank_file(folder, rank).exists()]
    missing = name_ranks([rank for rank in ranks if rank not in present])
    why = "killed before the end, or never connected to laconic"
    if not present:
        return f"no timeline: {missing} left none ({why})"
    try:
        Timeline.merge([Timeline.read(rank_file(folder, rank)) for rank in present]).write(path)
    except (OSError, TimelineError) as error:
        return f"no timeline: {error}"
    absent = f"; {missing} left none ({why})" if missing else ""
    return f"timeline: {path}, to be opened in ui.perfetto.dev{absent}"
