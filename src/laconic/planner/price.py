"""What a strategy takes a step, thousands of strategies a second.

Strategies share their parts: a compressor's payloads on a model, a schedule's plan and a network's times are made once.
What is left for each of them is one iteration in closed form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from laconic.architecture.ps import ParameterServer
from laconic.compression.base import Compressor
from laconic.cost.closed_form import Iterated, Traffic, iterate
from laconic.cost.collectives import CollectiveCosts, TransferTimes, Vector
from laconic.cost.plan_arrays import PlanArrays
from laconic.planner.deployment import Deployment
from laconic.planner.values import PlanError
from laconic.strategy import Sentence, Strategy, Tiers
from laconic.values.price import Price
from laconic.values.profile import CodecTimes
from laconic.values.timing import Timing

_NO_CODING = CodecTimes("", 0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Priced:
    """A step in the steady state, in the mean over steps that talk and steps that do not."""

    seconds: float
    sent_bytes: float
    coding_seconds: float
    exposed_seconds: float
    iterated: Iterated | None = None
    view: PlanArrays | None = None


@dataclass(frozen=True)
class Coded:
    """A chain of compression on a model: what each tensor hands over, round by round, by how it meets the others."""

    dense_bytes: Vector
    rounds: tuple[dict[str, Vector], ...]
    encode_seconds: Vector
    decode_seconds: Vector
    dtype: str


class Pricer:
    """Prices of one setting."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.wire = CollectiveCosts(deployment.network, deployment.workers)
        self._coded: dict[tuple[Any, ...], Coded] = {}
        self._views: dict[Any, PlanArrays] = {}
        self._timings: dict[Any, Timing] = {}

    def price(self, strategy: str | Strategy) -> Priced:
        """Of a sentence, or of tiers over the network's levels."""
        chosen = Strategy.parse(strategy)
        if isinstance(chosen, Sentence):
            return self._sentence(chosen)
        if isinstance(chosen, Tiers) and len(chosen.levels) == 2 and self.deployment.units > 1:
            return self._tiers(chosen)
        raise PlanError(f"`{chosen}` cannot be priced in closed form: run it with `laconic run --engine virtual`")

    def ddp(self, chain: str, cap_bytes: int) -> Priced:
        """PyTorch's DistributedDataParallel, which casts a bucket at a time where its hook does."""
        sentence = Strategy.parse(f"bsp / {chain} / allreduce / wfbp({cap_bytes}, first_bytes={min(cap_bytes, 2**20)})")
        assert isinstance(sentence, Sentence)
        key = (sentence.compression, "whole buckets")
        if key not in self._coded:
            self._coded[key] = self._priced_chain(sentence, self.deployment.workers, per_tensor=False)
        return self._every_step(sentence, sentence.architecture.make(), self._coded[key])

    # ------------------------------------------------------------------------------------------ shapes

    def _sentence(self, sentence: Sentence) -> Priced:
        deployment, sync = self.deployment, sentence.sync.make()
        architecture = sentence.architecture.make()
        if sync.name == "bsp":
            return self._every_step(sentence, architecture)
        if sync.name in ("asp", "ssp") and isinstance(architecture, ParameterServer):
            return self._asynchronous(sentence, architecture, bounded=sync.name == "ssp")
        period = getattr(sync, "steps" if sync.name == "grad_accumulation" else "period", None)
        if sync.name not in PERIODIC or period is None:
            raise PlanError(f"`{sentence}` cannot be priced in closed form: run it with `laconic run --engine virtual`")
        if sync.name == "grad_accumulation":
            once = self._every_step(sentence, architecture)
            return _spread(deployment, once, once.seconds - deployment.computing_seconds, period)
        return _spread(deployment, *self._meeting(sentence, architecture, self.wire), period)

    def _every_step(self, sentence: Sentence, architecture: Any, coded: Coded | None = None) -> Priced:
        deployment, view = self.deployment, self._view(sentence)
        coded = coded or self._of_chain(sentence, deployment.workers)
        traffic = self._traffic(coded, view, architecture, self.wire, self._ready(view))
        return self._iterated(traffic, view, self._sent(coded, architecture, deployment.workers))

    def _asynchronous(self, sentence: Sentence, server: ParameterServer, bounded: bool) -> Priced:
        """As long as all workers need for one gradient each, in the mean: everybody computes, pushes and pulls at its
        own pace, until the servers' links are full. A bound on staleness holds all to the slowest."""
        deployment, size = self.deployment, self.deployment.workers
        coded = self._of_chain(sentence, size)
        nbytes = float(coded.dense_bytes.sum() + sum(v.sum() for of in coded.rounds for v in of.values()))
        latency, rate = deployment.way
        coding = float(coded.encode_seconds.sum() + coded.decode_seconds.sum())
        talking = 2 * (latency + rate * nbytes)
        own = [
            deployment.profile.model.seconds * deployment.slowness[k % len(deployment.slowness)] for k in range(size)
        ]
        own = [max(own)] * size if bounded else own
        free = size / sum(1 / (seconds + coding + talking) for seconds in own)
        full = 2 * rate * nbytes * size / server.shards  # a push and a pull of everybody through these links
        seconds = max(free, full if not deployment.servers else full / 2)
        computing = size / sum(1 / seconds for seconds in own)
        return Priced(seconds, server.sent_bytes(nbytes, size), coding, max(0.0, seconds - computing - coding))

    def _meeting(self, sentence: Sentence, architecture: Any, wire: CollectiveCosts) -> tuple[Priced, float]:
        """Everything at once, with nothing beside it: what it is, and how long it takes."""
        coded = self._of_chain(sentence, wire.workers)
        view = PlanArrays.of_one(len(self.deployment.tensors))
        traffic = self._traffic(coded, view, architecture, wire, np.zeros(1))
        alone = iterate(0.0, np.zeros(1), 0.0, traffic, wire.lanes).seconds
        coding = float(traffic.encode_seconds.sum() + traffic.decode_seconds.sum())
        return Priced(alone, self._sent(coded, architecture, wire.workers), coding, alone - coding), alone

    def _tiers(self, tiers: Tiers) -> Priced:
        """Within each unit in every step, between units as often as the outer rule says."""
        (inner, _), (outer, _) = tiers.levels
        deployment = self.deployment
        if not isinstance(inner, Sentence) or not isinstance(outer, Sentence) or inner.sync.name != "bsp":
            raise PlanError(f"`{tiers}` cannot be priced in closed form: run it with `laconic run --engine virtual`")
        inside, between = CollectiveCosts(*deployment.inside()), CollectiveCosts(*deployment.between())
        view = self._view(inner)
        near = self._of_chain(inner, inside.workers)
        first = self._traffic(near, view, inner.architecture.make(), inside, self._ready(view))
        sent = self._sent(near, inner.architecture.make(), inside.workers)
        far_sync, far_architecture = outer.sync.make(), outer.architecture.make()
        if far_sync.name == "bsp":
            far = self._of_chain(outer, between.workers)
            second = self._traffic(far, view, far_architecture, between, self._ready(view))
            both = replace(
                first,
                encode_seconds=first.encode_seconds + second.encode_seconds,
                decode_seconds=first.decode_seconds + second.decode_seconds,
                rounds=(*first.rounds, *second.rounds),
            )
            return self._iterated(both, view, sent + self._sent(far, far_architecture, between.workers))
        once = self._iterated(first, view, sent)
        meeting, seconds = self._meeting(outer, far_architecture, between)
        return Priced(
            once.seconds + seconds / far_sync.period,
            once.sent_bytes + meeting.sent_bytes / far_sync.period,
            once.coding_seconds + meeting.coding_seconds / far_sync.period,
            once.exposed_seconds + meeting.exposed_seconds / far_sync.period,
        )

    def _iterated(self, traffic: Traffic, view: PlanArrays, sent_bytes: float) -> Priced:
        deployment = self.deployment
        forward, step = deployment.forward, deployment.step_seconds
        if view.gates:  # each layer is updated when it is used
            forward, step = forward * (1 + step / max(forward.sum(), 1e-12)), 0.0
        found = iterate(float(deployment.backward.sum()), forward, step, traffic, self.wire.lanes)
        coding = float(traffic.encode_seconds.sum() + traffic.decode_seconds.sum())
        exposed = max(0.0, found.seconds - deployment.computing_seconds - coding)
        return Priced(found.seconds, sent_bytes, coding, exposed, found, view)

    # ------------------------------------------------------------------------------------------ parts, made once

    def _of_chain(self, sentence: Sentence, size: int) -> Coded:
        key = (sentence.compression, size)
        if key not in self._coded:
            self._coded[key] = self._priced_chain(sentence, size)
        return self._coded[key]

    def _priced_chain(self, sentence: Sentence, size: int, per_tensor: bool = True) -> Coded:
        compressor: Compressor = sentence.compressor
        words = sentence.chain
        times = self.deployment.codec_times.get(words, _NO_CODING)
        tensors = self.deployment.tensors
        taken = [words != "none" and compressor.accepts(spec) for spec in tensors]
        prices = [compressor.prices(s, size) if yes else () for s, yes in zip(tensors, taken, strict=True)]
        rounds: list[dict[str, Vector]] = [{} for _ in range(max(map(len, prices), default=0))]
        for i, each in enumerate(prices):
            for place, (meets, nbytes) in enumerate(each):
                rounds[place].setdefault(meets, np.zeros(len(tensors)))[i] = nbytes
        elements = np.array([spec.numel if yes else 0 for spec, yes in zip(tensors, taken, strict=True)], dtype=float)
        some = np.array(taken, dtype=float) * per_tensor
        wire_dtype = compressor.wire
        return Coded(
            np.array([0.0 if yes else spec.nbytes for spec, yes in zip(tensors, taken, strict=True)]),
            tuple(rounds),
            times.encode_seconds_per_tensor * some + times.encode_seconds_per_element * elements,
            times.decode_seconds_per_tensor * some + times.decode_seconds_per_element * elements,
            "float32" if wire_dtype is None else str(wire_dtype).removeprefix("torch."),
        )

    def _view(self, sentence: Sentence) -> PlanArrays:
        schedule = sentence.schedule.make()
        chain = sentence.compression if schedule.measures else None
        key = (sentence.schedule, chain)
        if key not in self._views:
            timing = self._timing(sentence) if schedule.measures else None
            deployment = self.deployment
            self._views[key] = PlanArrays.of(
                schedule.plan(deployment.tensors, deployment.arrival, timing), deployment.arrival
            )
        return self._views[key]

    def _timing(self, sentence: Sentence) -> Timing:
        """What a schedule that measures would find: lines through this network's times."""
        deployment = self.deployment
        if sentence.compression not in self._timings:
            whole = float(sum(spec.nbytes for spec in deployment.tensors))
            coded = self._of_chain(sentence, deployment.workers)
            share = sum(vector.sum() for of in coded.rounds for vector in of.values()) / whole
            dense, halved = self._line("reduce", whole), self._line("halves", whole)
            compressed = None if not share else Price(dense.startup_seconds, dense.seconds_per_byte * share)
            forward = deployment.forward + deployment.step_seconds / len(deployment.tensors)
            self._timings[sentence.compression] = Timing(
                tuple(forward), tuple(deployment.backward), dense, False, halved, compressed
            )
        return self._timings[sentence.compression]

    def _line(self, meets: str, whole_bytes: float) -> Price:
        """Through a small message and the whole model's, as messages cost beside others."""
        sizes = np.array([256.0, whole_bytes])
        found = self._halves(sizes) if meets == "halves" else [self.wire.carry(meets, sizes)]
        times = np.sum([np.maximum(c.shared_seconds, c.alone_seconds / self.wire.lanes) for c in found], axis=0)
        rate = max(0.0, float(times[1] - times[0])) / (sizes[1] - sizes[0])
        return Price(max(0.0, float(times[0]) - rate * 256.0), rate)

    def _halves(self, nbytes: Vector) -> list[TransferTimes]:
        scatter = self.wire.carry("halves", nbytes)
        return [scatter, self.wire.carry("gather", nbytes / max(self.deployment.workers, 1))]

    # ------------------------------------------------------------------------------------------ an iteration's messages

    def _ready(self, view: PlanArrays) -> Vector:
        """After how much of backward each message may leave."""
        done = np.cumsum(self.deployment.backward[::-1])[::-1]  # tensors of the forward pass, from the end
        if view.postponed:
            done = np.array(self._layers_ready(view.postponed))
        return np.array([done[list(members)].max() for members in view.awaited])

    def _layers_ready(self, postponed: int) -> Sequence[float]:
        deployment = self.deployment
        timing = Timing(tuple(deployment.forward), tuple(deployment.backward), Price(0.0, 0.0))
        return timing.layers(deployment.tensors, deployment.arrival).ready(postponed)

    def _traffic(
        self, coded: Coded, view: PlanArrays, architecture: Any, wire: CollectiveCosts, ready: Vector
    ) -> Traffic:
        dense = view.summed(coded.dense_bytes)
        encode, decode = view.summed(coded.encode_seconds), view.summed(coded.decode_seconds)
        if isinstance(architecture, ParameterServer):
            return self._served(coded, view, architecture, ready, dense)
        if view.halves and not coded.rounds:
            return Traffic(ready, encode, decode, self._halves(dense), view.gates, view.second_order)
        rounds: list[TransferTimes] = []
        for of in coded.rounds:
            together = TransferTimes.zero(len(ready))
            for meets, vector in of.items():
                together = together + wire.carry(meets, view.summed(vector), coded.dtype)
            rounds.append(together)
        if dense.any():
            beside = wire.carry("reduce", dense)
            rounds = [rounds[0] + beside, *rounds[1:]] if rounds else [beside]
        return Traffic(ready, encode, decode, rounds or [TransferTimes.zero(len(ready))], view.gates)

    def _served(self, coded: Coded, view: PlanArrays, server: ParameterServer, ready: Vector, dense: Vector) -> Traffic:
        """A push, then a pull: the busier end's link decides. Servers on the workers share these links."""
        deployment, size = self.deployment, self.deployment.workers
        up, down = dense.copy(), dense.copy()
        for of in coded.rounds:
            for meets, vector in of.items():
                up += view.summed(vector)
                down += view.summed(vector) * (size if meets == "gather" else 1)
        latency, rate = deployment.way
        crowd = max(1.0, size / server.shards) if deployment.servers else (size - 1) / server.shards
        ways = []
        for nbytes in (up, down):
            seconds = rate * crowd * nbytes
            ways.append(TransferTimes(np.where(nbytes > 0, latency, 0.0) + seconds, seconds, 1.0))
        encode, decode = view.summed(coded.encode_seconds), view.summed(coded.decode_seconds)
        if deployment.servers:
            return Traffic(ready, encode, decode, ways, view.gates, flowing=True)
        push, pull = ways
        both = TransferTimes(
            push.alone_seconds + pull.alone_seconds, push.shared_seconds + pull.shared_seconds, 1.0
        )  # through the same links
        return Traffic(ready, encode, decode, [both], view.gates)

    def _sent(self, coded: Coded, architecture: Any, size: int) -> float:
        """One worker's bytes of a step."""
        sent: float = architecture.sent_bytes(float(coded.dense_bytes.sum()), size)
        for of in coded.rounds:
            sent += sum(architecture.sent_bytes(float(vector.sum()), size, meets) for meets, vector in of.items())
        return sent


PERIODIC = ("local_sgd", "diloco", "grad_accumulation")
"""Rules that talk every so many steps, with nothing beside it."""


def _spread(deployment: Deployment, once: Priced, seconds: float, period: int) -> Priced:
    """A meeting that takes so long on top of computing, every so many steps."""
    return Priced(
        deployment.own_seconds(period) + seconds / period,
        once.sent_bytes / period,
        once.coding_seconds / period,
        once.exposed_seconds / period,
    )
