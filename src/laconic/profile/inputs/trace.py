"""Events of a profiler's trace, of any version of PyTorch.

PyTorch's traces have Chrome's format: a list of events, in microseconds as integers (before 2.4) or with a fraction.
Categories and the spelling of arguments changed over the years (`Operator` became `cpu_op`, `Input dims` became
`Input Dims`); here they have one name each, and times are seconds from the first event.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from laconic.profile.inputs.files import InputError, text_of

WHAT = "a trace of torch.profiler (`prof.export_chrome_trace(...)`), .json or .json.gz"
_CATEGORIES = {"operator": "cpu_op", "runtime": "cuda_runtime", "memcpy": "gpu_memcpy", "memset": "gpu_memset"}
ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")


class Event(NamedTuple):
    """An event with a duration; the keys of `args` are in lower case."""

    name: str
    category: str
    begin: float
    end: float
    thread: tuple[str, str]
    args: Mapping[str, Any]

    @property
    def on_gpu(self) -> bool:
        return self.category in ON_GPU

    @property
    def seconds(self) -> float:
        return self.end - self.begin


@dataclass(frozen=True)
class Trace:
    """The events of a trace in order of their beginning, and the number of workers of the job that it is from."""

    events: tuple[Event, ...]
    workers: int
    where: str


def read(path: str | Path) -> Trace:
    """Return the trace in a file."""
    return parse(text_of(path, WHAT), str(path))


def parse(text: str, where: str = "this text") -> Trace:
    """Return the trace in a text: an object with `traceEvents`, or the list alone."""
    try:
        table = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{where} is no complete JSON ({error}): give {WHAT}; a program that is killed while it writes leaves half"
        ) from error
    listed = table.get("traceEvents") if isinstance(table, dict) else table
    if not isinstance(listed, list):
        raise InputError(f"{where} has no list of traceEvents: give {WHAT}")
    moments = (_number(row.get("ts")) for row in listed if isinstance(row, dict) and row.get("ph") in ("X", "B"))
    first = min((moment for moment in moments if moment is not None), default=0.0)
    events = sorted(_events(listed, first), key=lambda event: (event.begin, -event.end))
    if not events:
        raise InputError(f"{where} holds no event that lasted: was the profiler running? It must see whole steps")
    return Trace(tuple(events), _workers(table), where)


def _workers(table: Any) -> int:
    info = table.get("distributedInfo") if isinstance(table, dict) else None
    size = info.get("world_size", 1) if isinstance(info, dict) else 1
    return size if isinstance(size, int) and size > 0 else 1


def _events(listed: Iterable[Any], first: float) -> Iterable[Event]:
    """Yield complete events, and pairs of begin and end on one thread.

    Malformed events are left out, and so are the Python frames that `with_stack=True` records by the million.
    """
    open_: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in listed:
        if not isinstance(row, dict) or not isinstance(row.get("name", ""), str):
            continue
        kind, thread = row.get("ph"), (str(row.get("pid", "")), str(row.get("tid", "")))
        begin = _number(row.get("ts"))
        if begin is None or row.get("cat") == "python_function":
            continue
        begin -= first
        if kind == "X" and (lasted := _number(row.get("dur", 0))) is not None and lasted >= 0:
            yield _event(row, begin, begin + lasted, thread)
        elif kind == "B":
            open_.setdefault(thread, []).append(row)
        elif kind == "E" and open_.get(thread):
            start = open_[thread].pop()
            yield _event({**start, "args": {**_args(start), **_args(row)}}, float(start["ts"]) - first, begin, thread)


def _event(row: Mapping[str, Any], begin: float, end: float, thread: tuple[str, str]) -> Event:
    category = str(row.get("cat") or "cpu_op").lower()
    if row.get("pid") == "CUDA functions":  # the profiler before Kineto
        category = "kernel"
    args = {str(key).lower(): value for key, value in _args(row).items()}
    category = _CATEGORIES.get(category, category)
    return Event(str(row.get("name", "")), category, 1e-6 * begin, 1e-6 * max(begin, end), thread, args)


def _args(row: Mapping[str, Any]) -> Mapping[str, Any]:
    found = row.get("args")
    return found if isinstance(found, dict) else {}


def _number(value: Any) -> float | None:
    """Return a finite number, which may be written as text, or None."""
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None
