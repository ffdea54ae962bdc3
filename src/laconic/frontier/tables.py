"""The tables of measured trainings: for each task and rung, each method's gap to tuned DDP, in loss and in tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from statistics import fmean

from laconic.errors import LaconicError
from laconic.experiments.statistics import Spread, bootstrap_ratio
from laconic.experiments.student import student_gap
from laconic.frontier.equivalence import Equivalence, equivalence
from laconic.frontier.methods import Method, last_sentence
from laconic.frontier.tuning import Tuned, tuned
from laconic.planner.runs import FOLDER, Run, parsed

SIXTEEN_BITS = "bsp / cast_bf16"  # whose bytes are those of DDP: the denominator of all others
APPROXIMATED = {"dion": "muon"}  # methods that are optimizers too, and the one that each computes from fewer bytes


class FrontierError(LaconicError, ValueError):
    """A question that the measured rows cannot answer."""


@dataclass(frozen=True)
class Line:
    """A method on one rung: its gap to tuned DDP with the same optimizer, paired by seed, and its bytes.

    Intervals are 95 % bootstrap intervals over seeds, NaN where there is one seed; `gap_by_t` has the wider one of
    Student's t, on which orderings and the map rest.
    """

    tuned: Tuned
    baseline: Method | None
    loss: float  # mean over seeds; infinite where a run diverged
    gap: Spread | None  # loss over the baseline's, less 1; None: it diverged, or there is no baseline
    gap_by_t: Spread | None
    tokens: Spread | None  # DDP-equivalent share of the tokens, by the curve of the baseline or else of the main one
    tokens_measured: bool  # whether the middle of `tokens` lies between the lengths at which DDP was run
    bytes_per_step: float
    bytes_over_ddp: float | None  # by sample, over those of DDP with 16-bit gradients
    metrics: Mapping[str, Spread] = field(default_factory=dict)

    @property
    def method(self) -> Method:
        return self.tuned.method

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(self.tuned.losses)


@dataclass(frozen=True)
class Table:
    """All methods of one task and rung that were trained on equal (or on skewed) shards."""

    task: str
    rung: str
    skewed: bool
    kind: str
    parameters: int
    workers: int
    optimizer: str  # of the main baseline
    lines: tuple[Line, ...]
    equivalence: Equivalence | None  # of the main baseline
    runs: tuple[Run, ...]
    left_out: tuple[str, ...] = ()  # methods without a reported row at a chosen rate, and why

    @property
    def title(self) -> str:
        return f"{self.task}, {self.rung}{', skewed shards' if self.skewed else ''}"

    @property
    def main(self) -> Line | None:
        """The line of tuned DDP under the table's optimizer."""
        own = [line for line in self.lines if line.method.is_plain and line.method.optimizer == self.optimizer]
        return max(own, key=lambda line: line.method.workers, default=None)

    @property
    def samples_per_parameter(self) -> float:
        """How long a whole run is for the size of the model."""
        return max(run.full_steps * run.samples_per_step for run in self.runs) / self.parameters

    def line(self, method: Method) -> Line | None:
        return next((line for line in self.lines if line.method == method), None)

    def name(self, method: Method) -> str:
        """Return the method's name, with what differs from the table's main baseline."""
        return method.described(self.optimizer, self.workers)


def tables(runs: Sequence[Run], task: str | None = None, where: Path = FOLDER) -> tuple[Table, ...]:
    """Return the tables of all runs, or of one task's, the smallest model first; refused where there are none.

    An error says `where` the runs were read.
    """
    if not runs:
        raise FrontierError(
            f"there are no measured trainings in {where}: install a version that ships them, or name their folder "
            "with --runs"
        )
    tasks = list(dict.fromkeys(run.task for run in runs))
    if task is not None and task not in tasks:
        raise FrontierError(f"no training of the task {task!r} was measured: write one of {', '.join(tasks)}")
    groups: dict[tuple[str, str, bool], list[Run]] = {}
    for run in runs:
        if task in (None, run.task):
            groups.setdefault((run.task, run.rung, run.skewed), []).append(run)
    made = [_table(group) for group in groups.values()]
    return tuple(sorted(made, key=lambda t: (tasks.index(t.task), t.skewed, t.parameters, t.rung)))


def _table(runs: Sequence[Run]) -> Table:
    _refuse_mixed_data(runs)
    by_method: dict[Method, list[Run]] = {}
    for run in runs:
        by_method.setdefault(Method.of(run), []).append(run)
    found = {method: tuned(method, own) for method, own in by_method.items()}
    known = {method: one for method, one in found.items() if one is not None}
    optimizer = _main_optimizer(known or by_method)
    workers = Counter(run.workers for run in runs).most_common(1)[0][0]
    curves = {
        method: equivalence((run for run in by_method[method] if run.purpose == "fewer"), one.reported, one.lr)
        for method, one in known.items()
        if method.is_plain
    }
    main = next((m for m in _plain(known, workers) if m.optimizer == optimizer), None)
    reference = _bytes_per_sample(known, main)
    lines = [_line(one, _baseline(one, known, main), main, known, curves, reference) for one in known.values()]
    first = (known[main].reported if main is not None else runs)[0]
    return Table(
        *(first.task, first.rung, first.skewed, first.kind, first.parameters, workers, optimizer),
        tuple(sorted(lines, key=lambda line: (line.method != main, line.loss))),
        curves.get(main) if main is not None else None,
        tuple(runs),
        tuple(_left_out(found, by_method)),
    )


