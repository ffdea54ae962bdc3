"""Which all-reduce a probed network suggests, as a text that one member writes and all read."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from laconic.collective.choose import Recipe, recipes
from laconic.collective.compose import relabel
from laconic.collective.direct_links import walk
from laconic.collective.formats.program_json import from_json, to_json
from laconic.collective.live_probe import Measured
from laconic.collective.plink import located
from laconic.collective.price import price
from laconic.collective.program import Program
from laconic.collective.synthesis.synthesised import synthesised
from laconic.errors import LaconicError
from laconic.network.graph import Graph
from laconic.network.placed import Placed

NEAR = 1.05
"""Programs whose prices are within this factor of the least are as good as it, and a ring is taken if it is one of
them: in practice exchanges in both directions of one connection take 10 to 20 % longer than a ring of the same price.
"""

PREFERRED = "ring"


@dataclass(frozen=True)
class Choice:
    """What sums vectors of one class of sizes.

    - `program`: what is carried out; None: the transport's own all-reduce.
    - `seconds_per_byte`, `startup_seconds`: the line through its prices for the smallest and the largest size of the
      class.
    """

    program: Program | None
    startup_seconds: float
    seconds_per_byte: float

    def seconds(self, nbytes: float) -> float:
        """Return its price."""
        return self.startup_seconds + self.seconds_per_byte * nbytes


@lru_cache(maxsize=16)
def network_of(measured: Measured) -> tuple[int, tuple[int, ...], Graph]:
    """Return what a probe shows: how many members are close together, an order in which they are neighbours, and the
    network. Fast members and groups come first, so that roots of trees are fast and slow members are leaves."""
    groups, graph = located(measured.probe)
    size, count = measured.size, int(groups.max()) + 1
    if graph.nodes == size:
        return 1, tuple(walk(graph)), graph
    own = [round(2 * math.log2(rate)) for rate in graph.bits_per_second[: 2 * size : 2]]  # equal but for noise
    slowest = [min(own[k] for k in range(size) if groups[k] == group) for group in range(count)]
    first = [int(np.flatnonzero(groups == group)[0]) for group in range(count)]
    order = sorted(range(size), key=lambda k: (-slowest[groups[k]], first[groups[k]], -own[k], k))
    return size // count, tuple(order), graph


@lru_cache(maxsize=16)
def _recipes(size: int, inside: int) -> list[tuple[Recipe, Program]]:
    return recipes("all_reduce", size, inside)


@lru_cache(maxsize=64)
def cheapest(measured: Measured, nbytes: float) -> str:
    """Return the all-reduce that takes the least time for vectors of up to so many bytes, by price: one of all
    generators' programs with members that are close together as neighbours, or the transport's own.

    - `measured`: what a probe has found.
    - `nbytes`: the largest of a class of sizes, the smallest being half of it.
    """
    inside, order, graph = network_of(measured)
    links, each = Placed(graph, order), measured.message_seconds
    prices = {recipe: price(program, nbytes, links, each).seconds for recipe, program in _recipes(len(order), inside)}
    own = measured.backend_seconds(nbytes)
    near = NEAR * min(own, *prices.values())
    best = min(prices, key=lambda recipe: (prices[recipe] > near, recipe.name != PREFERRED, prices[recipe]))
    if prices[best] > near:
        return json.dumps({"line": _line(own, measured.backend_seconds(nbytes / 2), nbytes)})
    program = next(program for recipe, program in _recipes(len(order), inside) if recipe == best)
    line = _line(prices[best], price(program, nbytes / 2, links, each).seconds, nbytes)
    return json.dumps({"line": line, "name": best.name, "knobs": best.knobs, "order": order})


def synthesised_for(measured: Measured, nbytes: float) -> str:
    """Return an all-reduce that is synthesised for the network that a probe shows, for vectors of up to so many bytes.

    Rates and latencies are rounded to quarters of an octave, so that links that are equal but for noise are equal.
    """
    _, _, graph = network_of(measured)
    rates, latencies = (
        np.exp2(np.round(4 * np.log2(values)) / 4)
        for values in (graph.bits_per_second, np.maximum(graph.latency_seconds, 1e-9))
    )
    rounded = Graph(graph.size, graph.ends, rates, latencies)
    try:
        program = synthesised(rounded, "all_reduce", nbytes)
    except LaconicError as error:
        raise LaconicError(
            f"no all-reduce could be synthesised for the probed network of {graph.size} members: {error}. Write "
            "collective(auto), which takes the cheapest of the known programs"
        ) from error
    whole, half = (price(program, amount, graph, measured.message_seconds).seconds for amount in (nbytes, nbytes / 2))
    return json.dumps({"line": _line(whole, half, nbytes), "program": to_json(program)})


def _line(whole: float, half: float, nbytes: float) -> tuple[float, float]:
    """Return the start and the slope of the line through the prices of so many bytes and of half of them."""
    slope = max(whole - half, 0.0) / (nbytes / 2)
    return whole - slope * nbytes, slope


@lru_cache(maxsize=64)
def read_choice(text: str, size: int) -> Choice:
    """Return the choice that a text describes, for so many members."""
    found = json.loads(text)
    program = None
    if "program" in found:
        program = from_json(found["program"])
    elif "name" in found:
        knobs = tuple((name, value) for name, value in found["knobs"])
        program = relabel(Recipe(found["name"], knobs).make(size), found["order"])
    return Choice(program, *found["line"])
