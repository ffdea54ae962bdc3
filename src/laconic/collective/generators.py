"""The register of generators: functions that make a `Program` for so many ranks, by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from laconic.collective.program import Program
from laconic.errors import StrategyError
from laconic.registry import load, technique


@dataclass(frozen=True)
class Generator:
    """A function that makes programs for so many ranks, all of one relation."""

    name: str
    relation: str
    make: Callable[..., Program]

    @property
    def knobs(self) -> dict[str, Any]:
        """What can be chosen beside the number of ranks, with defaults."""
        return {name: p.default for name, p in inspect.signature(self.make).parameters.items() if name != "size"}


_GENERATORS: dict[str, Generator] = {}


def generator(
    name: str, *, paper: str, relation: str = "all_reduce", row: str = ""
) -> Callable[[Callable[..., Program]], Callable[..., Program]]:
    """Register the function below it, whose first argument is the number of ranks; `inside` is how many neighbouring
    ranks share a host. Where it is a technique of the literature under another name, `row` is that."""

    def register(make: Callable[..., Program]) -> Callable[..., Program]:
        _GENERATORS[name] = Generator(name, relation, make)
        if row:
            why = f"It is a program of sends, which trains as `collective({name})`."
            technique(row, axis="architecture", paper=paper, why_no_word=why)(make)
        return make

    return register


def generators(relation: str | None = None) -> list[Generator]:
    """Return all generators, or those of one relation."""
    load()
    return [one for one in _GENERATORS.values() if relation in (None, one.relation)]


@lru_cache(maxsize=64)
def make_program(name: str, size: int, inside: int = 1) -> Program:
    """Return the program of this name for so many ranks, of which `inside` neighbours share a host.

    - `name`: a generator's name.
    - `size`: the number of ranks.
    - `inside`: how many neighbouring ranks share a host.
    """
    generators()
    if name not in _GENERATORS:
        raise StrategyError(f"there is no program {name!r}; write one of {', '.join(sorted(_GENERATORS))}")
    chosen = _GENERATORS[name]
    return chosen.make(size, inside=inside) if "inside" in chosen.knobs else chosen.make(size)
