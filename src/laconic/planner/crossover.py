"""From how many workers on a dense exchange is cheaper than one whose payloads are gathered from all.

A gathered payload reaches every worker as it is: each sends it N-1 times. An all-reduce sends 2(N-1)/N of the tensor,
however many workers there are. So there is a number of workers from which on the dense exchange sends fewer bytes and,
on a network, takes less time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache

import torch

from laconic.compression.optional import prices_of
from laconic.compression.two_hop import in_two_hops
from laconic.errors import StrategyError
from laconic.experiments.rivals.of_torch import DDP16
from laconic.planner.deployment import Deployment
from laconic.planner.price import Pricer
from laconic.runtime.tier_shards import sentences_shard
from laconic.strategy import Sentence, Strategy, Tiers
from laconic.values.tensor_spec import TensorSpec

TYPICAL = TensorSpec("typical", (1024, 1024), torch.float32)
"""The tensor for which a technique is described where there is no model."""
MOST = 2**20
"""The number of workers or hosts up to which is searched."""
_MOST_TIMED = 2**12


@cache
def dense_exchange() -> Sentence:
    """Return the dense exchange that gathered payloads are compared with: 16-bit gradients."""
    sentence = Strategy.parse(DDP16().sentence)
    assert isinstance(sentence, Sentence)
    return Sentence.of(sentence.compression)


def dense_sends_less_from(
    strategy: Strategy, dense: Sentence, tensors: Sequence[TensorSpec], members: int = 1
) -> int | None:
    """Return the least number of workers from which on `dense` would send fewer bytes; None where there is none.

    In tiers of hosts with so many `members`, what is sent between hosts is compared, and only whole hosts are counted.
    """
    if not gathers(strategy, tensors):
        return None
    other = _with_outermost(strategy, _outermost(strategy).but(dense.compression))

    def sends_less(groups: int) -> bool:
        gathered, reduced = (_sent_bytes(one, tensors, groups, members) for one in (strategy, other))
        return reduced < gathered

    found = _first(sends_less, MOST)
    return None if found is None else found * (members if isinstance(strategy, Tiers) else 1)


def dense_takes_less_from(strategy: Strategy, dense: Sentence, deployment: Deployment) -> int | None:
    """Return the least number of workers, on two hosts or more, from which on `dense` would take less time on the same
    network; None where there is none, or where collectives were measured for the present number alone."""
    network = deployment.network
    if network.measured is not None or not gathers(strategy, deployment.tensors):
        return None
    members = deployment.workers // deployment.units if deployment.units > 1 else 1
    other = _with_outermost(strategy, _outermost(strategy).but(dense.compression))

    def takes_less(groups: int) -> bool:
        workers = groups * members
        size = workers + network.size - deployment.workers
        pricer = Pricer(replace(deployment, workers=workers, network=replace(network, size=size)))
        return pricer.price(other).seconds < pricer.price(strategy).seconds

    found = _first(takes_less, _MOST_TIMED // members)
    return None if found is None else found * members


def gathers(strategy: Strategy, tensors: Sequence[TensorSpec]) -> bool:
    """Return whether payloads between all workers, or all hosts, are gathered as they are."""
    compressor = _outermost(strategy).compressor
    return compressor.meets == "gather" and any(map(compressor.accepts, tensors))


def two_hops_instead(strategy: Strategy) -> Strategy | None:
    """Return the strategy with its payloads in two hops, which send an all-reduce's bytes; None where the compressor
    cannot do that."""
    outermost = _outermost(strategy)
    chain = in_two_hops(outermost.compression)
    try:
        return None if chain is None else _with_outermost(strategy, outermost.but(chain))
    except StrategyError:
        return None


def crossover_note(
    strategy: Strategy, tensors: Sequence[TensorSpec], workers: int | None = None, members: int = 1
) -> str | None:
    """Return in words from how many workers on 16-bit gradients would send fewer bytes, and what to write then; None
    where nothing is gathered from all."""
    dense = dense_exchange()
    least = dense_sends_less_from(strategy, dense, tensors, members)
    if least is None:
        return None
    counted = "" if workers is None else f", and there are {workers}" if workers >= least else f" (there are {workers})"
    return (
        f"payloads are gathered from all workers: from {least} workers on `{dense}` sends fewer bytes{counted}"
        f"{_instead(strategy)}"
    )


def warnings_for(deployment: Deployment, strategies: Sequence[Strategy]) -> Iterator[str]:
    """Yield a warning for each compression whose payloads so many workers gather that a dense exchange would send fewer
    bytes, with the number from which on it would also take less time."""
    seen, dense = set(), dense_exchange()
    for strategy in strategies:
        outermost = _outermost(strategy)
        if (type(strategy), outermost.compression) in seen:
            continue
        seen.add((type(strategy), outermost.compression))
        members = deployment.workers // deployment.units if isinstance(strategy, Tiers) else 1
        least = dense_sends_less_from(strategy, dense, deployment.tensors, members)
        if least is None or deployment.workers < least:
            continue
        faster = dense_takes_less_from(strategy, dense, deployment)
        yield (
            f"`{strategy}` gathers payloads from all workers: `{dense.chain}` in their place sends fewer bytes from "
            f"{least} workers on"
            + (f" and takes less time here from {faster} on" if faster is not None else "")
            + f", and there are {deployment.workers}{_instead(strategy)}"
        )


def _instead(strategy: Strategy) -> str:
    instead = two_hops_instead(strategy)
    return "" if instead is None else f"; `{instead}` sends an all-reduce's bytes, however many they are"


def _first(holds: Callable[[int], bool], most: int) -> int | None:
    """Return the first number from 2 to `most` for which something holds that then goes on to hold; None where it never
    does."""
    low, high = 1, 2
    while not holds(high):
        low, high = high, 2 * high
        if high > most:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _sent_bytes(strategy: Strategy, tensors: Sequence[TensorSpec], groups: int, members: int) -> float:
    """Return the bytes that a worker sends among all workers or, in tiers, to other hosts."""
    sentence = _outermost(strategy)
    compressor, architecture = sentence.compressor, sentence.architecture.make()
    sent = 0.0
    for spec in tensors:
        accepted = compressor.accepts(spec)
        prices = prices_of(compressor, spec, groups) if accepted else (("reduce", spec.nbytes),)
        sent += sum(architecture.sent_bytes(nbytes, groups, meets) for meets, nbytes in prices)
    if isinstance(strategy, Tiers):
        inner, *outer = [level for level, _ in strategy.levels if isinstance(level, Sentence)]
        sent /= members if sentences_shard(inner, outer, tensors) else 1
    return sent


def _outermost(strategy: Strategy) -> Sentence:
    last = strategy.levels[-1][0] if isinstance(strategy, Tiers) else strategy
    return last if isinstance(last, Sentence) else Sentence()


def _with_outermost(strategy: Strategy, sentence: Sentence) -> Strategy:
    if not isinstance(strategy, Tiers):
        return sentence
    *inner, (_, name) = strategy.levels
    return Tiers((*inner, (sentence, name)))
