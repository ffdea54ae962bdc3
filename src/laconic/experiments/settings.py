"""The settings of `laconic compare`, checked before any process starts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from laconic.errors import LaconicError
from laconic.experiments.period import period_of
from laconic.experiments.rivals.text import check
from laconic.launch.net.kernel import require_means
from laconic.launch.request import Request
from laconic.reading import Source

WARM_UP_BLOCKS = 1
QUICK_BLOCKS = 5
PROTOCOL_BLOCKS = 10
KNOB_VALUES = 3
CHOOSING_SEEDS = (0, 1)
REPORTING_SEEDS = (2, 3, 4, 5, 6)
_ALTERNATIVES = re.compile(r"\{([^{}:|]+(?:\|[^{}:|]+)+)\}")


class CompareError(LaconicError, ValueError):
    """A comparison that cannot be made as asked; the message says what to ask for instead."""


@dataclass(frozen=True)
class Tuning:
    """The settings that `--protocol` adds: learning rate, metric, rivals, and the seeds to choose by and to report."""

    learning_rate: float
    learning_rate_argument: str = "--lr"
    choosing_seeds: tuple[int, ...] = CHOOSING_SEEDS
    reporting_seeds: tuple[int, ...] = REPORTING_SEEDS
    metric: str = "loss"
    rivals: bool = True

    def __post_init__(self) -> None:
        if not self.learning_rate > 0:
            raise CompareError(f"--lr {self.learning_rate:g} is no learning rate: give the script's own default.")
        _check_seeds("--choosing-seeds", self.choosing_seeds)
        _check_seeds("--seeds", self.reporting_seeds)
        common = sorted(set(self.choosing_seeds) & set(self.reporting_seeds))
        if common:
            raise CompareError(f"seed {common[0]} cannot both choose and report: leave it out of one of them.")
        if not self.choosing_seeds or not self.reporting_seeds:
            raise CompareError("the protocol needs seeds to choose by and others to report.")


@dataclass(frozen=True)
class Settings:
    """The settings of a comparison: `command` is the script with its arguments, the first strategy is the baseline."""

    command: tuple[str, ...]
    strategies: tuple[str, ...]
    workers: int = 4
    rate: str | None = None  # shape a network of our own, such as 100Mbit
    delay: str | None = None  # of that network, one way
    net: str | None = None  # or use one that `laconic net up` made
    engine: str = "real"
    network: str | None = None  # of virtual workers
    target: tuple[str, float] | None = None
    steps: int | None = None  # of each row; None: as many as the script does
    blocks: int = PROTOCOL_BLOCKS
    block_steps: int | None = None
    seeds: tuple[int, ...] = ()
    seed_argument: str = "--seed"
    rows_at_once: int | None = None
    threads: int = 1
    quick: bool = False
    tuning: Tuning | None = None

    def __post_init__(self) -> None:
        targets = {} if self.target is None else dict([self.target])
        Request(
            self.command,
            workers=self.workers,
            threads=self.threads,
            engine=self.engine,
            network=self.network,
            targets=targets,
        )
        if not self.strategies:
            raise CompareError("nothing to compare: give --strategy once for every row, the baseline first.")
        for name, value, least in (
            ("--steps", self.steps, 2),
            ("--blocks", self.blocks, 1),
            ("--block-steps", self.block_steps, 1),
            ("--rows-at-once", self.rows_at_once, 2),
        ):
            if value is not None and value < least:
                raise CompareError(f"{name} {value} makes no sense: give at least {least}.")
        self._check_network()
        self._check_mode()
        for text in self.strategies:
            for variant in alternatives(text):
                check(variant, virtual=self.engine == "virtual")

    def _check_network(self) -> None:
        if self.engine == "virtual" and (self.rate or self.delay or self.net):
            raise CompareError("virtual workers communicate over --network: leave out --rate, --delay and --net.")
        if self.net is not None and (self.rate or self.delay):
            raise CompareError(f"the network {self.net} has its own rate and delay: leave out --rate and --delay.")
        if self.delay is not None and self.rate is None:
            raise CompareError("--delay belongs to a shaped network: add --rate, such as --rate 1Gbit.")
        if self.rate is not None or self.net is not None:
            require_means()
        if self.engine == "virtual":
            from laconic.virtual.setup import VirtualSetup

            VirtualSetup.read(self.network, self.workers)  # refuses with a sentence of its own

    def _check_mode(self) -> None:
        _check_seeds("--seeds", self.seeds)
        if self.tuning is not None:
            if self.quick:
                raise CompareError("--quick leaves out what --protocol asks for: give one of them.")
            if self.seeds:
                raise CompareError("--protocol has seeds of its own: leave out --seeds.")
            if self.target is not None and self.target[0] != self.tuning.metric:
                raise CompareError(
                    f"--protocol tunes by {self.tuning.metric}, but --target is of {self.target[0]}: name the same "
                    "with --metric."
                )
            if self.blocks < PROTOCOL_BLOCKS:
                raise CompareError(f"--protocol times at least {PROTOCOL_BLOCKS} blocks, not {self.blocks}.")

    def steps_per_block(self, strategy: str) -> int:
        """Return the steps per block of a row: as given, else so many that blocks and warm-up fill all steps, else ten;
        rounded up to whole periods, since a step that does not exchange says nothing of one that does."""
        fitting = 10 if self.steps is None else max(1, self.steps // (self.blocks + WARM_UP_BLOCKS))
        period = period_of(strategy)
        return -(-(self.block_steps or fitting) // period) * period

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Any, where: str | Path) -> Settings:
        """Return the settings from the fields that `to_json` gave; errors call their source `where`."""
        return Source(where, "comparison's settings", "compare again", CompareError).value(fields, cls)


def _check_seeds(option: str, seeds: Sequence[int]) -> None:
    twice = [seed for place, seed in enumerate(seeds) if seed in seeds[:place]]
    if twice:
        raise CompareError(f"{option} names seed {twice[0]} twice, which adds no information: give each once.")


def alternatives(text: str) -> list[str]:
    """Return one strategy for each value of the knob in braces: `local(period={4|8|16})` gives three."""
    found = _ALTERNATIVES.findall(text)
    if len(found) > 1:
        raise CompareError(f"`{text}` leaves {len(found)} knobs open: the main one may have alternatives in braces.")
    values = [part.strip() for part in found[0].split("|")] if found else [""]
    if len(values) > KNOB_VALUES:
        raise CompareError(f"`{text}` has {len(values)} alternatives: at most {KNOB_VALUES} values of a knob are fair.")
    return [_ALTERNATIVES.sub(lambda _, value=value: value, text) for value in values]  # type: ignore[misc]


def groups(count: int, at_once: int | None) -> list[list[int]]:
    """Return the groups of rows that run side by side, of at most `at_once` rows, each with the baseline (row 0)."""
    others = list(range(1, count))
    if at_once is None or at_once >= count:
        return [[0, *others]]
    return [[0, *others[k : k + at_once - 1]] for k in range(0, len(others), at_once - 1)]
