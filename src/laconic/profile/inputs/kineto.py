"""Profiles from PyTorch profiler traces: when each gradient was ready, and forward, backward and step times.

A trace needs whole training steps. Steps are found by `ProfilerStep#` annotations, else by the optimizer's, else by
forward operations that follow backward ones. Gradients are `AccumulateGrad` events; on a GPU one is ready when the
kernels launched before it have ended.
"""

from __future__ import annotations

import re
import statistics
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path

from laconic.profile.inputs import trace as traces
from laconic.profile.inputs.clock import TraceClock
from laconic.profile.inputs.collectives import is_communication, links
from laconic.profile.inputs.dims import inputs_of
from laconic.profile.inputs.files import InputError
from laconic.profile.inputs.trace import Event, Trace
from laconic.values.profile import ModelTimes, Profile, Seconds, TensorTime

RECORD = (
    "record with `torch.profiler.profile(record_shapes=True, schedule=torch.profiler.schedule(wait=1, warmup=2, "
    "active=5))` and call `prof.step()` after each training step"
)
_BACKWARD = re.compile(r"autograd::engine::evaluate_function: |\w+Backward\d*$|torch::autograd::")
_STEP = re.compile(r"ProfilerStep\s*#\d+")
_UPDATE = re.compile(r"^Optimizer\.step#(\w+).*$")
_GRADIENT = "AccumulateGrad"

Shape = tuple[tuple[int, ...], str]  # and the dtype


@dataclass(frozen=True)
class TracedIteration:
    """One training step in seconds of the trace; on a GPU by the ends of kernels, not by their launches."""

    begin: float
    backward: float
    ready: tuple[float, ...]
    update: float  # when the optimizer began
    end: float
    gradients: tuple[Event, ...]
    updates: tuple[Event, ...]


def read(path: str | Path) -> Profile:
    """Return the profile of a trace file."""
    return profile(traces.read(path))


def parse(text: str, where: str = "this text") -> Profile:
    """Return the profile of a trace given as text; errors call its source `where`."""
    return profile(traces.parse(text, where))


def profile(trace: Trace) -> Profile:
    """Return the profile of a trace: the model, and the links where collectives were recorded with their sizes."""
    steps = _Steps(trace)
    found = steps.all()
    if not found:
        raise InputError(f"{trace.where} has no whole training step: {RECORD}")
    usual = Counter(len(iteration.ready) for iteration in found).most_common(1)[0][0]
    kept = [iteration for iteration in found if len(iteration.ready) == usual]
    times, workers = links(trace)
    communicated = any(is_communication(event) for event in trace.events)
    known = {"trace": Path(trace.where).name, "steps": len(kept), "gpu": steps.clock.on_gpu}
    model = _model(kept, _shapes(trace, kept[-1]), communicated)
    optimizer = next((_UPDATE.sub(r"\1", event.name).lower() for event in steps.updates), "")
    return Profile(model, workers, known, times, optimizer=optimizer)


# ------------------------------------------------------------------------------------------ steps


class _Steps:
    """The host's events by their purpose, and the training steps that they form."""

    def __init__(self, trace: Trace) -> None:
        self.trace, self.clock = trace, TraceClock(trace.events)
        host = [event for event in trace.events if not event.on_gpu]
        self.backward = [event for event in host if _BACKWARD.match(event.name)]
        self.forward = _outside(
            [e for e in host if e.category == "cpu_op" and "sequence number" in e.args and not _BACKWARD.match(e.name)],
            self.backward,
        )
        self.updates = [event for event in host if event.name.startswith("Optimizer.step#")]
        self.annotated = {e.name: e for e in host if _STEP.match(e.name)}
        found = [event for event in self.backward if _GRADIENT in event.name]
        engines = [event for event in found if event.name.startswith("autograd::engine")]
        self.gradients = engines or found  # hooks, such as DDP's, run inside of the engine's events
        if not self.gradients:
            raise InputError(f"{trace.where} has no AccumulateGrad event, so no backward pass of a model: {RECORD}")

    def all(self) -> list[TracedIteration]:
        found = [self._iteration(*window) for window in self._windows()]
        return [iteration for iteration in found if iteration]

    def _windows(self) -> list[tuple[float, float]]:
        """Return the begin and the end of each step."""
        if self.annotated:
            return sorted((event.begin, event.end) for event in self.annotated.values())
        first, last = self.trace.events[0].begin, max(event.end for event in self.trace.events)
        if self.updates:
            return list(pairwise([first, *(update.end for update in self.updates)]))
        cuts = [first]
        both = sorted([(e.begin, True) for e in self.forward] + [(e.begin, False) for e in self.backward])
        for (_, was), (begin, forward) in pairwise(both):
            if forward and not was:
                cuts.append(begin)
        return list(pairwise([*cuts, last]))

    def _iteration(self, begin: float, end: float) -> TracedIteration | None:
        """Return the step in a window; where gradients are accumulated over several batches, the last batch counts."""
        mine = [event for event in self.gradients if begin <= event.begin < end]
        if not mine:
            return None
        before = bisect_left([event.begin for event in self.forward], mine[-1].begin)
        since = self.forward[before - 1].begin if before else begin
        mine = [event for event in mine if event.begin > since] or mine
        first = bisect_right([event.begin for event in self.backward], since)
        updates = tuple(e for e in self.updates if mine[-1].begin <= e.begin < end)
        done = self.clock.done
        points = [done(begin), done(min(self.backward[first].begin, mine[0].begin)), *(done(e.end) for e in mine)]
        points.append(self.clock.starts(updates[0].begin) if updates else points[-1])
        points.append(done(updates[-1].end if updates else end))
        points = list(accumulate(points, max))
        return TracedIteration(points[0], points[1], tuple(points[2:-2]), points[-2], points[-1], tuple(mine), updates)


