"""Choosing the rows of a comparison and their arguments: as given, or tuned by the protocol and joined by rivals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic

from laconic.errors import LaconicError
from laconic.experiments.folder import Folder
from laconic.experiments.outcome import RunOutcome
from laconic.experiments.progress import ProgressReport
from laconic.experiments.rivals.text import check
from laconic.experiments.row import Row
from laconic.experiments.settings import CompareError, Settings, Tuning, alternatives
from laconic.experiments.tuning_protocol import RIVALS, CachedTrials, Curve, Trial, TunedChoice, least_trials, tune

RunAlone = Callable[[Row, int, str], RunOutcome]
"""A function (row, seed, label) that runs one row without the others and returns its outcome."""


@dataclass(frozen=True)
class ChosenRows:
    """The rows that a comparison reports, and the target that they are measured against."""

    rows: tuple[Row, ...]
    reference: int = 0  # the row whose final metric is the target
    metric: str | None = None  # of that target; None: the rows set no target
    falls: bool | None = None  # whether less of the metric is better; None: unknown, as nothing was tuned by it
    departures: tuple[str, ...] = ()  # where the choice is not what the protocol asks for

    @classmethod
    def untuned(cls, texts: Sequence[str]) -> ChosenRows:
        """Return the given strategies as rows, each with the script's own arguments."""
        return cls(tuple(Row(text, text) for text in texts))

    @property
    def names(self) -> list[str]:
        return [row.name for row in self.rows]

    @property
    def target(self) -> tuple[str, float | None] | None:
        return None if self.metric is None else (self.metric, None)


def choose(settings: Settings, folder: Folder, run_alone: RunAlone, progress: ProgressReport) -> ChosenRows:
    """Tune every row, rivals included, on the choosing seeds, and return the tuned rows."""
    tuning = settings.tuning
    assert tuning is not None
    texts, departures = with_rivals(settings)
    reference = next((k for k, text in enumerate(texts) if _method(text) == "torch:ddp"), 0)
    trials = _Trials(settings, tuning, folder, run_alone, progress, least_trials(texts, tuning.choosing_seeds))
    seeds, rate = tuning.choosing_seeds, tuning.learning_rate
    first = trials.run(Trial(alternatives(texts[reference])[0], rate, seeds[0]))
    if not first.points:
        raise CompareError(
            f"the first trial failed or logged no {tuning.metric!r}: see above why, report it with "
            f"laconic.log({tuning.metric}=…), or name another with --metric."
        )
    falls = first.falls(tuning.metric)
    leading = tune(texts[reference], rate, seeds, trials.run, falls)
    targets = dict(leading.finals)
    if settings.target is not None:
        targets = dict.fromkeys(seeds, settings.target[1])
    choices: list[TunedChoice] = []
    for place, text in enumerate(texts):
        choice = leading if place == reference else tune(text, rate, seeds, trials.run, falls, targets)
        choices.append(choice)
        progress.say(f"`{text}`: {choice.strategy} at learning rate {choice.learning_rate:g}")
        if choice.at_an_end:
            departures.append(f"the best learning rate of `{text}` is at the end of its grid")
    rows = tuple(
        Row(f"{c.strategy} at {c.learning_rate:g}", c.strategy, (tuning.learning_rate_argument, f"{c.learning_rate:g}"))
        for c in choices
    )
    return ChosenRows(rows, reference, tuning.metric, falls, tuple(departures))


def with_rivals(settings: Settings) -> tuple[list[str], list[str]]:
    """Return the rows asked for with the missing rivals appended, and a note for each that is absent or differs."""
    texts, missing = list(settings.strategies), []
    if settings.tuning is None or not settings.tuning.rivals:
        return texts, ["no rivals (--no-rivals)"]
    if settings.engine == "virtual":
        return texts, ["no rivals, whose code needs real processes"]
    for text in RIVALS:
        present = [own for own in settings.strategies if _method(own) == _method(text)]
        if present:
            if not any(_same(own, text) for own in present):
                missing.append(f"`{', '.join(present)}` as given, in place of `{text}`")
            continue
        try:
            check(alternatives(text)[0])
            texts.append(text)
        except LaconicError as error:
            missing.append(f"without {_method(text)}: {error}")
    return texts, missing


def _method(text: str) -> str:
    return text.partition("(")[0].strip()


def _same(text: str, other: str) -> bool:
    return "".join(text.split()).removesuffix("()") == "".join(other.split())


class _Trials:
    """Runs the trials of the tuning, caches their curves, and reports how many are left."""

    def __init__(
        self,
        settings: Settings,
        tuning: Tuning,
        folder: Folder,
        run_alone: RunAlone,
        progress: ProgressReport,
        least: int,
    ) -> None:
        self._settings, self._tuning, self._run_alone, self._progress, self._least = (
            settings, tuning, run_alone, progress, least,
        )  # fmt: skip
        self._seen: set[Trial] = set()
        self._fresh, self._spent_seconds = 0, 0.0
        self.run = CachedTrials(folder.trials, self._run_trial, self._announce)

    def _run_trial(self, trial: Trial) -> Curve:
        begin = monotonic()
        rate = (self._tuning.learning_rate_argument, f"{trial.learning_rate:g}")
        row = Row(trial.strategy, trial.strategy, rate)
        outcome = self._run_alone(row, trial.seed, f"trials/lr-{trial.learning_rate:g}-seed-{trial.seed}")
        self._fresh += 1
        self._spent_seconds += monotonic() - begin
        metric = self._tuning.metric
        if outcome.error is not None:
            return Curve(())
        return Curve(tuple((at.seconds, at.values[metric]) for at in outcome.logged if metric in at.values))

    def _announce(self, trial: Trial, known: bool) -> None:
        self._seen.add(trial)
        if known:
            return
        left = max(self._least - len(self._seen), 0)
        guess = f", about {left * self._spent_seconds / self._fresh / 60:.0f} min" if self._fresh else ""
        self._progress.say(
            f"trial {len(self._seen)} of at least {self._least} ({left} left{guess}): `{trial.strategy}`, learning "
            f"rate {trial.learning_rate:g}, seed {trial.seed}"
        )
