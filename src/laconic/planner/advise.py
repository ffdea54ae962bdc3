"""From prices to advice: what is admitted, what is best, whether it pays, and how sure that is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from laconic.experiments.rivals.text import is_rival
from laconic.planner.autotune import PAYS
from laconic.planner.candidates import MIB, candidates
from laconic.planner.certainty import spread_of
from laconic.planner.deployment import Deployment
from laconic.planner.price import Priced, Pricer
from laconic.planner.risk import guarantee_of, risk_of
from laconic.planner.values import Advice, Layer, Objective, Option, PlanError, Risk
from laconic.strategy import Sentence, Strategy, Word

CAPS = (25, 5, 1)  # MiB: DDP's `bucket_cap_mb`, of which the best counts as tuned
_SIXTEEN_BITS = ("cast_fp16", "cast_bf16")
_IDLE_POWER = 0.3  # of a busy worker's, while it waits
_BASELINE = Strategy.parse("bsp / cast_fp16 / allreduce")


@dataclass(frozen=True)
class Wishes:
    """What the asker wants: what to minimise, how much more loss is accepted, and what time and bytes cost.

    Without a budget for loss only what computes the same mathematics is admitted, and 16-bit gradients, which the
    baseline has too, unless all must be `exact`.
    """

    objective: Objective = "time"
    loss_budget: float = 0.0
    exact: bool = False
    dollars_per_hour: float | None = None  # of one worker
    dollars_per_gigabyte: float = 0.0
    watts: float | None = None  # of one busy worker

    def __post_init__(self) -> None:
        if self.objective == "cost" and self.dollars_per_hour is None:
            raise PlanError("--objective cost needs what a worker costs: add --price DOLLARS (an hour)")
        if self.objective == "energy" and self.watts is None:
            raise PlanError("--objective energy needs what a worker draws: add --watts W")
        if not self.loss_budget >= 0:
            raise PlanError(f"a loss budget is how much more loss is accepted, as 0.5%, not {self.loss_budget:g}")

    def dollars(self, deployment: Deployment, priced: Priced) -> float | None:
        """Of a step on all workers."""
        if self.dollars_per_hour is None:
            return None
        each = priced.seconds / 3600 * self.dollars_per_hour + priced.sent_bytes / 1e9 * self.dollars_per_gigabyte
        return float(deployment.workers * each)

    def joules(self, deployment: Deployment, priced: Priced) -> float | None:
        if self.watts is None:
            return None
        return float(deployment.workers * self.watts * (priced.seconds - (1 - _IDLE_POWER) * priced.exposed_seconds))

    def amount(self, deployment: Deployment, priced: Priced) -> float:
        """What is to be small."""
        if self.objective == "bytes":
            return priced.sent_bytes
        own = {"cost": self.dollars, "energy": self.joules}.get(self.objective)
        return priced.seconds if own is None else own(deployment, priced) or 0.0


@dataclass(frozen=True, eq=False)
class Row:
    """A strategy with its price; what is not needed for ranking is looked up when somebody asks."""

    strategy: Strategy
    priced: Priced
    amount: float
    workers: int

    @cached_property
    def mathematics(self) -> Strategy:
        """The same with the default schedule, which changes no number."""
        return self.strategy.but(Word("wfbp")) if isinstance(self.strategy, Sentence) else self.strategy

    @cached_property
    def promise(self) -> tuple[bool, str]:
        return guarantee_of(self.mathematics)

    @cached_property
    def risk(self) -> Risk | None:
        return None if self.promise[0] else risk_of(self.mathematics, self.workers)

    @property
    def is_sixteen_bits(self) -> bool:
        chosen = self.strategy
        plain = isinstance(chosen, Sentence) and chosen.sync.name == "bsp"
        return plain and all(word.name in _SIXTEEN_BITS for word in chosen.compression)  # type: ignore[attr-defined]

    def admitted_by(self, wishes: Wishes) -> bool:
        if self.is_sixteen_bits:
            return not wishes.exact
        if self.promise[0]:
            return True
        return wishes.loss_budget > 0 and self.risk is not None and self.risk.high - 1 <= wishes.loss_budget


def advise(
    deployment: Deployment,
    subject: str,
    network: str,
    wishes: Wishes | None = None,
    consider: Sequence[str] | None = None,
    top: int = 12,
    line: Callable[[str], str] | None = None,
    progress: Callable[[int], None] | None = None,
    notes: Sequence[str] = (),
) -> Advice:
    """Price the candidates (or those named in `consider`), rank what is admitted before the rest, and say what to do.

    `line` turns a strategy into the command to copy; `progress` is told how many were priced.
    """
    wishes = wishes or Wishes()
    pricer = Pricer(deployment)
    base = tuned_ddp(pricer, wishes)
    asked = (
        candidates(deployment) if consider is None else map(Strategy.parse, (s for s in consider if not is_rival(s)))
    )
    ranked = sorted(_rows(pricer, asked, wishes, progress), key=lambda row: row.amount)
    count = len(ranked)
    if not ranked:
        raise PlanError("no strategy fits: none of those that were asked for can be priced here")
    if consider is None:
        ranked = list(_each_once(ranked))
    best = next((row for row in ranked if row.admitted_by(wishes)), None)
    pays = best is not None and best.amount * PAYS <= base.row.amount
    chosen = best if pays and best is not None else base.row
    rows = [chosen, *_shown(ranked, wishes, top)]
    made = {id(row): _option(deployment, row, base, wishes) for row in rows}
    options = dict.fromkeys(made.values())
    baseline = _option(deployment, base.row, base, wishes)
    return Advice(
        subject,
        sum(spec.numel for spec in deployment.tensors),
        len(deployment.tensors),
        deployment.workers,
        network,
        wishes.objective,
        wishes.loss_budget,
        baseline,
        tuple(options),
        _verdict(pricer, base, made[id(chosen)] if pays else None, ranked, wishes),
        (line or str)(made[id(chosen)].strategy),
        _layers(deployment, chosen.priced),
        count,
        tuple(notes),
    )


@dataclass(frozen=True)
class Baseline:
    """Tuned DDP with 16-bit gradients: everything is held against it."""

    row: Row
    cap: int

    @property
    def text(self) -> str:
        return f"torch:ddp16(bucket_cap_mb={self.cap})"


def tuned_ddp(pricer: Pricer, wishes: Wishes) -> Baseline:
    """In the best of its usual bucket sizes."""
    tried = {cap: pricer.ddp("cast_fp16", cap * MIB) for cap in CAPS}
    cap = min(tried, key=lambda cap: tried[cap].seconds)
    deployment = pricer.deployment
    return Baseline(Row(_BASELINE, tried[cap], wishes.amount(deployment, tried[cap]), deployment.workers), cap)


def _rows(
    pricer: Pricer, asked: Iterable[Strategy], wishes: Wishes, progress: Callable[[int], None] | None
) -> list[Row]:
    found: dict[Strategy, Row] = {}
    deployment = pricer.deployment
    for strategy in asked:
        if strategy not in found:
            priced = pricer.price(strategy)
            found[strategy] = Row(strategy, priced, wishes.amount(deployment, priced), deployment.workers)
            if progress is not None:
                progress(len(found))
    return list(found.values())


def _each_once(ranked: Sequence[Row]) -> Iterator[Row]:
    """Of those that compute the same, the best schedule."""
    seen: set[Strategy] = set()
    for row in ranked:
        if row.mathematics not in seen:
            seen.add(row.mathematics)
            yield row


def _shown(ranked: Sequence[Row], wishes: Wishes, top: int) -> list[Row]:
    """The best of what is admitted, and of the rest whatever risks less than all that is better, in order."""
    admitted = [row for row in ranked if row.admitted_by(wishes)][: max(3, top // 2)]
    others = [row for row in _front(ranked) if row not in admitted][-max(0, top - len(admitted)) :]
    return sorted([*admitted, *others], key=lambda row: row.amount)


def _front(ranked: Sequence[Row]) -> Iterator[Row]:
    """Rows of known risk than which nothing is better and risks less."""
    least = float("inf")
    for row in ranked:
        if row.risk is not None and row.risk.high < least:
            least = row.risk.high
            yield row


def _option(deployment: Deployment, row: Row, base: Baseline, wishes: Wishes) -> Option:
    priced, is_base = row.priced, row is base.row
    low, high = spread_of(row.strategy, deployment)
    seconds = float(priced.seconds)
    lossless, guarantee = row.promise
    return Option(
        base.text if is_base else str(row.strategy),
        seconds,
        seconds * low,
        seconds * high,
        base.row.priced.seconds / seconds if seconds else 1.0,
        float(priced.sent_bytes),
        deployment.computing_seconds,
        float(priced.coding_seconds),
        float(priced.exposed_seconds),
        _memory_bytes(deployment, row.strategy),
        lossless,
        guarantee,
        row.risk,
        wishes.dollars(deployment, priced),
        wishes.joules(deployment, priced),
    )


def _memory_bytes(deployment: Deployment, strategy: Strategy) -> float:
    """What it keeps: one buffer of the gradients, each word's memory, and for local rules the point they left (and an
    outer optimizer's momentum)."""
    parts = [strategy] if isinstance(strategy, Sentence) else list(strategy.parts_within)
    model = float(sum(spec.nbytes for spec in deployment.tensors))
    kept = model
    for sentence in (part for part in parts if isinstance(part, Sentence)):
        kept += sentence.compressor.memory_bytes(deployment.tensors)
        kept += {"local_sgd": 1, "diloco": 2}.get(sentence.sync.name, 0) * model
    return kept


