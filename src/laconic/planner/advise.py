"""Advice from prices: which strategies are admitted, which is best, whether it pays, and how certain that is."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from laconic import registry
from laconic.compression.optional import memory_bytes
from laconic.experiments.rivals.of_torch import DDP16
from laconic.experiments.rivals.text import is_rival
from laconic.planner.autotune import PAYS
from laconic.planner.candidates import candidates
from laconic.planner.certainty import error_range, step_errors
from laconic.planner.crossover import warnings_for
from laconic.planner.deployment import Deployment
from laconic.planner.guarantee import is_sixteen_bits
from laconic.planner.price import Pricer, StepPrice
from laconic.planner.risk import Training, guarantee_of, mathematics_of, measured_strategies, risk_of, training_of
from laconic.planner.sharded import ShardedPricer, recommended, verdict_on
from laconic.planner.values import Advice, Layer, Objective, Option, PlanError, Risk, ShardedOption
from laconic.schedule.wfbp import WFBP
from laconic.strategy import Sentence, Strategy, Word

MIB = 2**20
CAPS = (25, 5, 1)  # MiB: values of DDP's `bucket_cap_mb`; tuned DDP has the best of them
_IDLE_POWER = 0.3  # the power of a waiting worker as a share of a busy one's
_MOST = 0.8  # of what the fastest setting of a technique saves
BASELINE = DDP16().sentence


@dataclass(frozen=True)
class Preferences:
    """What the user wants: the objective to minimise, how much more loss is accepted, and the price of time and bytes.

    Without a loss budget only strategies with the same mathematics as synchronous SGD are admitted, and 16-bit
    gradients, which the baseline has too, unless everything must be `exact`.
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

    def dollars(self, deployment: Deployment, priced: StepPrice) -> float | None:
        """Return the price in dollars of a step on all workers, or None if a worker's price is unknown."""
        if self.dollars_per_hour is None:
            return None
        each = priced.seconds / 3600 * self.dollars_per_hour + priced.sent_bytes / 1e9 * self.dollars_per_gigabyte
        return float(deployment.workers * each)

    def joules(self, deployment: Deployment, priced: StepPrice) -> float | None:
        """Return the energy in joules of a step on all workers, or None if a worker's power is unknown."""
        if self.watts is None:
            return None
        return float(deployment.workers * self.watts * (priced.seconds - (1 - _IDLE_POWER) * priced.exposed_seconds))

    def amount(self, deployment: Deployment, priced: StepPrice) -> float:
        """Return the quantity to minimise: a step's seconds, bytes, dollars or joules, by the objective."""
        if self.objective == "bytes":
            return priced.sent_bytes
        own = {"cost": self.dollars, "energy": self.joules}.get(self.objective)
        return priced.seconds if own is None else own(deployment, priced) or 0.0


@dataclass(frozen=True, eq=False)
class Candidate:
    """A strategy with its price; its guarantee and its risk are computed when they are first used."""

    strategy: Strategy
    priced: StepPrice
    amount: float
    training: Training

    @cached_property
    def mathematics(self) -> Strategy:
        """The strategy with the default schedule, with which it computes the same values."""
        return mathematics_of(self.strategy)

    @cached_property
    def guarantee(self) -> tuple[bool, str]:
        """Whether the strategy is exactly synchronous SGD, and what theory guarantees of it."""
        return guarantee_of(self.mathematics)

    @cached_property
    def risk(self) -> Risk | None:
        """The measured effect on the final loss, or None where it is exact or was not measured in such a training."""
        return None if self.guarantee[0] else risk_of(self.mathematics, self.training)

    @property
    def is_unknown(self) -> bool:
        """Whether nobody has measured what it does to the loss of such a training."""
        return not self.guarantee[0] and not self.is_sixteen_bits and self.risk is None

    @property
    def is_sixteen_bits(self) -> bool:
        """Whether the strategy is synchronous SGD with gradients cast to 16 bits, as the baseline."""
        chosen = self.strategy
        return isinstance(chosen, Sentence) and chosen.sync.name == "bsp" and is_sixteen_bits(chosen.compression)

    def admitted_by(self, preferences: Preferences) -> bool:
        """Return whether the strategy is exact enough for these preferences."""
        if self.is_sixteen_bits:
            return not preferences.exact
        if self.guarantee[0]:
            return True
        return preferences.loss_budget > 0 and self.risk is not None and self.risk.high - 1 <= preferences.loss_budget


