"""The price of a strategy: the time and bytes of a step, for thousands of strategies a second.

Strategies share their parts: a compressor's payloads on a model, a schedule's plan and a network's times are computed
once. What remains for each strategy is one iteration in closed form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from laconic.architecture.base import Architecture
from laconic.cost.closed_form import Traffic, iterate
from laconic.cost.collectives import CollectiveCosts, TransferTimes, Vector
from laconic.cost.plan_arrays import PlanArrays
from laconic.network.network_tree import Network
from laconic.planner.codec_times import nearest_timed
from laconic.planner.compression_costs import CompressionCosts, compression_costs
from laconic.planner.deployment import Deployment
from laconic.planner.phases import phases_of, steps_within
from laconic.planner.step_price import StepPrice, and_every, behind_steps, difference, mean, spread
from laconic.planner.values import PlanError
from laconic.runtime.tier_shards import sentences_shard
from laconic.runtime.tiers import schedule_of
from laconic.schedule.wfbp import WFBP
from laconic.strategy import Sentence, Strategy, Tiers, Word
from laconic.values.cadence import Cadence
from laconic.values.price import Price
from laconic.values.profile import CodecTimes
from laconic.values.timing import Timing

_NO_CODING = CodecTimes("", 0.0, 0.0, 0.0, 0.0)


class Pricer:
    """Prices strategies for one deployment, and caches what they share."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.collective_costs = CollectiveCosts(deployment.network, deployment.workers)
        self._compression_costs: dict[tuple[Any, ...], CompressionCosts] = {}
        self._plan_arrays: dict[Any, PlanArrays] = {}
        self._plan_arrays_here: dict[Any, PlanArrays] = {}  # of schedules that measure the network
        self._timings: dict[Any, Timing] = {}
        self.estimated: dict[str, str] = {}  # chains that were not timed, and those whose times they were given

    def price(self, strategy: str | Strategy, steps: int | None = None) -> StepPrice:
        """Return the price of a sentence, of two tiers over the network's levels, or of phases of these: the mean over
        the run.

        - `steps`: of the run; default: those of the deployment.
        """
        steps = self.deployment.steps if steps is None else steps
        phases = phases_of(Strategy.parse(strategy), steps)
        return mean([(self._phase(phase, steps_within(share, steps)), share) for phase, share in phases])

    def _phase(self, chosen: Strategy, steps: int | None) -> StepPrice:
        if isinstance(chosen, Sentence):
            return self._sentence(chosen, steps)
        if isinstance(chosen, Tiers) and len(chosen.levels) == 2 and self.deployment.units > 1:
            return self._tiers(chosen)
        raise _not_in_closed_form(chosen)

    def ddp(self, chain: str, cap_bytes: int) -> StepPrice:
        """Return the price of PyTorch's DistributedDataParallel, whose hooks cast whole buckets instead of tensors."""
        cast = Strategy.parse(chain)
        assert isinstance(cast, Sentence)
        sentence = Sentence.of(cast.compression, Word.of(WFBP(cap_bytes, min(cap_bytes, 2**20))))
        key = (sentence.compression, "whole buckets")
        if key not in self._compression_costs:
            self._compression_costs[key] = self._priced_chain(sentence, self.deployment.workers, per_tensor=False)
        return self._every_step(sentence, sentence.architecture.make(), self._compression_costs[key])

    def on(self, network: Network) -> Pricer:
        """Return the pricer of the same workers on another network; both share what depends on the model alone."""
        other = Pricer(replace(self.deployment, network=network))
        other._compression_costs, other._plan_arrays = self._compression_costs, self._plan_arrays
        other.estimated = self.estimated
        return other

    # ------------------------------------------------------------------------------------------ shapes

    def _sentence(self, sentence: Sentence, steps: int | None) -> StepPrice:
        """Return the price of a sentence in the mean over a phase of so many steps, in which a rule may change when,
        and how exactly, it exchanges."""
        stretches = sentence.sync.make().stretches(steps)
        if not stretches:
            raise _not_in_closed_form(sentence)
        return mean([(self._stretch(_exact(sentence) if s.exact else sentence, s.cadence), s.share) for s in stretches])

    def _stretch(self, sentence: Sentence, cadence: Cadence) -> StepPrice:
        deployment, architecture = self.deployment, sentence.architecture.make()
        if cadence.is_asynchronous and not architecture.servers:
            raise _not_in_closed_form(sentence)
        if cadence.is_asynchronous:
            return self._asynchronous(sentence, architecture, cadence)
        if not cadence.overlaps:
            alone = self._exchange_alone(sentence, architecture, self.collective_costs, cadence)
            return spread(deployment, alone, cadence.period)
        once = self._every_step(sentence, architecture)
        return once if cadence.period == 1 else spread(deployment, once, cadence.period)

    def _every_step(
        self, sentence: Sentence, architecture: Architecture, costs: CompressionCosts | None = None
    ) -> StepPrice:
        deployment, plan_arrays = self.deployment, self._plan_arrays_of(sentence)
        costs = costs or self._of_chain(sentence, deployment.workers)
        traffic = self._traffic(costs, plan_arrays, architecture, self.collective_costs, self._ready(plan_arrays))
        return self._iterated(traffic, plan_arrays, self._sent(costs, architecture, deployment.workers))

    def _asynchronous(self, sentence: Sentence, architecture: Architecture, cadence: Cadence) -> StepPrice:
        """Return the mean time in which all workers contribute one gradient each.

        Every worker computes, pushes and pulls at its own pace until the servers' links are saturated; a bound on
        staleness slows all workers down to the slowest.
        """
        deployment, size = self.deployment, self.deployment.workers
        costs = self._of_chain(sentence, size)
        nbytes = float(costs.dense_bytes.sum() + sum(v.sum() for of in costs.rounds for v in of.values()))
        latency, rate = deployment.path
        coding = sum(float(part.sum()) for part in costs.coding(self._plan_arrays_of(sentence))) / cadence.period
        exchanging = 2 * (latency + rate * nbytes) / cadence.period
        own = [
            deployment.profile.model.seconds * deployment.slowness[k % len(deployment.slowness)] for k in range(size)
        ]
        own = [max(own)] * size if cadence.pace == "bounded" else own
        free = size / sum(1 / (seconds + coding + exchanging) for seconds in own)
        full = 2 * rate * nbytes * size / architecture.servers / cadence.period  # every worker's push and pull
        seconds = max(free, full if not deployment.servers else full / 2)
        computing = size / sum(1 / seconds for seconds in own)
        sent = architecture.sent_bytes(nbytes, size) / cadence.period
        return StepPrice(computing, coding, _rest(seconds, computing + coding), sent)

    def _exchange_alone(
        self, sentence: Sentence, architecture: Architecture, collective_costs: CollectiveCosts, cadence: Cadence
    ) -> StepPrice:
        """Return the price of one exchange of everything in one message, without overlap with backward and without
        computing; what may be in flight during later steps is behind these."""
        costs = self._of_chain(sentence, collective_costs.workers)
        plan_arrays = PlanArrays.of_one(len(self.deployment.tensors))
        traffic = self._traffic(costs, plan_arrays, architecture, collective_costs, np.zeros(1))
        coding = float(traffic.encode_seconds.sum() + traffic.decode_seconds.sum())

        def exposed(rounds: Sequence[TransferTimes]) -> float:
            some = replace(traffic, rounds=rounds)
            return _rest(iterate(0.0, np.zeros(1), 0.0, some, collective_costs.lanes).seconds, coding)

        sent = self._sent(costs, architecture, collective_costs.workers)
        once = StepPrice(0.0, coding, exposed(traffic.rounds), sent)
        if not cadence.flight:
            return once
        shared = sum(float(times.shared_seconds.sum()) for times in traffic.rounds[:1])
        lanes = collective_costs.lanes
        return behind_steps(once, exposed(traffic.rounds[:1]), shared, cadence, self.deployment, lanes)

    def _tiers(self, tiers: Tiers) -> StepPrice:
        """Return the price of exchanges within each unit in every step and between units as the outer rule says.

        Gradients that are averaged in both tiers cross in shards where the runtime lets them.
        """
        (inner, _), (outer, _) = tiers.levels
        deployment = self.deployment
        if not isinstance(inner, Sentence) or not isinstance(outer, Sentence) or inner.sync.make().cadence != Cadence():
            raise _not_in_closed_form(tiers)
        cadence, far_architecture = outer.sync.make().cadence, outer.architecture.make()
        if cadence is None or cadence.is_asynchronous:
            raise _not_in_closed_form(tiers)
        inside, between = CollectiveCosts(*deployment.inside()), CollectiveCosts(*deployment.between())
        plan_arrays = self._plan_arrays_of(inner)
        near = self._of_chain(inner, inside.workers)
        first = self._traffic(near, plan_arrays, inner.architecture.make(), inside, self._ready(plan_arrays))
        sent = self._sent(near, inner.architecture.make(), inside.workers)
        once = self._iterated(first, plan_arrays, sent)
        if not cadence.overlaps:
            return and_every(cadence.period, once, self._exchange_alone(outer, far_architecture, between, cadence))
        far = self._of_chain(outer, between.workers)
        there: Sequence[TransferTimes] = first.rounds
        back: Sequence[TransferTimes] = ()
        if inside.workers > 1 and sentences_shard(inner, [outer], deployment.tensors):
            far = far.divided(inside.workers)
            there, back = _scattered_and_gathered(near, plan_arrays, inside)
        second = self._traffic(far, plan_arrays, far_architecture, between, self._ready(plan_arrays))
        both = replace(
            first,
            encode_seconds=first.encode_seconds + second.encode_seconds,
            decode_seconds=first.decode_seconds + second.decode_seconds,
            rounds=(*there, *second.rounds, *back),
        )
        together = self._iterated(both, plan_arrays, sent + self._sent(far, far_architecture, between.workers))
        return together if cadence.period == 1 else and_every(cadence.period, once, difference(together, once))

    def _iterated(self, traffic: Traffic, plan_arrays: PlanArrays, sent_bytes: float) -> StepPrice:
        deployment = self.deployment
        forward, step = deployment.forward, deployment.step_seconds
        if plan_arrays.gates:  # each layer is updated when it is used
            forward, step = forward * (1 + step / max(forward.sum(), 1e-12)), 0.0
        found = iterate(float(deployment.backward.sum()), forward, step, traffic, self.collective_costs.lanes)
        coding = float(traffic.encode_seconds.sum() + traffic.decode_seconds.sum())
        exposed = _rest(found.seconds, deployment.computing_seconds + coding)
        return StepPrice(deployment.computing_seconds, coding, exposed, sent_bytes, found, plan_arrays)

    # ------------------------------------------------------------------------------------------ parts, made once

    def _of_chain(self, sentence: Sentence, size: int) -> CompressionCosts:
        key = (sentence.compression, size)
        if key not in self._compression_costs:
            self._compression_costs[key] = self._priced_chain(sentence, size)
        return self._compression_costs[key]

    def _priced_chain(self, sentence: Sentence, size: int, per_tensor: bool = True) -> CompressionCosts:
        return compression_costs(sentence, self.deployment.tensors, size, self.codec_times(sentence), per_tensor)

    def codec_times(self, sentence: Sentence) -> CodecTimes:
        """Return the times of encoding and decoding a chain: as measured, or those of the nearest that was."""
        known = self.deployment.codec_times
        if sentence.chain == "none":
            return _NO_CODING
        if sentence.chain in known:
            return known[sentence.chain]
        if sentence.chain in self.estimated:
            return known[self.estimated[sentence.chain]]
        times = nearest_timed(sentence.compression, known.values())
        if times is None:
            return _NO_CODING
        self.estimated[sentence.chain] = times.words
        return times

    def _plan_arrays_of(self, sentence: Sentence) -> PlanArrays:
        schedule = schedule_of(sentence)
        key = (schedule, sentence.compression if schedule.measures else None)
        known = self._plan_arrays_here if schedule.measures else self._plan_arrays
        if key not in known:
            timing = self._timing(sentence) if schedule.measures else None
            deployment = self.deployment
            known[key] = PlanArrays.of(
                schedule.plan(deployment.tensors, deployment.arrival, timing), deployment.arrival
            )
        return known[key]

    def _timing(self, sentence: Sentence) -> Timing:
        """Return the timing that a measuring schedule would find: linear prices fitted to this network's times."""
        deployment = self.deployment
        if sentence.compression not in self._timings:
            whole = float(sum(spec.nbytes for spec in deployment.tensors))
            costs = self._of_chain(sentence, deployment.workers)
            share = sum(vector.sum() for of in costs.rounds for vector in of.values()) / whole
            dense, halved = self._fitted_price("reduce", whole), self._fitted_price("halves", whole)
            compressed = None if not share else Price(dense.startup_seconds, dense.seconds_per_byte * share)
            forward = deployment.forward + deployment.step_seconds / len(deployment.tensors)
            self._timings[sentence.compression] = Timing(
                tuple(forward), tuple(deployment.backward), dense, False, halved, compressed
            )
        return self._timings[sentence.compression]

    def _fitted_price(self, meets: str, whole_bytes: float) -> Price:
        """Return the linear price through a small message and one of the whole model, each sharing the network."""
        sizes = np.array([256.0, whole_bytes])
        found = self._halves(sizes) if meets == "halves" else [self.collective_costs.carry(meets, sizes)]
        times = np.sum(
            [np.maximum(c.shared_seconds, c.alone_seconds / self.collective_costs.lanes) for c in found], axis=0
        )
        rate = max(0.0, float(times[1] - times[0])) / (sizes[1] - sizes[0])
        return Price(max(0.0, float(times[0]) - rate * 256.0), rate)

    def _halves(self, nbytes: Vector) -> list[TransferTimes]:
        scatter = self.collective_costs.carry("halves", nbytes)
        return [scatter, self.collective_costs.carry("gather", nbytes / max(self.deployment.workers, 1))]

    # ------------------------------------------------------------------------------------------ an iteration's messages

    def _ready(self, plan_arrays: PlanArrays) -> Vector:
        """Return after how many seconds of backward each message may be sent."""
        done = np.cumsum(self.deployment.backward[::-1])[::-1]  # tensors of the forward pass, from the end
        if plan_arrays.postponed:
            done = np.array(self._layers_ready(plan_arrays.postponed))
        return np.array([done[list(members)].max() for members in plan_arrays.awaited])

    def _layers_ready(self, postponed: int) -> Sequence[float]:
        deployment = self.deployment
        timing = Timing(tuple(deployment.forward), tuple(deployment.backward), Price(0.0, 0.0))
        return timing.layers(deployment.tensors, deployment.arrival).ready(postponed)

    def _traffic(
        self,
        costs: CompressionCosts,
        plan_arrays: PlanArrays,
        architecture: Architecture,
        collective_costs: CollectiveCosts,
        ready: Vector,
    ) -> Traffic:
        dense = plan_arrays.summed(costs.dense_bytes)
        encode, decode = costs.coding(plan_arrays)
        if architecture.servers:
            return self._served(costs, plan_arrays, architecture.servers, ready, dense)
        if plan_arrays.halves and not costs.rounds:
            return Traffic(ready, encode, decode, self._halves(dense), plan_arrays.gates, plan_arrays.second_order)
        rounds: list[TransferTimes] = []
        for of in costs.rounds:
            together = TransferTimes.zero(len(ready))
            for meets, vector in of.items():
                nbytes = plan_arrays.summed(vector)
                together = together + _carried(architecture, collective_costs, meets, nbytes, costs.dtype)
            rounds.append(together)
        if dense.any():
            beside = _carried(architecture, collective_costs, "reduce", dense, "float32")
            rounds = [rounds[0] + beside, *rounds[1:]] if rounds else [beside]
        return Traffic(ready, encode, decode, rounds or [TransferTimes.zero(len(ready))], plan_arrays.gates)

    def _served(
        self, costs: CompressionCosts, plan_arrays: PlanArrays, servers: int, ready: Vector, dense: Vector
    ) -> Traffic:
        """Return the traffic of a push and a pull, limited by the busier end's link; servers on workers share links."""
        deployment, size = self.deployment, self.deployment.workers
        up, down = dense.copy(), dense.copy()
        for of in costs.rounds:
            for meets, vector in of.items():
                up += plan_arrays.summed(vector)
                down += plan_arrays.summed(vector) * (size if meets == "gather" else 1)
        latency, rate = deployment.path
        load = max(1.0, size / servers) if deployment.servers else (size - 1) / servers
        transfers = []
        for nbytes in (up, down):
            seconds = rate * load * nbytes
            transfers.append(TransferTimes(np.where(nbytes > 0, latency, 0.0) + seconds, seconds, 1.0))
        encode, decode = costs.coding(plan_arrays)
        if deployment.servers:
            return Traffic(ready, encode, decode, transfers, plan_arrays.gates, flowing=True)
        push, pull = transfers
        both = TransferTimes(
            push.alone_seconds + pull.alone_seconds, push.shared_seconds + pull.shared_seconds, 1.0
        )  # through the same links
        return Traffic(ready, encode, decode, [both], plan_arrays.gates)

    def _sent(self, costs: CompressionCosts, architecture: Architecture, size: int) -> float:
        """Return the bytes that one worker sends in a step."""
        sent: float = architecture.sent_bytes(float(costs.dense_bytes.sum()), size)
        for of in costs.rounds:
            for meets, vector in of.items():
                sent += architecture.sent_bytes(float(vector.sum()), size, meets)
        return sent


