"""Ways to shard a model beside plain data parallelism: what a step takes, and whether it fits on the GPU.

Every block of a numbered list of the model is sharded by itself, and what is around the blocks together, as people
call `fully_shard`. Messages are those that the runtime sends (`runtime.sharded.traffic`), on the planner's network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np
import torch

from laconic.architecture.sharded import Sharding, shardings
from laconic.cost.collectives import CollectiveCosts
from laconic.cost.sharded_memory import GpuMemory, StateBytes, model_state
from laconic.cost.sharded_step import Hop, ModuleStep, ShardedStep
from laconic.planner.autotune import PAYS
from laconic.planner.deployment import Deployment
from laconic.planner.price import Pricer
from laconic.planner.step_price import StepPrice
from laconic.planner.values import ShardedOption
from laconic.profile.gpus.memory import is_half
from laconic.runtime.sharded.layout import ShardLayout
from laconic.runtime.sharded.traffic import Hosts, Message, ModuleTraffic, Span, module_traffic
from laconic.strategy import Sentence, Strategy
from laconic.values.tensor_spec import TensorSpec

_STATES = {"sgd": 1}
_ADAM = 2  # states of an optimizer of which nothing else is known


@dataclass(frozen=True)
class Module:
    """Tensors that are sharded together, and the seconds that they compute; `after` of them after all other modules."""

    tensors: tuple[TensorSpec, ...]
    forward: float
    backward: float
    forward_after: float = 0.0
    backward_before: float = 0.0

    def padded(self, owners: int) -> int:
        """Return the number of values of its flat tensor, which divides among the owners."""
        shapes = tuple(spec.shape for spec in self.tensors)
        return ShardLayout(shapes, (0,) * len(shapes), owners).numel


class ShardedPricer:
    """Prices ways to shard the model of one deployment."""

    def __init__(self, pricer: Pricer) -> None:
        self.deployment, self._pricer = pricer.deployment, pricer
        deployment = self.deployment
        units = deployment.units
        self.hosts = Hosts(deployment.workers // units, units)
        facts = deployment.profile.machine
        self.half = is_half(facts.get("precision"))
        self.dtype = torch.bfloat16 if self.half else torch.float32
        optimizer = (deployment.profile.optimizer or "").lower()
        self.each = StateBytes.of(self.half, _STATES.get(optimizer, _ADAM))
        self.activations = float(facts.get("activation_bytes", 0.0))
        self._hop = cache(self._priced)

    @cached_property
    def modules(self) -> list[Module]:
        """The modules in the order of forward, what is around all others first."""
        return modules_of(self.deployment)

    @cached_property
    def _costs(self) -> dict[Span, CollectiveCosts]:
        deployment = self.deployment
        whole = CollectiveCosts(deployment.network, deployment.workers)
        if not self.hosts.several:
            return {"all": whole, "inside": whole, "across": whole}
        return {
            "all": whole,
            "inside": CollectiveCosts(*deployment.inside()),
            "across": CollectiveCosts(*deployment.between()),
        }

    def rows(self, plain: StepPrice, gpu_bytes: float | None) -> tuple[ShardedOption, ...]:
        """Return plain data parallelism, whose price is given, and all ways to shard, the fastest first."""
        if self.hosts.workers == 1:
            return (self._plain(plain, gpu_bytes),)
        found = [self.option(way, plain.seconds, gpu_bytes) for way in shardings(self.hosts.inside, self.hosts.across)]
        found.sort(key=lambda option: (option.step_seconds, option.memory.total))
        return self._plain(plain, gpu_bytes), *found

    def _plain(self, priced: StepPrice, gpu_bytes: float | None) -> ShardedOption:
        memory = replace(model_state(self._parameters, 1, 0, self.each), activations=self.activations)
        sent = float(priced.sent_bytes)
        return ShardedOption(
            "data parallel",
            float(priced.seconds),
            None,
            1.0,
            sent,
            sent if self.hosts.across > 1 else 0.0,
            float(priced.computing_seconds),
            float(priced.coding_seconds),
            float(priced.exposed_seconds),
            memory,
            _fits(memory, gpu_bytes),
            exact=True,
            line="",
        )

    def option(self, way: Sharding, plain_seconds: float, gpu_bytes: float | None) -> ShardedOption:
        """Return the costs of one way to shard."""
        traffic = self.traffic(way)
        step = self.step(way, traffic)
        seconds, memory = step.seconds(), self.memory(way, traffic)
        return ShardedOption(
            way.title,
            seconds,
            step.serial_seconds(),
            plain_seconds / seconds,
            sum(one.sent_bytes for one in traffic),
            sum(one.leaving_bytes(self.hosts) for one in traffic),
            step.computing_seconds,
            step.coding_seconds,
            max(0.0, seconds - step.computing_seconds - step.coding_seconds),
            memory,
            _fits(memory, gpu_bytes),
            way.exact,
            way.line(self.hosts.across, self.hosts.inside),
        )

    def traffic(self, way: Sharding) -> list[ModuleTraffic]:
        """Return the messages of each module."""
        owners = self._owners(way)
        return [
            module_traffic(way.method, module.padded(owners), self.hosts, self.dtype, way.replicated)
            for module in self.modules
        ]

    def memory(self, way: Sharding, traffic: Sequence[ModuleTraffic]) -> GpuMemory:
        """Return the memory of one GPU, with the padding of shards."""
        owners = self._owners(way)
        sizes = [float(module.padded(owners)) for module in self.modules]
        state = model_state(sum(sizes), owners, way.stage, self.each)
        around, *others = sizes
        gathered = self.each.gradients * max(sizes) if way.stage >= 2 else 0.0
        if way.stage == 3:  # what is around, the module that computes and the next
            gathered += self.each.weights * (around + sum(sorted(others)[-2:]))
        copies, errors = sum(one.copy_bytes for one in traffic), sum(one.error_bytes for one in traffic)
        return replace(state, gathered=gathered, copies=copies, errors=errors, activations=self.activations)

    def step(self, way: Sharding, traffic: Sequence[ModuleTraffic]) -> ShardedStep:
        """Return the step as tasks; the optimizer works on this worker's shards alone."""
        around = self.modules[0]
        steps = [
            ModuleStep(
                module.forward,
                module.backward,
                self._hop(sent.forward),
                None if sent.backward is None else self._hop(sent.backward),
                tuple(map(self._hop, sent.gradients)),
            )
            for module, sent in zip(self.modules, traffic, strict=True)
        ]
        optimizer = self.deployment.step_seconds / self._owners(way)
        return ShardedStep(steps, around.forward_after, around.backward_before, optimizer)

    def _priced(self, message: Message) -> Hop:
        costs = self._costs[message.span]
        meets = "halves" if message.meets == "scatter" else message.meets
        times = costs.carry(meets, np.array([message.payload_bytes]))
        alone = float(times.alone_seconds[0]) if message.members > 1 else 0.0
        lane = "inside" if message.span == "inside" else "outside"
        return Hop(lane, alone, alone / times.pace, *self._coding(message))

    def _coding(self, message: Message) -> tuple[float, float]:
        if message.chain == "none":
            return 0.0, 0.0
        sentence = Strategy.parse(message.chain)
        assert isinstance(sentence, Sentence)
        times = self._pricer.codec_times(sentence)
        encode = times.encode_seconds_per_bucket + times.encode_seconds_per_element * message.encoded
        return encode, times.decode_seconds_per_bucket + times.decode_seconds_per_element * message.decoded

    def _owners(self, way: Sharding) -> int:
        return self.hosts.inside if way.replicated else self.hosts.workers

    @property
    def _parameters(self) -> int:
        return sum(spec.numel for spec in self.deployment.tensors)