def advise(
    deployment: Deployment,
    subject: str,
    network: str,
    preferences: Preferences | None = None,
    consider: Sequence[str] | None = None,
    top: int = 12,
    command_for: Callable[[str], str] | None = None,
    progress: Callable[[int], None] | None = None,
    notes: Sequence[str] = (),
    gpu_bytes: float | None = None,
) -> Advice:
    """Price all candidates (or those named in `consider`, which are all shown), and recommend an admitted one.

    What is recommended is one of laconic's own strategies: the best admitted one where it pays for certain, else what
    comes nearest to the baseline. `command_for` turns a strategy into the command to copy; `progress` is called with
    the number of strategies priced. Where the memory of a GPU that is left for the model is known, ways to shard the
    model are priced too, and one of them is recommended where data parallelism does not fit.
    """
    preferences = preferences or Preferences()
    pricer = Pricer(deployment)
    base = tuned_ddp(pricer, preferences)
    training = training_of(deployment.profile, deployment.workers)
    asked = (
        itertools.chain(candidates(deployment), _priceable(pricer, measured_strategies(training)))
        if consider is None
        else map(Strategy.parse, (s for s in consider if not is_rival(s)))
    )
    ranked = sorted(_candidates_of(pricer, asked, preferences, progress), key=lambda candidate: candidate.amount)
    count = len(ranked)
    if not ranked:
        raise PlanError("no strategy fits: none of the strategies that were given can be priced here")
    ranks = {candidate.strategy: place for place, candidate in enumerate(ranked, 1)}
    if consider is None:
        ranked = list(_each_once(ranked))
    best = next((candidate for candidate in ranked if candidate.admitted_by(preferences)), None)
    pays = best is not None and bool(_gain(best, base, preferences)[0] >= 1)
    chosen = best if pays and best is not None else _kept(pricer, base, preferences)
    shown = [chosen, *(_shown(ranked, base, preferences, top) if consider is None else ranked)]
    made = {
        candidate.strategy: _option(deployment, candidate, base, preferences, ranks.get(candidate.strategy))
        for candidate in shown
    }
    baseline = _option(deployment, base.candidate, base, preferences)
    sharded = ShardedPricer(pricer).rows(base.candidate.priced, gpu_bytes) if gpu_bytes is not None else ()
    verdict = _verdict(pricer, base, best, chosen, ranked, preferences)
    line, warnings = (
        (command_for or str)(made[chosen.strategy].strategy),
        list(warnings_for(deployment, [one.strategy for one in shown])),
    )
    if gpu_bytes is not None and not sharded[0].fits:
        verdict, pays = verdict_on(sharded, gpu_bytes), False
        way = recommended(sharded)
        line = "" if way is None else way.line
        warnings.insert(0, "no strategy of the first table fits, since each keeps the whole model on every GPU")
    return Advice(
        subject,
        sum(spec.numel for spec in deployment.tensors),
        len(deployment.tensors),
        deployment.workers,
        network,
        preferences.objective,
        preferences.loss_budget,
        baseline,
        tuple(made.values()),
        verdict,
        line,
        _layers(deployment, chosen.priced),
        count,
        (
            *notes,
            *_losses_noted(training, shown),
            *_estimates(pricer, [candidate.strategy for candidate in shown]),
            *_sharded_noted(deployment, sharded),
        ),
        pays,
        tuple(warnings),
        sharded,
        gpu_bytes,
    )


def _sharded_noted(deployment: Deployment, sharded: Sequence[ShardedOption]) -> Iterator[str]:
    """Yield what the memory of the sharded rows holds."""
    if sharded:
        known = "activation_bytes" in deployment.profile.machine
        yield (
            "sharded: each block of the model by itself, weights gathered one block ahead; memory with "
            + ("activations as estimated, none computed again" if known else "no activations, which are not known here")
        )


@dataclass(frozen=True)
class Baseline:
    """Tuned DDP with 16-bit gradients, with which every strategy is compared; `cap` is its bucket size in MiB."""

    candidate: Candidate
    cap: int

    @property
    def text(self) -> str:
        return f"{DDP16.name}(bucket_cap_mb={self.cap})"

    @property
    def own(self) -> Strategy:
        """The same in laconic's own words, with which checkpoints and the ledger work."""
        sentence = self.candidate.strategy
        assert isinstance(sentence, Sentence)
        return sentence.but(Word.of(WFBP(self.cap * MIB)))