def _verdict(pricer: Pricer, base: Baseline, best: Option | None, ranked: Sequence[Row], wishes: Wishes) -> str:
    """One or two sentences."""
    deployment = pricer.deployment
    if deployment.workers == 1:
        return "One worker has nobody to talk to: the network is not your problem."
    seconds, rival = float(base.row.priced.seconds), "tuned DDP with 16-bit gradients"
    if best is not None and wishes.objective == "time":
        low, high = seconds / best.high_seconds, seconds / best.low_seconds
        return (
            f"`{best.strategy}` is predicted to be {best.speed_up:.2f} times as fast as {rival} ({low:.2f} to "
            f"{high:.2f} by the errors that were measured)."
        )
    if best is not None:
        share = wishes.amount(deployment, _priced_as(best)) / base.row.amount
        return f"`{best.strategy}` takes {share:.3g} of what {rival} takes in {wishes.objective}."
    plain = min((pricer.ddp("none", cap * MIB) for cap in CAPS), key=lambda priced: priced.seconds)
    waits = float(plain.seconds) / deployment.computing_seconds - 1 if deployment.computing_seconds else 0.0
    if waits < PAYS - 1 and wishes.objective == "time":
        return (
            "Nothing to do: the network is not your problem. Plain DDP would take "
            f"{100 * max(waits, 0.0):.1f} % longer than computing alone."
        )
    said = f"Nothing admitted here beats {rival} by {100 * (PAYS - 1):.0f} %: keep it."
    gentle = [row for row in _front(ranked) if row.amount * PAYS <= base.row.amount]
    if gentle and (risk := gentle[-1].risk) is not None:
        share = gentle[-1].amount / base.row.amount
        said += (
            f" What comes nearest: `{gentle[-1].strategy}` would take {share:.2f} of its {wishes.objective}, and was "
            f"measured to add up to {100 * max(0.0, risk.high - 1):.1f} % of loss elsewhere (--loss-budget, --verify)."
        )
    return said


def _priced_as(option: Option) -> Priced:
    return Priced(option.step_seconds, option.sent_bytes, option.coding_seconds, option.exposed_seconds)


def _layers(deployment: Deployment, priced: Priced) -> tuple[Layer, ...]:
    """When each gradient is there, leaves and arrives, where a step has such moments."""
    view, found = priced.view, priced.iterated
    if view is None or found is None:
        return ()
    ready = np.cumsum(deployment.backward[::-1])[::-1]
    leaves, arrives = np.full(len(ready), np.inf), np.zeros(len(ready))
    for k, i in zip(view.messages, view.members, strict=True):
        leaves[i], arrives[i] = min(leaves[i], found.leaves[k]), max(arrives[i], found.arrives[k])
    return tuple(
        Layer(spec.name, spec.nbytes, *map(float, (deployment.backward[i], ready[i], leaves[i], arrives[i])))
        for i, spec in enumerate(deployment.tensors)
    )