def _carried(
    architecture: Architecture, collective_costs: CollectiveCosts, meets: str, nbytes: Vector, dtype: str
) -> TransferTimes:
    """Return what messages take: sums as the architecture makes them, everything else by the transport."""
    network = collective_costs.network
    if meets == "reduce" and network.size == collective_costs.workers:
        own = architecture.sum_seconds(nbytes, network)
        if own is not None:
            return TransferTimes(*own, 1.0)
    return collective_costs.carry(meets, nbytes, dtype)


def _scattered_and_gathered(
    costs: CompressionCosts, plan_arrays: PlanArrays, inside: CollectiveCosts
) -> tuple[list[TransferTimes], list[TransferTimes]]:
    """Return the rounds in which members of a unit are given their shards of each message, and those in which they
    gather them."""
    summed = [(vector, costs.dtype) for of in costs.rounds for vector in of.values()]
    scattered = gathered = TransferTimes.zero(len(plan_arrays.awaited))
    for vector, dtype in [*summed, (costs.dense_bytes, "float32")]:
        nbytes = plan_arrays.summed(vector)
        scattered = scattered + inside.carry("halves", nbytes, dtype)
        gathered = gathered + inside.carry("gather", nbytes / inside.workers, dtype)
    return [scattered], [gathered]


def _exact(sentence: Sentence) -> Sentence:
    """Return what carries a sentence's exact messages."""
    return replace(sentence, compression=Sentence().compression)


def _not_in_closed_form(strategy: Strategy) -> PlanError:
    return PlanError(f"`{strategy}` cannot be priced in closed form: run it with `laconic run --engine virtual`")


def _rest(whole_seconds: float, others_seconds: float) -> float:
    """Return what the others leave of a time; less than a rounding error is nothing."""
    rest = whole_seconds - others_seconds
    return rest if rest > 1e-12 * whole_seconds else 0.0
