"""What the literature says about the order of methods, as data, and whether the measured rows agree."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from laconic.errors import LaconicError
from laconic.frontier.methods import last_sentence
from laconic.frontier.pairs import FEWER_BYTES, Pair, Verdict
from laconic.frontier.tables import Line, Table
from laconic.frontier.tuning import chosen_loss
from laconic.strategy import Sentence, Word

MARGIN = 0.005  # "no worse": by at most half a percent of the loss


@dataclass(frozen=True)
class Judged:
    """An ordering with its pairs: it holds where all of them do, and is refuted where one is."""

    name: str
    pairs: tuple[Pair, ...]

    @property
    def verdict(self) -> Verdict:
        verdicts = [pair.verdict for pair in self.pairs if pair.verdict != "no data"]
        if not verdicts:
            return "no data"
        if "refuted" in verdicts:
            return "refuted"
        return "holds" if set(verdicts) == {"holds"} else "undecided"


@dataclass(frozen=True)
class Ordering:
    """A claim about the order of methods: its name, and the function that finds its pairs in a task's tables."""

    name: str
    pairs: Callable[[Sequence[Table]], Iterator[Pair]]


def judge(tables: Sequence[Table]) -> tuple[Judged, ...]:
    """Return all orderings with the pairs that these tables have."""
    even = [table for table in tables if not table.skewed]
    return tuple(Judged(ordering.name, tuple(ordering.pairs(even))) for ordering in ORDERINGS)


# ------------------------------------------------------------------------------------------------ which lines


@dataclass(frozen=True, eq=False)
class Entry:
    """A line of a table, with what its sentence says."""

    table: Table
    line: Line
    sentence: Sentence

    @property
    def rule(self) -> Any:
        return self.sentence.sync.make()

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(word.name for word in self.sentence.compression)

    @property
    def period(self) -> int:
        return int(self.rule.period)

    @property
    def is_diloco(self) -> bool:
        return self.sentence.sync.name == "diloco" and self.rule.momentum > 0

    @property
    def is_averaging(self) -> bool:
        return self.sentence.sync.name == "local_sgd" or (
            self.sentence.sync.name == "diloco" and self.rule.momentum == 0 and self.rule.lr == 1
        )

    @property
    def is_dense(self) -> bool:
        return self.words == ("none",)

    @property
    def setting(self) -> tuple[Any, ...]:
        """What two lines that are compared have in common."""
        return self.table.task, self.table.rung, self.line.method.optimizer, self.line.method.workers

    @property
    def name(self) -> str:
        return self.table.name(self.line.method)


def _entries(tables: Sequence[Table]) -> Iterator[Entry]:
    for table in tables:
        for line in table.lines:
            sentence = last_sentence(line.method.strategy)
            if sentence is not None:
                yield Entry(table, line, sentence)


def _best(entries: Iterable[Entry], key: Callable[[Entry], Any]) -> dict[Any, Entry]:
    """Return one entry a key: of several settings, the one that the rows for choosing rates prefer."""
    found: dict[Any, Entry] = {}
    for entry in sorted(entries, key=lambda e: (chosen_loss(e.line.tuned), len(e.name), e.name)):
        found.setdefault(key(entry), entry)
    return found


def _pair(better: Entry, worse: Entry, margin: float = 0.0, fewer_bytes: float | None = None) -> Pair:
    losses = better.line.tuned.losses, worse.line.tuned.losses
    return Pair(better.table.title, better.name, worse.name, *losses, margin, fewer_bytes)


def _along(entries: Iterable[Entry], by: Callable[[Entry], Any], rising: bool) -> Iterator[Pair]:
    """Yield pairs of neighbours by a knob in each setting; with `rising`, the smaller value has the smaller loss."""
    groups: dict[Any, dict[Any, Entry]] = {}
    for (setting, value), entry in _best(entries, lambda e: (e.setting, by(e))).items():
        groups.setdefault(setting, {})[value] = entry
    for group in groups.values():
        for low, high in pairwise(sorted(group)):
            yield _pair(group[low], group[high]) if rising else _pair(group[high], group[low])


# ------------------------------------------------------------------------------------------------ the claims


def _grows_with_period(tables: Sequence[Table]) -> Iterator[Pair]:
    several = (e for e in _entries(tables) if e.is_diloco and e.is_dense and e.line.method.workers > 1)
    yield from _along(several, lambda e: e.period, rising=True)


def _nesterov(tables: Sequence[Table]) -> Iterator[Pair]:
    dense = [e for e in _entries(tables) if e.is_dense and e.period >= 30 and e.line.method.workers > 1]
    outer = _best((e for e in dense if e.is_diloco), lambda e: (e.setting, e.period))
    averaging = _best((e for e in dense if e.is_averaging), lambda e: (e.setting, e.period))
    yield from (_pair(outer[key], averaging[key]) for key in outer if key in averaging)