def _outside(events: Sequence[Event], backward: Sequence[Event]) -> list[Event]:
    """Return the events outside of backward, in which checkpointed operations are recomputed."""
    begins = [event.begin for event in backward]
    reach = list(accumulate((event.end for event in backward), max))
    return [
        event for event in events if not (before := bisect_right(begins, event.begin)) or reach[before - 1] < event.end
    ]


# ------------------------------------------------------------------------------------------ the model


def _model(found: Sequence[TracedIteration], shapes: Sequence[Shape], communicated: bool) -> ModelTimes:
    """Return the medians over the steps, without waiting for other workers between backward and the optimizer."""
    gaps = [[b - a for a, b in pairwise((i.backward, *i.ready))] for i in found]
    each = [statistics.median(column) for column in zip(*gaps, strict=True)]
    backward = Seconds.of([i.ready[-1] - i.backward for i in found])
    scale = backward.median / total if (total := sum(each)) else 0.0
    digits = len(str(len(shapes) - 1))
    tensors = tuple(
        TensorTime(f"gradient{index:0{digits}}.{'x'.join(map(str, shape)) or 'scalar'}", shape, dtype, scale * seconds)
        for index, ((shape, dtype), seconds) in enumerate(zip(shapes, each, strict=True))
    )
    forward = Seconds.of([i.backward - i.begin for i in found])
    step = Seconds.of([i.end - (i.update if communicated else i.ready[-1]) for i in found])
    return ModelTimes(tensors, forward, backward, step)


def _shapes(trace: Trace, iteration: TracedIteration) -> list[Shape]:
    """Return the shapes of the gradients in order: from their own events, or from the optimizer's."""
    nodes = [event for event in trace.events if event.name.endswith(_GRADIENT) and any(inputs_of(event))]
    begins = [node.begin for node in nodes]
    found: list[Shape] = []
    for event in iteration.gradients:
        place = bisect_left(begins, event.begin)
        if place < len(nodes) and nodes[place].begin <= event.end:
            found.append(next(inputs_of(nodes[place])))
    if len(found) == len(iteration.gradients):
        return found
    if updated := _updated(trace, iteration):
        return updated
    raise InputError(
        f"{trace.where} has {len(iteration.gradients)} gradients but does not say their shapes: {RECORD} (this one was "
        "recorded without record_shapes=True)"
    )


def _updated(trace: Trace, iteration: TracedIteration) -> list[Shape]:
    """Return the shapes of the parameters in the optimizer's operations, reversed to the order of gradients."""
    wanted = len(iteration.gradients)
    singles: dict[str, list[Shape]] = {}
    for event in trace.events:
        if any(update.begin <= event.begin <= update.end for update in iteration.updates):
            given = list(inputs_of(event))
            if event.name.startswith(("aten::_foreach", "aten::_fused")) and len(given) % wanted == 0 and given:
                return given[wanted - 1 :: -1]
            if given:
                singles.setdefault(event.name, []).append(given[0])
    return next((shapes[::-1] for shapes in singles.values() if len(shapes) == wanted), [])
