"""Advice from prices: which strategies are admitted, which is best, whether it pays, and how certain that is."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from laconic.compression.optional import memory_bytes
from laconic.experiments.rivals.text import is_rival
from laconic.planner.autotune import PAYS
from laconic.planner.candidates import candidates
from laconic.planner.certainty import error_range
from laconic.planner.crossover import warnings_for
from laconic.planner.deployment import Deployment
from laconic.planner.phases import phases_note, phases_of
from laconic.planner.preferences import Preferences
from laconic.planner.price import Pricer
from laconic.planner.priced_candidates import Baseline, Candidate, candidates_of, gain_over, tuned_ddp
from laconic.planner.risk import Training, measured_steps, measured_strategies
from laconic.planner.sharded import ShardedPricer, recommended, verdict_on
from laconic.planner.shown_candidates import each_once, shown_of
from laconic.planner.step_price import StepPrice
from laconic.planner.values import Advice, Layer, Option, PlanError, ShardedOption
from laconic.planner.verdict import verdict_of
from laconic.strategy import Phases, Sentence, Strategy


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
    training, asked_steps = deployment.training, deployment.steps
    if asked_steps is None:
        training = replace(training, steps=measured_steps(training))
        deployment = replace(deployment, steps=training.steps)
    pricer = Pricer(deployment)
    base = tuned_ddp(pricer, preferences)
    asked = (
        itertools.chain(candidates(deployment), _priceable(pricer, measured_strategies(training)))
        if consider is None
        else map(Strategy.parse, (s for s in consider if not is_rival(s)))
    )
    ranked = sorted(candidates_of(pricer, asked, preferences, progress), key=lambda candidate: candidate.amount)
    count = len(ranked)
    if not ranked:
        raise PlanError("no strategy fits: none of the strategies that were given can be priced here")
    ranks = {candidate.strategy: place for place, candidate in enumerate(ranked, 1)}
    if consider is None:
        ranked = list(each_once(ranked))
    best = next((candidate for candidate in ranked if candidate.admitted_by(preferences)), None)
    pays = best is not None and bool(gain_over(best, base, preferences)[0] >= 1)
    chosen = best if pays and best is not None else _kept(pricer, base, preferences)
    shown = [chosen, *(shown_of(ranked, base, preferences, top) if consider is None else ranked)]
    made = {
        candidate.strategy: _option(deployment, candidate, base, preferences, ranks.get(candidate.strategy))
        for candidate in shown
    }
    baseline = _option(deployment, base.candidate, base, preferences)
    sharded = ShardedPricer(pricer).rows(base.candidate.priced, gpu_bytes) if gpu_bytes is not None else ()
    verdict = verdict_of(pricer, base, best, chosen, ranked, preferences)
    line, warnings = (
        (command_for or str)(made[chosen.strategy].strategy),
        list(warnings_for(deployment, [part for one in shown for part, _ in phases_of(one.strategy, training.steps)])),
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
            *filter(None, [phases_note(made, training.steps, asked=asked_steps is not None)]),
            *_sharded_noted(deployment, sharded),
        ),
        pays,
        tuple(warnings),
        sharded,
        gpu_bytes,
        training.steps,
    )


def _kept(pricer: Pricer, base: Baseline, preferences: Preferences) -> Candidate:
    """Return what to write where nothing pays: plain `bsp`, or the baseline in our own words if that pays over it."""
    plain, own = candidates_of(pricer, [Strategy.parse("bsp"), base.own], preferences, None)
    return own if own.admitted_by(preferences) and own.amount * PAYS <= plain.amount else plain


def _priceable(pricer: Pricer, strategies: Iterable[Strategy]) -> Iterator[Strategy]:
    """Yield the strategies that have a price: maps and rules without a fixed cadence have none."""
    for strategy in strategies:
        try:
            pricer.price(strategy)
        except PlanError:
            continue
        yield strategy


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


def _memory_bytes(deployment: Deployment, strategy: Strategy) -> float:
    """Return the bytes a worker keeps: a gradient buffer, each compressor's memory and, for local rules, the parameters
    of the last synchronisation (and an outer optimizer's momentum). Of phases it is what the fullest one keeps."""
    if isinstance(strategy, Phases):
        return max(_memory_bytes(deployment, part) for part in strategy.parts_within)
    parts = [strategy] if isinstance(strategy, Sentence) else list(strategy.parts_within)
    model = float(sum(spec.nbytes for spec in deployment.tensors))
    kept = model
    for sentence in (part for part in parts if isinstance(part, Sentence)):
        kept += memory_bytes(sentence.compressor, deployment.tensors)
        kept += sentence.sync.make().copies * model
    return kept


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


def _losses_noted(training: Training, shown: Sequence[Candidate]) -> Iterator[str]:
    """Yield on what the losses of these rows were measured, or that nothing is known of them."""
    optimizer = training.optimizer or "an unknown optimizer"
    here = f"a {training.kind} model with {optimizer} and {training.workers} workers"
    measured = [candidate.risk for candidate in shown if candidate.risk is not None]
    for task, parameters in dict.fromkeys((risk.task, risk.parameters) for risk in measured):
        yield f"losses as measured on {task}, {here}, {parameters:,} parameters; 95 % intervals over seeds"
    if any(candidate.is_unknown for candidate in shown):
        which = "the other" if measured else "these"
        yield f"unknown here: nobody has measured what {which} strategies do to the loss of {here} of about this size"


def _estimates(pricer: Pricer, strategies: Sequence[Strategy]) -> Iterator[str]:
    """Yield a note for each chain among these strategies whose encoding and decoding were not timed."""
    parts = [part for strategy in strategies for part in strategy.parts_within or (strategy,)]
    for chain in dict.fromkeys(part.chain for part in parts if isinstance(part, Sentence)):
        if chain in pricer.estimated:
            yield f"{chain} was not timed: encoding and decoding count as those of {pricer.estimated[chain]}"


def _sharded_noted(deployment: Deployment, sharded: Sequence[ShardedOption]) -> Iterator[str]:
    """Yield what the memory of the sharded rows holds."""
    if sharded:
        known = "activation_bytes" in deployment.profile.machine
        yield (
            "sharded: each block of the model by itself, weights gathered one block ahead; memory with "
            + ("activations as estimated, none computed again" if known else "no activations, which are not known here")
        )
