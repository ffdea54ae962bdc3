"""The timeline: what every worker did when, as a Chrome trace that ui.perfetto.dev draws.

Both engines record spans in one `Timeline`: a worker computes, waits, and communicates. Computing and waiting
alternate; communication runs beside them. An engine that is not asked for a timeline has None in its place and pays one
comparison.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from laconic.errors import LaconicError
from laconic.files import make_folder, replacing

Track = Literal["compute", "waiting", "communication"]


class TimelineError(LaconicError, ValueError):
    """Spans, or a file of them, that no clock can have produced."""


@dataclass(frozen=True, slots=True)
class Span:
    """An activity of one worker from one moment to another."""

    worker: int
    track: Track
    name: str
    begin_seconds: float
    end_seconds: float
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return self.end_seconds - self.begin_seconds


class Timeline:
    """The spans of one run. Time zero is `began_seconds` by the wall clock; it is 0 for virtual time, which has
    none."""

    def __init__(self, spans: Iterable[Span] = (), began_seconds: float = 0.0) -> None:
        self.spans, self.began_seconds = list(spans), began_seconds

    def add(self, worker: int, track: Track, name: str, begin_seconds: float, end_seconds: float, **more: Any) -> None:
        """Add a span; this is also called from a transport's own threads."""
        if not end_seconds >= begin_seconds:
            raise TimelineError(
                f"worker {worker}'s {name} ends at {end_seconds:.9g} s, before it begins at {begin_seconds:.9g} s: "
                "two clocks are mixed up"
            )
        self.spans.append(Span(worker, track, name, begin_seconds, end_seconds, more))

    def of(self, worker: int, track: Track) -> list[Span]:
        """Return one track of a worker, in order of time."""
        chosen = [span for span in self.spans if span.worker == worker and span.track == track]
        return sorted(chosen, key=lambda span: (span.begin_seconds, span.end_seconds))

    @property
    def workers(self) -> list[int]:
        return sorted({span.worker for span in self.spans})

    @classmethod
    def merge(cls, timelines: Sequence[Timeline]) -> Timeline:
        """Merge the timelines of several processes into one, which begins when the first of them did."""
        began = min((timeline.began_seconds for timeline in timelines), default=0.0)
        merged = cls(began_seconds=began)
        for timeline in timelines:
            later = timeline.began_seconds - began
            merged.spans += (
                replace(span, begin_seconds=span.begin_seconds + later, end_seconds=span.end_seconds + later)
                for span in timeline.spans
            )
        return merged

    # ------------------------------------------------------------------------------------------ as a file

    def write(self, path: Path) -> None:
        """Write a Chrome trace: a process per worker, a thread per lane of a track."""
        tracks: dict[tuple[int, Track], list[_Slice]] = defaultdict(list)
        for span in self.spans:
            begin, end = round(span.begin_seconds * 1e9), round(span.end_seconds * 1e9)
            tracks[span.worker, span.track].append(_Slice(begin, end, span))
        lines: list[str] = []
        for worker in self.workers:
            lines += _names(worker, 0, "process", f"worker {worker}", worker)
            thread = 0
            for track in get_args(Track):
                for number, lane in enumerate(_lanes(tracks.get((worker, track), ())), 1):
                    lines += _names(worker, thread, "thread", track if number == 1 else f"{track} {number}", thread)
                    lines += (json.dumps(slice_.event(thread)) for slice_ in lane)
                    thread += 1
        make_folder(path.parent)
        other = json.dumps({"began_seconds": self.began_seconds})
        with replacing(path) as beside, beside.open("w", encoding="utf-8") as file:
            file.write('{"traceEvents": [\n' + ",\n".join(lines))
            file.write(f'\n], "displayTimeUnit": "ms", "otherData": {other}}}\n')

    @classmethod
    def read(cls, path: Path) -> Timeline:
        """Read a file that `write` wrote; refuse one in which a span is negative or two of one lane overlap."""
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            timeline = cls(began_seconds=float(document["otherData"]["began_seconds"]))
            events = document["traceEvents"]
            threads = {
                (e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"
            }
            slices = [e for e in events if e["ph"] == "X"]
            ends: dict[tuple[int, int], float] = {}
            for event in sorted(slices, key=lambda e: (e["pid"], e["tid"], e["ts"], e["dur"])):
                lane = event["pid"], event["tid"]
                begin, end = round(event["ts"] * 1e3), round((event["ts"] + event["dur"]) * 1e3)
                if begin < ends.get(lane, begin):
                    raise TimelineError(
                        f"{path}: worker {lane[0]}'s {event['name']} begins before the last span of its lane "
                        f"({threads[lane]}) has ended"
                    )
                ends[lane] = end
                track = threads[lane].split()[0]
                timeline.add(event["pid"], track, event["name"], begin / 1e9, end / 1e9, **event["args"])
        except OSError as error:
            raise TimelineError(f"{path} cannot be read: {error.strerror}") from error
        except TimelineError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
            raise TimelineError(f"{path} is no timeline that laconic wrote ({error!r})") from error
        return timeline


class Recorder:
    """Records one worker's spans in a timeline, with the number of the current step."""

    def __init__(self, timeline: Timeline, worker: int) -> None:
        self._timeline, self._worker, self._step = timeline, worker, 0

    def message(self, operation: str, nbytes: int, elements: int) -> dict[str, Any]:
        """Return the description of a message that is sent now. `nbytes` are handed over; the algorithm may send
        another number."""
        return {"operation": operation, "bytes": nbytes, "elements": elements, "step": self._step}

    def computed(self, part: str, tensor: str | None, begin_seconds: float, end_seconds: float) -> None:
        """Record a part of a step, or of its backward up to one tensor's gradient."""
        name = part if tensor is None else f"{part} {tensor}"
        self._take("compute", name, begin_seconds, end_seconds, part=part)
        self._step += part == "step"

    def waited(self, operation: str, begin_seconds: float, end_seconds: float) -> None:
        """Record that the worker waited for an operation."""
        self._take("waiting", operation, begin_seconds, end_seconds)

    def transferred(self, message: Mapping[str, Any], begin_seconds: float, end_seconds: float) -> None:
        """Record the transfer of a message that `message` described."""
        name = f"{message['operation']} {message['bytes']} B" if message["bytes"] else message["operation"]
        self._timeline.add(self._worker, "communication", name, begin_seconds, end_seconds, **message)

    def queued(self, operation: str, begin_seconds: float, end_seconds: float) -> None:
        """Record the time for which a message that all workers have started was held up by other messages."""
        self._take("communication", f"queued {operation}", begin_seconds, end_seconds, operation="queued")

    def _take(self, track: Track, name: str, begin_seconds: float, end_seconds: float, **more: Any) -> None:
        if end_seconds > begin_seconds:  # in virtual time, much takes none
            self._timeline.add(self._worker, track, name, begin_seconds, end_seconds, **more, step=self._step)


@dataclass(frozen=True, slots=True)
class _Slice:
    """A span on the file's grid of whole nanoseconds, where "touches" and "overlaps" are exact."""

    begin: int
    end: int
    span: Span

    def event(self, thread: int) -> dict[str, Any]:
        return {
            "ph": "X",
            "pid": self.span.worker,
            "tid": thread,
            "name": self.span.name,
            "cat": self.span.track,
            "ts": self.begin / 1e3,
            "dur": (self.end - self.begin) / 1e3,
            "args": dict(self.span.arguments),
        }


def _lanes(slices: Iterable[_Slice]) -> list[list[_Slice]]:
    """Distribute spans over as few rows as the overlaps need, since a viewer draws overlapping slices of one thread
    wrongly."""
    lanes: list[list[_Slice]] = []
    for slice_ in sorted(slices, key=lambda s: (s.begin, s.end)):
        lane = next((lane for lane in lanes if lane[-1].end <= slice_.begin), None)
        if lane is None:
            lanes.append(lane := [])
        lane.append(slice_)
    return lanes


def _names(worker: int, thread: int, what: Literal["process", "thread"], name: str, place: int) -> list[str]:
    common = {"ph": "M", "pid": worker, "tid": thread}
    return [
        json.dumps({**common, "name": f"{what}_name", "args": {"name": name}}),
        json.dumps({**common, "name": f"{what}_sort_index", "args": {"sort_index": place}}),
    ]
