"""Traces with known times, as several versions of the profiler write them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Layer = tuple[tuple[int, ...], int, int]  # shape, microseconds forward and backward


@dataclass
class Writing:
    """A training loop on one thread, step after step; styles are years.

    1.8: `Operator`, whole microseconds, `Input dims`. 2.1: `cpu_op`, whole microseconds. 2.4 and later: fractions of
    microseconds since a base in nanoseconds. legacy: the profiler before Kineto, without categories.
    """

    style: str = "2.4"
    shapes: bool = True
    events: list[dict[str, Any]] = field(default_factory=list)
    now: float = 1000.0

    def add(self, name: str, begin: float, duration: float, kind: str = "op", **args: Any) -> None:
        categories = {"op": "cpu_op", "note": "user_annotation", "call": "cuda_runtime", "kernel": "kernel"}
        if self.style == "1.8":
            categories = {"op": "Operator", "note": "Operator", "call": "Runtime", "kernel": "Kernel"}
            if "Input Dims" in args:
                args["Input dims"] = args.pop("Input Dims")
        gpu = kind == "kernel"
        row: dict[str, Any] = {"ph": "X", "name": name, "pid": 0 if gpu else 7, "tid": 3 if gpu else 7, "args": args}
        if self.style != "legacy":
            row["cat"] = categories[kind]
        number = float if self.style == "2.4" else int
        self.events.append({**row, "ts": number(begin), "dur": number(duration)})

    def step(
        self,
        index: int,
        layers: Sequence[Layer],
        update: int,
        note: str | None = "ProfilerStep#",
        optimizer: bool = True,
    ) -> None:
        """Forward from the first layer on, backward from the last; each layer has one parameter."""
        begin = self.now
        for number, (_, forward, _) in enumerate(layers):
            self.add("aten::linear", self.now, forward, **{"Sequence number": 100 * index + number})
            self.now += forward
        for number, (shape, _, backward) in reversed(list(enumerate(layers))):
            name = "autograd::engine::evaluate_function: AddmmBackward0"
            self.add(name, self.now, backward - 2, **{"Sequence number": 100 * index + number})
            recorded = {"Input Dims": [list(shape)], "Input type": ["float"]} if self.shapes else {}
            node = "torch::autograd::AccumulateGrad"
            self.add(f"autograd::engine::evaluate_function: {node}", self.now + backward - 2, 2)
            self.add(node, self.now + backward - 1, 1, **recorded)
            self.now += backward
        if optimizer:
            self.add("Optimizer.step#SGD.step", self.now, update, "note")
        self.now += update
        if note:
            self.add(f"{note}{index}", begin, self.now - begin, "note")

    def pairs(self) -> None:
        """Begin and end instead of complete events."""
        both = []
        for row in self.events:
            duration = row.pop("dur")
            both.append({**row, "ph": "B"})
            both.append(
                {"ph": "E", "name": row["name"], "pid": row["pid"], "tid": row["tid"], "ts": row["ts"] + duration}
            )
        starts = [r for r in both if r["ph"] == "B"]
        ends = {id(b): e for b, e in zip(both[::2], both[1::2], strict=True)}
        ordered: list[tuple[float, int, float, dict[str, Any]]] = []
        for row in starts:
            end = ends[id(row)]
            length = end["ts"] - row["ts"]
            ordered += [(row["ts"], 1, -length, row), (end["ts"], 0, length, end)]
        self.events = [row for *_, row in sorted(ordered, key=lambda each: each[:3])]

    def text(self, bare: bool = False, **more: Any) -> str:
        if bare:
            return json.dumps(self.events)
        base = (
            {"baseTimeNanoseconds": 1_700_000_000_000_000_000, "displayTimeUnit": "ms"} if self.style == "2.4" else {}
        )
        return json.dumps({"schemaVersion": 1, **base, **more, "traceEvents": self.events})
