"""A process's own timeline: the real engine's side of `timeline.py`.

Time is `perf_counter` from the moment the worker connected, and that moment by the clock on the wall, so that processes
of one machine line up when their files are merged. Between machines they line up as well as the machines' clocks do.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from laconic.liveness.beats import name_ranks
from laconic.runtime.timeline import Recorder, Timeline, TimelineError

if TYPE_CHECKING:
    from torch import Tensor


class Recording:
    """What one process computes, waits for and says. Computing is whatever lies between two marks."""

    def __init__(self, rank: int) -> None:
        self._origin = self._marked = time.perf_counter()
        wall = max(time.time() - time.perf_counter() for _ in range(5))  # a pause in between makes it smaller
        self.timeline = Timeline(began_seconds=self._origin + wall)
        self._recorder = Recorder(self.timeline, rank)

    def computed(self, part: str, tensor: str | None) -> None:
        """The worker has come this far: all since the last mark was this part."""
        now = time.perf_counter()
        self._recorder.computed(part, tensor, self._marked - self._origin, now - self._origin)
        self._marked = now

    def waited(self, operation: str, begin_seconds: float, end_seconds: float) -> None:
        """Blocked in between; what came before and has no mark is computing too, such as packing and unpacking."""
        self._recorder.computed("other", None, self._marked - self._origin, begin_seconds - self._origin)
        self._recorder.waited(operation, begin_seconds - self._origin, end_seconds - self._origin)
        self._marked = end_seconds

    def handing_over(self, operation: str, tensor: Tensor | None) -> RecordedOperation:
        """To be called before the backend gets it."""
        nbytes, elements = (0, 0) if tensor is None else (tensor.nbytes, tensor.numel())
        return RecordedOperation(self, self._recorder.message(operation, nbytes, elements), time.perf_counter())

    def talked(self, message: Mapping[str, Any], begin_seconds: float, end_seconds: float) -> None:
        self._recorder.talked(message, begin_seconds - self._origin, end_seconds - self._origin)

    def write_at_exit(self, path: Path) -> None:
        """Also when the script raises; not when the process is killed."""
        atexit.register(self.timeline.write, path)


class RecordedOperation:
    """An operation under way. It lands once: when the backend says so, or when somebody has waited for it."""

    def __init__(self, recording: Recording, message: Mapping[str, Any], begin_seconds: float) -> None:
        self._recording, self._message, self._begin = recording, message, begin_seconds
        self._landed = threading.Lock()

    def follow(self, work: Any) -> None:
        """Note the moment of completion without waiting; gloo's messages between two do not offer it."""
        try:
            work.get_future().add_done_callback(lambda _: self.land())
        except RuntimeError:
            return

    def land(self) -> None:
        now = time.perf_counter()
        if self._landed.acquire(blocking=False):
            self._recording.talked(self._message, self._begin, now)

    def waited(self, begin_seconds: float, end_seconds: float) -> None:
        """The worker was blocked for it in between."""
        self._recording.waited(self._message["operation"], begin_seconds, end_seconds)


def rank_file(folder: Path, rank: int) -> Path:
    """Where a process leaves its timeline for the launcher."""
    return folder / "trace" / f"rank-{rank}.json"


def forget(folder: Path, ranks: Sequence[int]) -> None:
    """Remove what an earlier attempt left, so that attempts are not mixed."""
    for rank in ranks:
        rank_file(folder, rank).unlink(missing_ok=True)


def merge(folder: Path, ranks: Sequence[int], node: int) -> str:
    """Put the files of this machine's ranks together; a sentence that says where, and who is missing."""
    path = folder / ("trace.json" if node == 0 else f"trace-node-{node}.json")
    path.unlink(missing_ok=True)
    there = [rank for rank in ranks if rank_file(folder, rank).exists()]
    missing = name_ranks([rank for rank in ranks if rank not in there])
    why = "killed before the end, or never connected to laconic"
    if not there:
        return f"no timeline: {missing} left none ({why})"
    try:
        Timeline.merge([Timeline.read(rank_file(folder, rank)) for rank in there]).write(path)
    except (OSError, TimelineError) as error:
        return f"no timeline: {error}"
    rest = f"; {missing} left none ({why})" if missing else ""
    return f"timeline: {path}, to be opened in ui.perfetto.dev{rest}"
