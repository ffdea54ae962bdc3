"""The outcome of a row's run: blocks of steps with their time and bytes, and the metrics that it logged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from laconic.liveness.detection import name_ranks
from laconic.reading import Count, Finite, Natural, NotNegative
from laconic.values.metric_direction import as_good, falls_towards

Records = Sequence[Mapping[str, Any]]
"""One worker's records, as its step recorder wrote them."""

Counter = Literal["interface", "ledger"]


@dataclass(frozen=True)
class Block:
    """A block of consecutive steps of one row: the time of the slowest worker and the mean bytes over workers."""

    number: Count
    steps: Natural
    seconds: NotNegative
    sent_bytes: NotNegative | None
    received_bytes: NotNegative | None
    whole: bool  # it has as many steps as asked for; the last block may have fewer, and is not timed

    @property
    def step_seconds(self) -> float:
        return self.seconds / self.steps


@dataclass(frozen=True)
class Logged:
    """Metrics logged at one moment: after so many steps, seconds and bytes (both directions) of one worker."""

    step: Count
    seconds: NotNegative
    total_bytes: NotNegative | None
    values: Mapping[str, float]


@dataclass(frozen=True)
class RunOutcome:
    """The outcome of a row's run: its blocks, its logged metrics, who counted bytes, and why it failed if it did."""

    blocks: tuple[Block, ...] = ()
    logged: tuple[Logged, ...] = ()
    counter: Counter | None = None
    waited_seconds: Finite | None = None  # of the whole run, mean over workers, where the engine counts it
    error: str | None = None

    def timed(self) -> dict[int, Block]:
        """Return the blocks whose time counts, by number: whole blocks except the first, which is warm-up."""
        return {block.number: block for block in self.blocks if block.whole and block.number > 0}

    def final(self, metric: str) -> float | None:
        """Return the last logged value of a metric, or None if it was never logged."""
        return next((at.values[metric] for at in reversed(self.logged) if metric in at.values), None)

    def metrics(self) -> list[str]:
        """Return the names of the logged metrics, in the order of their first appearance."""
        return list(dict.fromkeys(name for at in self.logged for name in at.values))

    def reach(self, metric: str, value: float, falls: bool | None = None) -> Logged | None:
        """Return when the metric first was as good as a target, if ever; `falls`: whether less is better, if known."""
        found = [at for at in self.logged if metric in at.values]
        if falls is None:
            falls = falls_towards(metric, (at.values[metric] for at in found), value)
        return next((at for at in found if as_good(at.values[metric], value, falls)), None)


@dataclass
class RunRecords:
    """The records collected while a row runs: each worker's own, and the bytes interfaces counted in each block."""

    records: dict[int, list[Mapping[str, Any]]] = field(default_factory=dict)
    wire_bytes: list[tuple[float, float]] = field(default_factory=list)  # (sent, received), mean over workers

    def nothing_to_measure(self) -> str | None:
        """Return a sentence if nothing can be measured although every process ended well, else None."""
        still = [rank for rank, of in sorted(self.records.items()) if all("values" in r for r in of)]
        if self.records and not still:
            return None
        if not self.records:
            return "the script never called laconic.distribute(): there is nothing to compare"
        who = "the script" if len(still) == len(self.records) else name_ranks(still)
        return f"{who} took no optimizer step after laconic.distribute(): there is nothing to compare"

    def outcome(self, block_steps: int, uncounted: bool, error: str | None = None) -> RunOutcome:
        """Return the outcome of these records; `uncounted` rows communicate unseen by our ledger."""
        steps = {rank: [r for r in of if "values" not in r] for rank, of in self.records.items()}
        count = min(map(len, steps.values()), default=0)
        counter: Counter | None = "interface" if self.wire_bytes else None if uncounted else "ledger"
        blocks = tuple(
            self._block(number, [s[first : first + block_steps] for s in steps.values()], block_steps, counter)
            for number, first in enumerate(range(0, count, block_steps))
        )
        waited = [of[-1]["waited_seconds"] for of in steps.values() if of and "waited_seconds" in of[-1]]
        logged = tuple(self._logged(blocks, counter, block_steps))
        return RunOutcome(blocks, logged, counter, _mean(waited) if waited and not uncounted else None, error)

    def _block(self, number: int, parts: Sequence[Records], block_steps: int, counter: Counter | None) -> Block:
        steps = min(map(len, parts))
        ends = [part[steps - 1] for part in parts]
        begins = [self._before(rank, number * block_steps) for rank in self.records]
        sent: float | None = None
        received: float | None = None
        if counter == "interface" and number < len(self.wire_bytes):
            sent, received = self.wire_bytes[number]
        elif counter == "ledger":
            sent, received = (
                _mean(end[name] - begin.get(name, 0.0) for begin, end in zip(begins, ends, strict=True))
                for name in ("sent_bytes", "received_bytes")
            )
        seconds = max(end["seconds"] - begin.get("seconds", 0.0) for begin, end in zip(begins, ends, strict=True))
        return Block(number, steps, seconds, sent, received, steps == block_steps)

    def _before(self, rank: int, step: int) -> Mapping[str, Any]:
        """Return the record of the step before a block, or an empty one before the first."""
        return next((r for r in self.records[rank] if r["step"] == step and "values" not in r), {})

    def _logged(self, blocks: Sequence[Block], counter: Counter | None, block_steps: int) -> Iterable[Logged]:
        logging_rank = next(
            (rank for rank in sorted(self.records) if any("values" in r for r in self.records[rank])), None
        )
        for r in self.records.get(logging_rank, ()) if logging_rank is not None else ():
            if "values" not in r:
                continue
            total: float | None = None
            if counter == "ledger":
                total = r["sent_bytes"] + r["received_bytes"]
            elif counter == "interface":
                total = _bytes_until(blocks, r["step"], block_steps)
            yield Logged(r["step"], r["seconds"], total, r["values"])


def _bytes_until(blocks: Sequence[Block], step: int, block_steps: int) -> float | None:
    """Return the bytes of both directions up to a step; within a block, bytes are divided evenly over its steps."""
    total = 0.0
    for block in blocks:
        if block.sent_bytes is None or block.received_bytes is None:
            return None
        share = min(1.0, max(0.0, (step - block.number * block_steps) / block.steps))
        total += share * (block.sent_bytes + block.received_bytes)
    return total


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)