def _refuse_mixed_data(runs: Sequence[Run]) -> None:
    """Raise an error where runs that are paired by their seed were trained on different data."""
    by_seed: dict[int, set[str]] = {}
    for run in runs:
        if run.purpose != "rate":
            by_seed.setdefault(run.seed, set()).add(run.data)
    for seed, data in by_seed.items():
        if len(data) > 1:
            raise FrontierError(
                f"runs of {runs[0].task}, {runs[0].rung}, seed {seed}, were trained on different data "
                f"({', '.join(sorted(one or 'unknown' for one in data))}), so that their losses do not compare: keep "
                "those of one"
            )


def _line(
    one: Tuned,
    baseline: Method | None,
    main: Method | None,
    known: Mapping[Method, Tuned],
    curves: Mapping[Method, Equivalence | None],
    reference: float | None,
) -> Line:
    ratio = None if baseline is None else bootstrap_ratio(one.losses, known[baseline].losses)
    curve = next((curve for m in (baseline, main) if m is not None and (curve := curves.get(m))), None)
    tokens = None if ratio is None or curve is None else curve.spread(ratio)
    per_sample = fmean(run.bytes / (run.steps * run.samples_per_step) for run in one.reported)
    names = dict.fromkeys(name for run in one.reported for name in run.metrics)
    return Line(
        one,
        baseline,
        fmean(one.losses.values()),
        None if ratio is None else Spread(ratio.middle - 1, ratio.low - 1, ratio.high - 1),
        None if baseline is None else student_gap(one.losses, known[baseline].losses),
        tokens,
        ratio is not None and curve is not None and curve.within(ratio.middle),
        fmean(run.bytes_per_step for run in one.reported),
        None if not reference else per_sample / reference,
        {name: spread for name in names if (spread := _metric(one.reported, name)) is not None},
    )


def _metric(runs: Sequence[Run], name: str) -> Spread | None:
    values = {run.seed: value for run in runs if (value := run.metrics.get(name)) is not None}
    return bootstrap_ratio(values, dict.fromkeys(values, 1.0))


def _main_optimizer(methods: Mapping[Method, object]) -> str:
    """Return the optimizer under which most methods were run, of those under which DDP was."""
    plain = {method.optimizer for method in methods if method.is_plain}
    counts = Counter(method.optimizer for method in methods if not plain or method.optimizer in plain)
    return counts.most_common(1)[0][0]


def _plain(known: Mapping[Method, Tuned], workers: int) -> list[Method]:
    """Return DDP under all its optimizers, first that on so many workers."""
    return sorted((m for m in known if m.is_plain), key=lambda m: (m.workers != workers, -m.workers))


def _baseline(one: Tuned, known: Mapping[Method, Tuned], main: Method | None) -> Method | None:
    """Return DDP under the method's own optimizer, on as many workers if it was run there; else the main baseline.

    The number of workers does not change what DDP computes, as long as they share the same samples.
    """
    sentence = last_sentence(one.method.strategy)
    words = () if sentence is None else [word.name for word in sentence.compression]
    optimizer = next((APPROXIMATED[word] for word in words if word in APPROXIMATED), one.method.optimizer)
    own = [m for m in _plain(known, one.method.workers) if m.optimizer == optimizer]
    samples = one.reported[0].samples_per_step
    return next((m for m in own if known[m].reported[0].samples_per_step == samples), own[0] if own else main)


def _bytes_per_sample(known: Mapping[Method, Tuned], main: Method | None) -> float | None:
    """Return the bytes of DDP with 16-bit gradients for a sample; half of those with 32 bits where it was not run."""
    if main is None:
        return None
    sixteen = [m for m in known if m.strategy == parsed(SIXTEEN_BITS) and m.workers == main.workers]
    runs = known[sixteen[0] if sixteen else main].reported
    found = fmean(run.bytes / (run.steps * run.samples_per_step) for run in runs)
    return found if sixteen else found / 2


def _left_out(found: Mapping[Method, Tuned | None], by_method: Mapping[Method, Sequence[Run]]) -> Iterator[str]:
    for method, one in found.items():
        rates = sorted({run.lr for run in by_method[method] if run.purpose == "report"})
        if one is None and len(rates) > 1:
            tried = any(run.purpose == "rate" for run in by_method[method])
            why = "none of which was best of those tried" if tried else "of which no row chooses one"
            yield f"{method.name}: reported at the rates {', '.join(f'{lr:g}' for lr in rates)}, {why}"


def within(line: Line, gap: float) -> bool:
    """Return whether a method ends within this gap of its baseline."""
    return line.gap is not None and isfinite(line.gap.middle) and line.gap.middle <= gap