def tuned_ddp(pricer: Pricer, preferences: Preferences) -> Baseline:
    """Return DDP with 16-bit gradients in the best of its usual bucket sizes."""
    sentence = Strategy.parse(BASELINE)
    assert isinstance(sentence, Sentence)
    tried = {cap: pricer.ddp(sentence.chain, cap * MIB) for cap in CAPS}
    cap = min(tried, key=lambda cap: tried[cap].seconds)
    deployment = pricer.deployment
    return Baseline(
        Candidate(
            sentence,
            tried[cap],
            preferences.amount(deployment, tried[cap]),
            training_of(deployment.profile, deployment.workers),
        ),
        cap,
    )


def _kept(pricer: Pricer, base: Baseline, preferences: Preferences) -> Candidate:
    """Return what to write where nothing pays: plain `bsp`, or the baseline in our own words if that pays over it."""
    plain, own = _candidates_of(pricer, [Strategy.parse("bsp"), base.own], preferences, None)
    return own if own.admitted_by(preferences) and own.amount * PAYS <= plain.amount else plain


def _gain(candidate: Candidate, base: Baseline, preferences: Preferences) -> tuple[float, float]:
    """Return the range of the candidate's gain over the baseline: of time by the errors that were measured.

    Bytes are exact. A gain that is too small to be worth a change is none.
    """
    gain = base.candidate.amount / candidate.amount if candidate.amount else float("inf")
    if gain < PAYS:
        return 0.0, gain
    low, high = (1.0, 1.0) if preferences.objective == "bytes" else step_errors(candidate.strategy)
    return gain / high, gain / low


def _candidates_of(
    pricer: Pricer, asked: Iterable[Strategy], preferences: Preferences, progress: Callable[[int], None] | None
) -> list[Candidate]:
    found: dict[Strategy, Candidate] = {}
    deployment = pricer.deployment
    training = training_of(deployment.profile, deployment.workers)
    for strategy in asked:
        if strategy not in found:
            priced = pricer.price(strategy)
            found[strategy] = Candidate(strategy, priced, preferences.amount(deployment, priced), training)
            if progress is not None:
                progress(len(found))
    return list(found.values())


def _each_once(ranked: Sequence[Candidate]) -> Iterator[Candidate]:
    """Yield, of the candidates that compute the same values, the one with the best schedule."""
    seen: set[Strategy] = set()
    for candidate in ranked:
        if candidate.mathematics not in seen:
            seen.add(candidate.mathematics)
            yield candidate