def _one_worker(tables: Sequence[Table]) -> Iterator[Pair]:
    alone = [e for e in _entries(tables) if e.is_diloco and e.is_dense and e.line.method.workers == 1]
    for entry in _best(alone, lambda e: (e.setting, e.period)).values():
        baseline = next((e for e in _entries([entry.table]) if e.line.method == entry.line.baseline), None)
        if baseline is not None:
            yield _pair(entry, baseline, MARGIN)


def _error_feedback(tables: Sequence[Table]) -> Iterator[Pair]:
    two_bits = [e for e in _entries(tables) if "two_bit" in e.words]
    without = {(e.setting, e.sentence): e for e in two_bits if "error_feedback" not in e.words}
    for entry in two_bits:
        bare = _without(entry.sentence, "error_feedback")
        if bare is not None and (entry.setting, bare) in without:
            yield _pair(entry, without[entry.setting, bare])


def _without(sentence: Sentence, name: str) -> Sentence | None:
    """Return the sentence without a word of its compression; None where that is none."""
    kept: tuple[Word, ...] = tuple(word for word in sentence.compression if word.name != name)
    try:
        return replace(sentence, compression=kept) if kept and kept != sentence.compression else None
    except LaconicError:
        return None


def _sparse(tables: Sequence[Table]) -> Iterator[Pair]:
    """Yield for each period the sparse setting with few enough bytes; where there is none, the one with the fewest."""
    entries = list(_entries(tables))
    dense = _best((e for e in entries if e.is_diloco and e.is_dense), lambda e: (e.setting, e.period))
    sparse: dict[Any, list[tuple[Entry, float]]] = {}
    for entry in entries:
        other = dense.get((entry.setting, entry.period))
        if "chunk_topk" in entry.words and other is not None:
            fewer = other.line.bytes_per_step / max(entry.line.bytes_per_step, 1e-9)
            sparse.setdefault((entry.setting, entry.period), []).append((entry, fewer))
    for key, found in sparse.items():
        few = {entry: fewer for entry, fewer in found if fewer >= FEWER_BYTES} or dict([max(found, key=lambda f: f[1])])
        entry = next(iter(_best(few, lambda _: None).values()))
        yield _pair(entry, dense[key], MARGIN, few[entry])


def _rank(tables: Sequence[Table]) -> Iterator[Pair]:
    ranks: dict[Any, list[Entry]] = {}
    for entry in _entries(tables):
        if "power_sgd" in entry.words:
            others = tuple(word for word in entry.sentence.compression if word.name != "power_sgd")
            ranks.setdefault((entry.sentence.sync, others), []).append(entry)
    for entries in ranks.values():
        yield from _along(entries, _rank_of, rising=False)


def _rank_of(entry: Entry) -> int:
    return int(next(word for word in entry.sentence.compression if word.name == "power_sgd").make().rank)


def _shrinks_with_size(tables: Sequence[Table]) -> Iterator[Pair]:
    """Yield DiLoCo's gap at 8 workers, of each period, on neighbouring rungs: a ratio of losses for each seed."""
    entries = [e for e in _entries(tables) if e.is_diloco and e.is_dense and e.line.method.workers == 8]
    best = _best(entries, lambda e: (e.table.task, e.line.method.optimizer, e.period, e.table.parameters))
    groups: dict[Any, list[Entry]] = {}
    for key in sorted(best):
        groups.setdefault(key[:-1], []).append(best[key])
    for group in groups.values():
        for small, large in pairwise(group):
            lengths = " and ".join(f"{one.table.samples_per_parameter:.2g}" for one in (small, large))
            where = f"{large.table.task}, gaps after {lengths} samples a parameter"
            yield Pair(where, _with_size(large), _with_size(small), _gaps(large), _gaps(small))


def _with_size(entry: Entry) -> str:
    return f"{entry.name} on {entry.table.parameters / 1e6:.3g} M"


def _gaps(entry: Entry) -> dict[int, float]:
    """Return a line's loss over its baseline's, by seed."""
    baseline = next((line for line in entry.table.lines if line.method == entry.line.baseline), None)
    theirs = {} if baseline is None else baseline.tuned.losses
    return {seed: loss / theirs[seed] for seed, loss in entry.line.tuned.losses.items() if seed in theirs}


ORDERINGS = (
    Ordering("DiLoCo's gap grows with the period H", _grows_with_period),
    Ordering("outer Nesterov beats averaging at H ≥ 30", _nesterov),
    Ordering("DiLoCo with one worker is no worse than DDP", _one_worker),
    Ordering("error feedback beats none at 2 bits", _error_feedback),
    Ordering("SparseLoCo is no worse than DiLoCo at equal H, with at least 50 times fewer bytes", _sparse),
    Ordering("PowerSGD improves with rank", _rank),
    Ordering("DiLoCo's gap at 8 workers shrinks with the model's size", _shrinks_with_size),
)
