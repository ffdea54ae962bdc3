"""Layer profiles of PipeDream: a line for each layer with its times and sizes, then a line for each edge.

A layer is `node4 -- Conv2d(64, 64, ...) -- forward_compute_time=46.2, backward_compute_time=113.3,
activation_size=1644167168.0, parameter_size=147712.0`, in milliseconds and bytes for a batch; an edge is an indented
`node4 -- node5`. Activations may be a list in brackets, one size for each output, which is summed.
"""

from __future__ import annotations

import math
import re
from heapq import heapify, heappop, heappush
from pathlib import Path

from laconic.profile.inputs.files import InputError, text_of
from laconic.values.layer_graph import Layer, LayerGraph

_WHAT = "a profile of PipeDream, a graph.txt with lines such as `node1 -- Linear(..) -- forward_compute_time=..`"
_FIELDS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")


def read(path: str | Path) -> LayerGraph:
    """Return the graph of a profile."""
    return parse(text_of(path, _WHAT), str(path))


def parse(text: str, where: str = "this text") -> LayerGraph:
    """Return the graph of a profile's text.

    Nodes named Input are left out, as PipeDream's own optimizer does: what they take is the loading of samples, which
    no stage computes. The order is the one that keeps the file's numbers ascending where edges allow it.
    """
    layers: dict[str, Layer] = {}
    inputs: set[str] = set()
    edges: list[tuple[str, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        parts = [part.strip() for part in line.split(" -- ")]
        if not line.strip():
            continue
        if len(parts) == 2:
            edges.append((parts[0], parts[1]))
        elif len(parts) == 3:
            layers[parts[0]] = _layer(parts, f"line {number} of {where}")
            if parts[1].startswith("Input"):
                inputs.add(parts[0])
        else:
            raise InputError(f"line {number} of {where} is neither a layer nor an edge: give {_WHAT}")
    if unknown := {name for edge in edges for name in edge} - layers.keys():
        raise InputError(f"{where} has edges of {min(unknown)}, which is no layer of it: is the file complete?")
    kept = layers.keys() - inputs
    if not kept:
        raise InputError(f"{where} holds no layer: give {_WHAT}")
    between = {(i, j) for i, j in edges if i in kept and j in kept}
    order = _order(kept, between, where)
    place = {name: i for i, name in enumerate(order)}
    return LayerGraph(tuple(layers[name] for name in order), frozenset((place[i], place[j]) for i, j in between))


def _layer(parts: list[str], where: str) -> Layer:
    values = []
    for field in _FIELDS:
        found = re.search(rf"\b{field}=(\[[^\]]*\]|[^,\s]+)", parts[2])
        if found is None:
            raise InputError(f"{where} has no {field}: give {_WHAT}")
        try:
            value = sum(float(part) for part in re.split(r"[;,\s]+", found[1].strip("[]")) if part)
        except ValueError:
            value = math.nan
        if not 0 <= value < math.inf:
            raise InputError(f'{where} has {field} "{found[1]}", which is no number from 0 up')
        values.append(value)
    return Layer(f"{parts[0]} {parts[1]}", values[0] / 1e3, values[1] / 1e3, values[2], values[3])


def _order(names: set[str], edges: set[tuple[str, str]], where: str) -> list[str]:
    waiting = {name: sum(j == name for _, j in edges) for name in names}
    ready = [(_number(name), name) for name, count in waiting.items() if not count]
    heapify(ready)
    order = []
    while ready:
        _, name = heappop(ready)
        order.append(name)
        for i, j in edges:
            if i == name:
                waiting[j] -= 1
                if not waiting[j]:
                    heappush(ready, (_number(j), j))
    if len(order) < len(names):
        raise InputError(f"the edges of {where} go in a circle: no order computes its layers")
    return order


def _number(name: str) -> int:
    found = re.search(r"\d+$", name)
    return int(found[0]) if found else 0
