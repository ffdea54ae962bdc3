"""Trainings that were measured: one row a run, with its loss, its bytes and how it was made.

The rows are lines of JSON in `measured/runs/<task>-<rung>.jsonl`, which the commands of `bench/` append as runs end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal

from laconic.errors import LaconicError
from laconic.reading import Count, Finite, Natural, NotNegative, Positive, Source
from laconic.strategy import Strategy
from laconic.values.model_kind import Kind

FOLDER = Path(__file__).parent / "measured" / "runs"

MOST_PASSES = 2
"""Over a text, in a training that counts: what is learned by heart says little of what a method does to learning."""

Purpose = Literal["rate", "report", "fewer", "short"]


@dataclass(frozen=True)
class Run:
    """One training: what was trained, by which strategy, to which loss, with how many bytes.

    Its `purpose` says what it may be used for: `rate` rows choose a learning rate (on a seed and a short schedule of
    their own), `report` rows are what tables show, `fewer` rows are `bsp` on fewer samples with a schedule of their
    own, and `short` rows are short trainings of several strategies, to see whether they predict the long ones.
    """

    task: str
    rung: str
    kind: Kind  # of model
    parameters: Natural
    tensors: Natural
    workers: Natural
    optimizer: str
    samples_per_step: Natural  # tokens or images of all workers together
    sentence: str
    lr: Positive
    seed: Count
    steps: Natural
    full_steps: Natural  # of the reported runs of the same rung
    purpose: Purpose
    loss: Positive | None = None  # of what would be shipped, on validation data; None: it diverged
    diverged: bool = False
    skewed: bool = False  # whether workers' shards differ in kind
    data: str = ""  # a hash of what was trained on, where that differs from machine to machine
    epochs: NotNegative | None = None  # passes over the training data; None: nobody knows, or all samples are fresh
    noise_scale: Positive | None = None  # of a baseline's gradients, in samples; None: not measured, or infinite
    metrics: dict[str, Finite | None] = field(default_factory=dict)
    curve: tuple[tuple[Count, Finite | None], ...] = ()  # step and validation loss on the way
    curve_of: Literal["rank 0", "shipped"] = "rank 0"  # whose model the points on the way are of; the last is shipped
    bytes: NotNegative = 0.0  # that one worker sent in the whole run, in the mean over workers
    seconds: NotNegative = 0.0
    packed: Natural = 1  # runs side by side on the device
    device: str = ""
    torch: str = ""
    commit: str = ""
    command: str = ""

    @property
    def is_plain(self) -> bool:
        """Whether it is synchronous training with dense 32-bit gradients, with which all others are compared."""
        return parsed(self.sentence) == parsed("bsp")

    @property
    def bytes_per_step(self) -> float:
        return self.bytes / self.steps

    @property
    def share(self) -> float:
        """The share of the samples of a reported run."""
        return self.steps / self.full_steps

    @property
    def final(self) -> float:
        """The loss at the end; infinite where the training diverged."""
        return float("inf") if self.loss is None or self.diverged else self.loss

    @property
    def key(self) -> tuple[Any, ...]:
        """What makes a run another run: of two rows with the same key, the later one is a repetition."""
        return (
            *(self.task, self.rung, self.workers, self.optimizer, self.samples_per_step, self.parameters),
            *(self.sentence, self.lr, self.seed, self.steps, self.purpose, self.skewed),
        )


@cache
def parsed(sentence: str) -> Strategy | None:
    """Return the strategy of a text, or None where this version of the library knows no such words."""
    try:
        return Strategy.parse(sentence)
    except LaconicError:
        return None


def read(folder: Path = FOLDER) -> tuple[Run, ...]:
    """Return the runs of all files in a folder, the last of those that were repeated; none where there is no folder."""
    return _read(tuple((path, path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(folder.glob("*.jsonl"))))


@lru_cache(maxsize=4)
def _read(files: tuple[tuple[Path, int, int], ...]) -> tuple[Run, ...]:
    found = {run.key: run for path, _, _ in files for run in _of_file(path)}
    return tuple(found.values())


def _of_file(path: Path) -> Iterator[Run]:
    """Yield the runs of a file; fields that a run does not have are notes of the command that wrote them."""
    known = {one.name for one in fields(Run)}
    what, instead = "measured run", "remove that line, and run the command that makes it again"
    for number, line in enumerate(Source(path, "table of runs", instead).text().splitlines(), 1):
        if line.strip():
            source = Source(f"{path}, line {number}", what, instead)
            tree = source.json(line)
            named = {name: value for name, value in tree.items() if name in known} if isinstance(tree, dict) else tree
            yield source.value(named, Run)