def _shown(ranked: Sequence[Candidate], base: Baseline, preferences: Preferences, top: int) -> list[Candidate]:
    """Return the best admitted candidates; of those with a measured risk, those that risk less than everything faster;
    and of those whose risk is unknown, one of each technique that would pay."""
    admitted = [candidate for candidate in ranked if candidate.admitted_by(preferences)][: max(3, top // 2)]
    others = [candidate for candidate in _front(ranked) if candidate not in admitted][-max(0, top - len(admitted)) :]
    unknown = _one_of_each([candidate for candidate in ranked if candidate.is_unknown and _pays(candidate, base)], base)
    return sorted([*admitted, *others, *unknown], key=lambda candidate: candidate.amount)


def _one_of_each(ranked: Sequence[Candidate], base: Baseline) -> Iterator[Candidate]:
    """Yield one setting of each compressor and of each rule alone, and the best one of each rule with a compressor.

    Where the loss is unknown nothing speaks for the harshest setting, which is the fastest: of those that save most of
    what that one saves, the one that sends the most is taken, and of those the gentlest.
    """
    settings: dict[tuple[str, str], list[Candidate]] = {}
    for candidate in ranked:
        if isinstance(candidate.strategy, Sentence):
            settings.setdefault(_changed(candidate.strategy), []).append(candidate)
    for found in settings.values():
        most = _MOST * (base.candidate.amount - found[0].amount)
        gentle = [candidate for candidate in found if base.candidate.amount - candidate.amount >= most]
        yield max(gentle, key=lambda candidate: (candidate.priced.sent_bytes, _gentleness(candidate.strategy)))


def _gentleness(strategy: Strategy) -> float:
    """Return how near the settings of a strategy are to synchronous SGD, by what their knobs declare; of use between
    settings of the same words."""
    found = 0.0
    for word in (strategy.sync, *strategy.compression) if isinstance(strategy, Sentence) else ():
        made = word.make()
        for knob in registry.knobs(type(made)):
            value = getattr(made, knob.name)
            if knob.bounds.gentler and isinstance(value, int | float) and value > 0:
                found += math.log(value) * (1 if knob.bounds.gentler == "more" else -1)
    return found


def _changed(sentence: Sentence) -> tuple[str, str]:
    """Return which word of a sentence differs from plain synchronous SGD: the rule and, without one, the compressor."""
    if sentence.sync == Sentence().sync:
        return "compressor", sentence.compression[0].name
    return ("rule" if sentence.compression == Sentence().compression else "rule, compressor"), sentence.sync.name


def _pays(candidate: Candidate, base: Baseline) -> bool:
    return candidate.amount * PAYS <= base.candidate.amount


def _priceable(pricer: Pricer, strategies: Iterable[Strategy]) -> Iterator[Strategy]:
    """Yield the strategies that have a price: phases, maps and rules without a fixed cadence have none."""
    for strategy in strategies:
        try:
            pricer.price(strategy)
        except PlanError:
            continue
        yield strategy


def _losses_noted(training: Training, shown: Sequence[Candidate]) -> Iterator[str]:
    """Yield on what the losses of these rows were measured, or that nothing is known of them."""
    optimizer = training.optimizer or "an unknown optimizer"
    here = f"a {training.kind} model with {optimizer} and {training.workers} workers"
    measured = [candidate.risk for candidate in shown if candidate.risk is not None]
    for task, parameters in dict.fromkeys((risk.task, risk.parameters) for risk in measured):
        yield f"losses as measured on {task}, {here}, {parameters:,} parameters; 95 % intervals over seeds"
    if any(candidate.is_unknown for candidate in shown):
        yield f"unknown here: nobody has measured what these strategies do to the loss of {here} of this size"


def _front(ranked: Sequence[Candidate]) -> Iterator[Candidate]:
    """Yield the Pareto front: candidates of known risk such that no better one risks less."""
    least = float("inf")
    for candidate in ranked:
        if candidate.risk is not None and candidate.risk.high < least:
            least = candidate.risk.high
            yield candidate


def _option(
    deployment: Deployment, candidate: Candidate, base: Baseline, preferences: Preferences, rank: int | None = None
) -> Option:
    priced, is_base = candidate.priced, candidate is base.candidate
    low, high = error_range(candidate.strategy, deployment)
    seconds = float(priced.seconds)
    lossless, guarantee = candidate.guarantee
    return Option(
        base.text if is_base else str(candidate.strategy),
        seconds,
        seconds * low,
        seconds * high,
        base.candidate.priced.seconds / seconds if seconds else 1.0,
        float(priced.sent_bytes),
        float(priced.computing_seconds),
        float(priced.coding_seconds),
        float(priced.exposed_seconds),
        _memory_bytes(deployment, candidate.strategy),
        lossless,
        guarantee,
        candidate.risk,
        preferences.dollars(deployment, priced),
        preferences.joules(deployment, priced),
        rank,
    )


def _estimates(pricer: Pricer, strategies: Sequence[Strategy]) -> Iterator[str]:
    """Yield a note for each chain among these strategies whose encoding and decoding were not timed."""
    parts = [part for strategy in strategies for part in strategy.parts_within or (strategy,)]
    for chain in dict.fromkeys(part.chain for part in parts if isinstance(part, Sentence)):
        if chain in pricer.estimated:
            yield f"{chain} was not timed: encoding and decoding count as those of {pricer.estimated[chain]}"


def _memory_bytes(deployment: Deployment, strategy: Strategy) -> float:
    """Return the bytes a worker keeps: a gradient buffer, each compressor's memory and, for local rules, the parameters
    of the last synchronisation (and an outer optimizer's momentum)."""
    parts = [strategy] if isinstance(strategy, Sentence) else list(strategy.parts_within)
    model = float(sum(spec.nbytes for spec in deployment.tensors))
    kept = model
    for sentence in (part for part in parts if isinstance(part, Sentence)):
        kept += memory_bytes(sentence.compressor, deployment.tensors)
        kept += sentence.sync.make().copies * model
    return kept


def _verdict(
    pricer: Pricer,
    base: Baseline,
    best: Candidate | None,
    chosen: Candidate,
    ranked: Sequence[Candidate],
    preferences: Preferences,
) -> str:
    """Return the verdict in one to three sentences."""
    deployment = pricer.deployment
    if deployment.workers == 1:
        return "One worker exchanges nothing: the network is not your problem."
    rival = "tuned DDP with 16-bit gradients"
    low, high = (0.0, 0.0) if best is None else _gain(best, base, preferences)
    if best is not None and low > 0:
        gain = base.candidate.amount / best.amount if best.amount else float("inf")
        claim = (
            f"`{best.strategy}` is predicted to be {gain:.2f} times as fast as {rival} ({low:.2f} to {high:.2f} by the "
            "errors that were measured)"
            if preferences.objective == "time"
            else f"`{best.strategy}` takes {1 / gain:.3g} of what {rival} takes in {preferences.objective}"
        )
        more = _beyond(ranked, base, best, preferences)
        if low >= 1:
            return f"{claim}.{more}"
        return f"Nothing pays for certain: {claim}; `laconic compare` tells. {_own_words(chosen, base)}{more}"
    plain = min((pricer.ddp("none", cap * MIB) for cap in CAPS), key=lambda priced: priced.seconds)
    waits = float(plain.seconds) / deployment.computing_seconds - 1 if deployment.computing_seconds else 0.0
    if waits < PAYS - 1 and preferences.objective == "time":
        return (
            "Nothing to do: the network is not your problem. Plain DDP would take "
            f"{100 * max(waits, 0.0):.1f} % longer than computing alone. {_own_words(chosen, base)}"
        )
    kept = f"Nothing admitted here beats {rival} by {100 * (PAYS - 1):.0f} %: keep it. {_own_words(chosen, base)}"
    return f"{kept}{_beyond(ranked, base, best, preferences)}"


def _beyond(ranked: Sequence[Candidate], base: Baseline, best: Candidate | None, preferences: Preferences) -> str:
    """Return sentences on what is better than anything admitted: what risks least of what was measured, and the best
    of what is unknown."""
    than = base.candidate.amount if best is None else min(best.amount, base.candidate.amount)
    better = [candidate for candidate in ranked if candidate.amount * PAYS <= than]
    text = ""
    measured = [candidate for candidate in _front(better) if not candidate.admitted_by(preferences)]
    if measured and (risk := measured[-1].risk) is not None:
        text += (
            f" What comes nearest: `{measured[-1].strategy}` would {_gained(measured[-1], base, preferences)}, and was "
            f"measured to end {100 * (risk.low - 1):+.1f} to {100 * (risk.high - 1):+.1f} % above `bsp` in loss "
            "(--loss-budget)."
        )
    unknown = _one_of_each([candidate for candidate in better if candidate.is_unknown], base)
    found = min(unknown, key=lambda candidate: candidate.amount, default=None)
    if found is not None:
        text += (
            f" By {preferences.objective} alone `{found.strategy}` would {_gained(found, base, preferences)}; what "
            "that does to the loss is unknown here: `laconic plan --verify 5min` with your script trains it first."
        )
    return text


def _gained(candidate: Candidate, base: Baseline, preferences: Preferences) -> str:
    gain = base.candidate.amount / candidate.amount if candidate.amount else math.inf
    return (
        f"be {gain:.3g} times as fast" if preferences.objective == "time" else f"take {1 / gain:.2g} of what it takes"
    )


def _own_words(chosen: Candidate, base: Baseline) -> str:
    """Return what to write for laconic where the baseline is to be kept, and how it compares."""
    speed = base.candidate.priced.seconds / chosen.priced.seconds if chosen.priced.seconds else 1.0
    return f"With laconic, write `{chosen.strategy}`: {speed:.2f} times its speed."


def _layers(deployment: Deployment, priced: StepPrice) -> tuple[Layer, ...]:
    """Return when each gradient is ready, is sent and arrives, where the price has these times."""
    plan_arrays, found = priced.plan_arrays, priced.iterated
    if plan_arrays is None or found is None:
        return ()
    ready = np.cumsum(deployment.backward[::-1])[::-1]
    leaves, arrives = np.full(len(ready), np.inf), np.zeros(len(ready))
    for k, i in zip(plan_arrays.messages, plan_arrays.members, strict=True):
        leaves[i], arrives[i] = min(leaves[i], found.leaves[k]), max(arrives[i], found.arrives[k])
    return tuple(
        Layer(spec.name, spec.nbytes, *map(float, (deployment.backward[i], ready[i], leaves[i], arrives[i])))
        for i, spec in enumerate(deployment.tensors)
    )