def recommended(rows: Sequence[ShardedOption]) -> ShardedOption | None:
    """Return the fastest way to shard that fits and computes the same, or None where there is none."""
    return next((row for row in rows if row.line and row.fits and row.exact), None)


def verdict_on(rows: Sequence[ShardedOption], gpu_bytes: float) -> str:
    """Return the verdict in words where plain data parallelism, the first row, does not fit."""
    plain, *ways = rows
    text = (
        f"Data parallelism does not fit: it needs {_gib(plain.memory.total)} on each GPU, which has {_gib(gpu_bytes)} "
        "for a model. "
    )
    best = recommended(rows)
    fitting = [way for way in ways if way.fits]
    if not fitting:
        least = min(rows, key=lambda row: row.memory.total)
        more = f", {_gib(least.memory.activations)} of it activations" if least.memory.activations else ""
        return (
            f"{text}Nothing here fits: {least.title} needs the least, {_gib(least.memory.total)}{more}. Take more or "
            "larger GPUs, or a smaller batch; activations that are computed again (checkpointing) are not counted here."
        )
    if best is not None:
        text += (
            f"Of what fits and computes the same, {best.title} is the fastest: {best.step_seconds:.3g} s a step, "
            f"{_gib(best.memory.total)}."
        )
    first = min(fitting, key=lambda way: way.step_seconds)
    if best is None or first.step_seconds * PAYS <= best.step_seconds:
        speed = "" if best is None else f" {best.step_seconds / first.step_seconds:.2f} times as fast"
        text += f" {first.title} would be{speed or ' the fastest'}; what that does to the loss is unknown here."
    return text


def _gib(nbytes: float) -> str:
    return f"{nbytes / 2**30:.3g} GiB"


def modules_of(deployment: Deployment) -> list[Module]:
    """Return what is sharded together: each block of a numbered list, and what is around the blocks as the first."""
    names = [_block(spec.name) for spec in deployment.tensors]
    blocks = [name for name in dict.fromkeys(names) if name]
    first = names.index(blocks[0]) if blocks else 0
    found = []
    for name in ("", *blocks):
        own = [i for i, other in enumerate(names) if other == name]
        tensors = tuple(deployment.tensors[i] for i in own)
        late = [i for i in own if not name and blocks and i > first]
        early = [i for i in own if i not in late]
        found.append(
            Module(
                tensors,
                *(float(times[early].sum()) for times in (deployment.forward, deployment.backward)),
                *(float(times[late].sum()) for times in (deployment.forward, deployment.backward)),
            )
        )
    return found


def _block(name: str) -> str:
    """Return the part of a tensor's name up to the first number, the block it belongs to; none: "" ."""
    parts = name.split(".")
    place = next((place for place, part in enumerate(parts[:-1]) if part.isdigit()), None)
    return "" if place is None else ".".join(parts[: place + 1])


def _fits(memory: GpuMemory, gpu_bytes: float | None) -> bool | None:
    return None if gpu_bytes is None else memory.total <= gpu_bytes
