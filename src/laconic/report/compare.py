"""`laconic.compare`: strategies of one script side by side, as a value that prints as the command's table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from laconic.errors import LaconicError
from laconic.experiments.compare import Comparison
from laconic.experiments.compare import compare as carry_out
from laconic.experiments.measure import Line
from laconic.experiments.progress import NoProgress
from laconic.experiments.settings import PROTOCOL_BLOCKS, CompareError, Settings
from laconic.launch.request import read_target
from laconic.report.progress import progress as shown_progress
from laconic.report.table import as_text, records, write
from laconic.strategy import Strategy

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, repr=False)
class CompareResult:
    """What a comparison has found. It prints as the table; the same numbers are values, with spreads and ratios."""

    comparison: Comparison

    @property
    def rows(self) -> tuple[Line, ...]:
        """One row per strategy, the baseline's first: quantities in SI units, each with its ratio to the baseline's."""
        return self.comparison.lines

    @property
    def failed(self) -> bool:
        """Whether any row failed; its `error` says why."""
        return self.comparison.failed

    @property
    def regime(self) -> float | None:
        """The exposed communication of the baseline divided by its computation, or None where that is unknown."""
        return self.comparison.regime

    @property
    def folder(self) -> Path:
        """The folder with everything that was measured, which `laconic report` turns into a page."""
        return self.comparison.folder

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return the rows as flat dicts of numbers: the columns of `table.csv`."""
        return records(self.rows)

    def to_dataframe(self) -> pandas.DataFrame:
        """Return the rows as a pandas DataFrame with the columns of `table.csv`."""
        try:
            import pandas  # a comparison needs none of it
        except ImportError:
            raise LaconicError(
                "to_dataframe() needs pandas, which is not installed: pip install pandas, or take to_dicts()"
            ) from None
        return pandas.DataFrame(self.to_dicts())

    def __repr__(self) -> str:
        return as_text(self.comparison)


def compare(
    script: str,
    *arguments: str,
    strategies: Sequence[str | Strategy],
    workers: int = 4,
    engine: str = "real",
    network: str | None = None,
    rate: str | None = None,
    delay: str | None = None,
    net: str | None = None,
    target: str | None = None,
    steps: int | None = None,
    blocks: int = PROTOCOL_BLOCKS,
    block_steps: int | None = None,
    seeds: Sequence[int] = (),
    seed_argument: str = "--seed",
    rows_at_once: int | None = None,
    threads: int = 1,
    folder: str | None = None,
    progress: bool = False,
) -> CompareResult:
    """Train a script with each strategy and measure time, communication and bytes: the same as `laconic compare`.

    - `script`, `arguments`: the training script and its own arguments.
    - `strategies`: one row each, the baseline first: strategies, or other libraries' methods such as `torch:ddp`.
    - `workers`: of each row.
    - `engine`: "real" processes, which take turns, or "virtual" workers, one row after another.
    - `network`: of virtual workers: a rate such as "100Mbit", or a .toml file.
    - `rate`, `delay`: make a network with such links for real workers (needs root).
    - `net`: or use one that `laconic net up` made.
    - `target`: "loss=0.3" adds the time and the bytes until this metric is reached.
    - `steps`: end each row after so many; without it where the script ends.
    - `blocks`, `block_steps`: timed blocks to divide the steps into, and the steps of one.
    - `seeds`: run all rows with each of them, given to the script as `seed_argument`.
    - `rows_at_once`: real rows in memory at a time.
    - `threads`: of each worker's operations.
    - `folder`: where everything is kept; default: a new one below `runs/`.
    - `progress`: whether progress is shown on standard error.

    Tuning every row by the protocol is left to the command (`laconic compare --protocol`).
    """
    settings = Settings(
        command=(script, *arguments),
        strategies=tuple(map(str, strategies)),
        workers=workers,
        rate=rate,
        delay=delay,
        net=net,
        engine=engine,
        network=network,
        target=None if target is None else read_target(target, CompareError),
        steps=steps,
        blocks=blocks,
        block_steps=block_steps,
        seeds=tuple(seeds),
        seed_argument=seed_argument,
        rows_at_once=rows_at_once,
        threads=threads,
    )
    if progress:
        with shown_progress() as watch:
            made = carry_out(settings, folder, watch)
    else:
        made = carry_out(settings, folder, NoProgress())
    write(made)
    return CompareResult(made)
