"""The evaluation of a profiling run: from the marks of its steps to a model's times.

A mark is (pass, part, tensor) and the seconds since the step began on all workers together. A gradient can be reduced
when the last worker has it, so a mark's time is the latest among the workers of its step.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from laconic.errors import LaconicError
from laconic.values.profile import ModelTimes, Seconds, TensorTime
from laconic.values.tensor_spec import TensorSpec

Mark = tuple[int, str, str | None]
Step = dict[Mark, float]


def latest(steps: Sequence[Sequence[Step]]) -> list[Step]:
    """Merge the marks of [worker][step]: for each step, the times at which the last worker reached them."""
    merged: list[Step] = []
    for same in zip(*steps, strict=True):
        marks = {mark: None for worker in same for mark in worker}
        merged.append({mark: max(worker[mark] for worker in same if mark in worker) for mark in marks})
    return merged


def evenness(steps: Sequence[Sequence[Step]]) -> float:
    """Return the mean worker's time divided by the slowest one's, summed over the steps of [worker][step]."""
    ends = [[max(step.values(), default=0.0) for step in same] for same in zip(*steps, strict=True)]
    slowest = sum(map(max, ends))
    return sum(map(statistics.fmean, ends)) / slowest if slowest else 1.0


def model_times(steps: Sequence[Step], specs: Sequence[TensorSpec]) -> ModelTimes:
    """Return a model's times as medians over steps and passes; each tensor's share of backward is a mean, since time
    slices are coarse."""
    parts: dict[str, list[float]] = {"forward": [], "backward": [], "step": []}
    shares: dict[str, list[float]] = {}
    for step in steps:
        passes: dict[int, dict[str, float]] = {}
        before = 0.0
        for (number, part, name), seconds in sorted(step.items(), key=lambda item: item[1]):
            took, before = seconds - before, seconds
            if part == "backward" and name is not None:
                passes.setdefault(number, {})[name] = took
            else:
                parts[part].append(took)
        for gaps in passes.values():
            whole = sum(gaps.values())
            parts["backward"].append(whole)
            for name, took in gaps.items():
                shares.setdefault(name, []).append(took / whole if whole else 0.0)
    if not all(parts.values()):
        raise LaconicError("no whole step was seen: the script must run forward, backward and step() in this order")
    backward = Seconds.of(parts["backward"])
    mean = {name: statistics.fmean(found) for name, found in shares.items()}
    whole = sum(mean.values()) or 1.0
    known = {spec.name: spec for spec in specs}
    tensors = tuple(
        TensorTime(name, spec.shape, str(spec.dtype).removeprefix("torch."), share / whole * backward.median)
        for name, share in _in_order(steps, mean)
        if (spec := known.get(name)) is not None
    )
    return ModelTimes(tensors, Seconds.of(parts["forward"]), backward, Seconds.of(parts["step"]))


def _in_order(steps: Sequence[Step], shares: dict[str, float]) -> list[tuple[str, float]]:
    """Sort the tensors by the time at which their gradients were ready, as the last step had it."""
    arrived: dict[str, float] = {}
    for step in steps:
        arrived |= {name: seconds for (_, part, name), seconds in step.items() if part == "backward" and name}
    return sorted(shares.items(), key=lambda item: arrived[item[0]])
