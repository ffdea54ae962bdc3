"""The output of `laconic mixing`: what a topology sends, and how fast its weights bring workers to agreement."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from laconic import registry
from laconic.errors import StrategyError
from laconic.strategy import Sentence, Strategy
from laconic.topology.base import Topology
from laconic.topology.mixing import Mixing

_HEADINGS = ("topology", "workers", "neighbours", "models sent/step", "period", "λ2", "λmin", "rho", "gap")
MOST_WORKERS = 4096  # whose weights are a matrix of so many rows and columns
_WIDTH = 112  # columns, so that the table is not cut off on a narrow terminal


def show(texts: Sequence[str], sizes: Sequence[int], matrices: bool = False) -> None:
    """Print a row for each topology and number of workers, as a table in Markdown, and the matrices if asked to."""
    for size in sizes:
        if not 1 <= size <= MOST_WORKERS:
            raise StrategyError(
                f"--workers {size} makes no sense: a graph joins at least one worker, and here at most {MOST_WORKERS}"
            )
    topologies = {text: _topology(text) for text in texts or _names()}
    laid_out = {(text, size): made.mixing(size) for text, made in topologies.items() for size in sizes}
    table = Table(*_HEADINGS, box=box.MARKDOWN)
    for (text, size), mixing in laid_out.items():
        table.add_row(text, str(size), *_facts(mixing))
    console = Console(width=max(_WIDTH, Console().width))
    console.print(table)
    for (text, size), mixing in laid_out.items() if matrices else ():
        for step, matrix in enumerate(mixing.rounds):
            console.print(f"\n{text}, {size} workers, step {step} of {mixing.period}", markup=False)
            console.print(np.array2string(matrix, precision=4, suppress_small=True, threshold=10**6), markup=False)


def _facts(mixing: Mixing) -> tuple[str, ...]:
    spectrum = (mixing.lambda_2, mixing.lambda_min, mixing.rho, mixing.gap)
    shown = (f"{round(value, 4) + 0.0:.4f}" for value in spectrum)  # + 0.0: no minus before a zero
    return str(mixing.neighbours), f"{mixing.degree:g}", str(mixing.period), *shown


def _names() -> list[str]:
    words = registry.entries("topology")
    return [e.name for e in words if isinstance(e.target, type) and issubclass(e.target, Topology)]


def _topology(text: str) -> Topology:
    strategy = Strategy.parse(text)
    if not isinstance(strategy, Sentence) or strategy.topology is None:
        raise StrategyError(f"{text} names no topology; write one of {', '.join(_names())}")
    made: Topology = strategy.topology.make()
    return made
