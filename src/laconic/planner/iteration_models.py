"""The time of one iteration under each registered model of a schedule or transport, for one model and one network.

Words of the axis `schedule` run; its registered functions are models, which are priced here. Every worker and every
server has one duplex link of the given rate to one switch. Computing times are those of the profile, and transfers do
not slow it down.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sized
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from laconic.compression.optional import prices_of
from laconic.cost.cluster import Cluster
from laconic.cost.comm_plan import predicted_seconds, tasks_of
from laconic.cost.from_profile import prices_on, tensors_of, timing_of
from laconic.cost.iteration import Order, Stage, Transfer, period
from laconic.cost.server_star import ServerStar, sliced
from laconic.cost.server_star_flows import carry
from laconic.errors import LaconicError
from laconic.network.packets import PACKET_BYTES
from laconic.planner.codec_times import codecs_on
from laconic.planner.deployment import MOST_SERVERS
from laconic.planner.sources import Subject, is_script, subject_of
from laconic.planner.values import PlanError
from laconic.reading import Source
from laconic.registry import entry_of
from laconic.schedule.byteps import PIECE_BYTES, Fleet, byteps
from laconic.schedule.compressed import Coding, compressed
from laconic.schedule.exchange_methods import WFBP_A2A, choose
from laconic.schedule.geryon import SLICE_BYTES, geryon
from laconic.schedule.mercury import mercury
from laconic.schedule.merging import DENSITY, SPARSIFIER, SparseCosts, greedy, timeline
from laconic.schedule.search import search
from laconic.schedule.sequential import Sequential
from laconic.schedule.tensorexpress import tensorexpress
from laconic.schedule.wfbp import WFBP
from laconic.strategy import Sentence, Strategy
from laconic.units import bits_per_second, seconds, write_seconds
from laconic.values.comm_plan import CommPlan
from laconic.values.layer_times import LayerTimes
from laconic.values.price import Price, one_way
from laconic.values.profile import CodecTimes
from laconic.values.tensor_spec import TensorSpec
from laconic.values.timing import Timing

VERSION = 1

CREDIT_PIECES = 4  # that BytePS with priorities admits ahead of time
MOST_PACKETS = 1_000  # of one worker, in the packet model: more change an iteration by less than 0.1 %
MOST_SLICES = 256  # in the fluid model, besides one for each tensor

_WFBP = f"{WFBP.name} on a ring"


class MissingInput(LaconicError):
    """A model of an iteration needs something that was not given."""


@dataclass(frozen=True)
class IterationSetting:
    """The model, the hosts and the network for which iterations are priced."""

    subject: str
    parameters: int
    tensors: int
    workers: int
    servers: int
    bits_per_second: float  # of each link, in each direction
    latency_seconds: float  # one way
    computing_seconds: float  # of an iteration without any communication
    communication_seconds: float  # of one ring all-reduce of all gradients
    notes: tuple[str, ...] = ()

    @property
    def r(self) -> float:
        """The communication time divided by the computation time."""
        return self.communication_seconds / self.computing_seconds if self.computing_seconds else float("inf")


@dataclass(frozen=True)
class IterationRow:
    """One registered model: its iteration and that of its baseline in seconds, or what is missing to price it."""

    model: str
    assumes: str
    seconds: float | None = None
    baseline: str = ""
    baseline_seconds: float | None = None
    detail: str = ""  # what was chosen, or which settings were used
    missing: str = ""

    @property
    def speed_up(self) -> float | None:
        """How many times as long as this iteration the baseline takes."""
        return None if not self.seconds or self.baseline_seconds is None else self.baseline_seconds / self.seconds


@dataclass(frozen=True)
class IterationTable:
    """What an iteration takes under each registered model, in one setting."""

    setting: IterationSetting
    rows: tuple[IterationRow, ...]

    def to_json(self) -> str:
        """Return the table as JSON text, with the derived figures for programs that do not compute them."""
        rows = [asdict(row) | {"speed_up": row.speed_up} for row in self.rows]
        setting = asdict(self.setting) | {"r": self.setting.r}
        return json.dumps({"laconic_iteration": VERSION, "setting": setting, "rows": rows}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str = "this text") -> IterationTable:
        """Return the table from the text that `to_json` gave; errors call its source `where`."""
        source = Source(where, "table of iterations", "`laconic iteration --json` writes them", PlanError)
        table = source.json(text)
        if not isinstance(table, dict) or table.get("laconic_iteration") != VERSION:
            raise source.refused(f"it does not say that it is one of version {VERSION}")
        table = {name: _without_derived(part) for name, part in table.items() if name != "laconic_iteration"}
        return source.value(table, cls)


def _without_derived(part: Any) -> Any:
    """Return a part of the table without the figures that `to_json` derived."""
    if isinstance(part, list):
        return [_without_derived(row) for row in part]
    return {k: v for k, v in part.items() if k not in ("r", "speed_up")} if isinstance(part, dict) else part


@dataclass(frozen=True)
class Estimate:
    """The seconds of an iteration under a model, and under the plain baseline of its own kind."""

    seconds: float
    baseline: str
    baseline_seconds: float
    detail: str = ""


@dataclass(frozen=True)
class IterationInputs:
    """What models of an iteration are given, derived from a subject, the numbers of hosts and their links."""

    subject: Subject
    workers: int
    servers: int
    bits_per_second: float
    latency_seconds: float

    def __post_init__(self) -> None:
        if self.workers < 1 or not 0 <= self.servers <= MOST_SERVERS:
            raise PlanError(
                f"an iteration has at least one worker and 0 to {MOST_SERVERS} servers, not {self.workers} and "
                f"{self.servers}: change --workers or --servers"
            )
        if not self.bits_per_second > 0 or self.latency_seconds < 0:
            raise PlanError("links need a positive rate and no negative latency: give --network 10gbit, say")

    @cached_property
    def tensors(self) -> list[TensorSpec]:
        """The model's tensors in the order of the forward pass."""
        return tensors_of(self.subject.profile)[0]

    @property
    def arrival(self) -> list[int]:
        """The order in which backward computes the tensors' gradients."""
        return list(reversed(range(len(self.tensors))))

    @property
    def link(self) -> Price:
        return Price(self.latency_seconds, 8 / self.bits_per_second)

    @cached_property
    def timing(self) -> Timing:
        """The times of layers, and the price of a ring all-reduce."""
        price = prices_on(self.workers, self.bits_per_second, self.latency_seconds, None)
        return timing_of(self.subject.profile, price)

    @cached_property
    def layers(self) -> LayerTimes:
        return self.timing.layers(self.tensors, self.arrival)

    @property
    def nbytes(self) -> float:
        """The bytes of all gradients."""
        return sum(self.layers.nbytes)

    @property
    def star(self) -> ServerStar:
        """The workers and servers on one switch."""
        if not self.servers:
            raise MissingInput("it sums at parameter servers and there are none: add --servers 1 or more")
        return ServerStar(self.workers, self.servers, self.bits_per_second)

    @cached_property
    def wfbp(self) -> CommPlan:
        """The plan of wait-free backpropagation with buckets of DDP's default size."""
        return WFBP().plan(self.tensors, self.arrival)

    @cached_property
    def wfbp_seconds(self) -> float:
        return predicted_seconds(self.wfbp, self.arrival, self.timing)

    @cached_property
    def compressor(self) -> Sentence:
        sentence = Strategy.parse(SPARSIFIER)
        assert isinstance(sentence, Sentence)
        return sentence

    @cached_property
    def codec(self) -> CodecTimes:
        """The encoding and decoding times of the compressor: the profile's own, or else those of the GPU."""
        words, chip = self.compressor.chain, self.subject.gpu
        known = (*self.subject.profile.codecs, *(() if chip is None else codecs_on(chip)))
        found = next((codec for codec in known if codec.words == words), None)
        if found is None:
            raise MissingInput(
                f"the times to encode and decode {SPARSIFIER} are unknown: name the GPU with --gpu, or give a profile "
                "that has them, as `laconic plan SCRIPT` measures and keeps it"
            )
        return found

    def setting(self) -> IterationSetting:
        """Return the facts that a reader needs to judge the table."""
        return IterationSetting(
            self.subject.name,
            sum(spec.numel for spec in self.tensors),
            len(self.tensors),
            self.workers,
            self.servers,
            self.bits_per_second,
            self.latency_seconds,
            self.layers.compute_seconds,
            self.timing.price.seconds(self.nbytes),
            self.subject.notes,
        )


def iteration_inputs(
    text: str,
    gpu: str | None = None,
    workers: int = 8,
    servers: int | None = None,
    network: str = "1gbit",
    latency: str = "50us",
) -> IterationInputs:
    """Return the inputs for a model of the zoo (with a GPU) or a profile; without `servers`, one for each worker."""
    if is_script(text):
        raise PlanError(
            f"{text} is a script, whose times must be measured first: run `laconic profile --out profile.json {text}` "
            "and give profile.json"
        )
    if workers < 1 or (servers is not None and servers < 0):
        raise PlanError(
            f"an iteration has at least one worker and no fewer than 0 servers, not {workers} and {servers}"
        )
    rate, delay = bits_per_second(network), seconds(latency)
    subject = subject_of(text, (), workers, network, gpu)
    return IterationInputs(subject, workers, workers if servers is None else servers, rate, delay)


def iteration_table(inputs: IterationInputs) -> IterationTable:
    """Price an iteration under every model; those whose inputs are missing say what they need."""
    return IterationTable(inputs.setting(), tuple(_row(model, inputs) for model in MODELS))


def _row(model: Callable[..., Any], inputs: IterationInputs) -> IterationRow:
    entry = entry_of(model)
    try:
        made = MODELS[model](inputs)
    except MissingInput as error:
        return IterationRow(entry.name, entry.summary, missing=str(error))
    return IterationRow(entry.name, entry.summary, made.seconds, made.baseline, made.baseline_seconds, made.detail)


# ---------------------------------------------------------------------------------------------- all-reduces on a ring


def _iteration_dag(inputs: IterationInputs) -> Estimate:
    """Price wait-free backpropagation itself, compared with one all-reduce after backward."""
    plain = predicted_seconds(Sequential().plan(inputs.tensors, inputs.arrival), inputs.arrival, inputs.timing)
    found = period(*tasks_of(inputs.wfbp, inputs.arrival, inputs.timing))
    return Estimate(found, "one all-reduce", plain, f"{_WFBP}, {_count(inputs.wfbp.messages, 'message')}")


def _general_scheduler(inputs: IterationInputs) -> Estimate:
    found = search(inputs.tensors, inputs.arrival, inputs.timing)
    gates = "each layer waits for its own" if found.decision.gated else "forward waits for all"
    detail = f"{_count(found.plan.messages, 'message')}, {gates}"
    return Estimate(found.seconds, _WFBP, inputs.wfbp_seconds, detail)


def _omgs_sgd(inputs: IterationInputs) -> Estimate:
    """Price merged selections: the groups' timeline, then decoding, then the forward pass."""
    workers, codec = inputs.workers, inputs.codec
    startup, rate = (workers - 1) * inputs.latency_seconds, inputs.link.seconds_per_byte * (workers - 1) / workers
    costs = _MeasuredSelection(workers, startup, rate, 0.0, DENSITY, codec=codec)
    sizes = [spec.numel for spec in inputs.tensors]
    groups = greedy(sizes, inputs.layers.backward, costs)
    finish = timeline(groups, sizes, inputs.layers.backward, costs).finish
    decoding = codec.seconds("decode", len(groups), sum(sizes))
    detail = f"{SPARSIFIER} in {_count(groups, 'message')}"
    return Estimate(finish + decoding + sum(inputs.layers.forward), _WFBP, inputs.wfbp_seconds, detail)


@dataclass(frozen=True)
class _MeasuredSelection(SparseCosts):
    """Costs of sparse messages whose selection takes a compressor's measured time, not one in x·log2 x."""

    codec: CodecTimes = field(kw_only=True)

    def selecting(self, elements: int) -> float:
        return self.codec.seconds("encode", 1, elements)


def _compression_scheduler(inputs: IterationInputs) -> Estimate:
    """Price the best choice of tensors to compress in the buckets of wait-free backpropagation.

    Sparse payloads are gathered, (N-1) times their bytes on a link of N workers, where an all-reduce puts 2(N-1)/N
    times the tensor's: hence the factor N/2 on the share of bytes.
    """
    codec, compressor = inputs.codec, inputs.compressor.compressor
    payload = sum(nbytes for spec in inputs.tensors for _, nbytes in prices_of(compressor, spec, inputs.workers))
    elements_per_byte = sum(spec.numel for spec in inputs.tensors) / inputs.nbytes
    coding = Coding(
        Price(codec.encode_seconds_per_tensor, codec.encode_seconds_per_element * elements_per_byte),
        Price(codec.decode_seconds_per_tensor, codec.decode_seconds_per_element * elements_per_byte),
        payload / inputs.nbytes * inputs.workers / 2,
    )
    chosen = compressed(inputs.wfbp.buckets, inputs.layers, inputs.timing.price, coding)
    detail = f"{SPARSIFIER} on {len(chosen.tensors)} of {_count(inputs.tensors, 'tensor')}"
    return Estimate(chosen.seconds, _WFBP, inputs.wfbp_seconds, detail)


# ---------------------------------------------------------------------------------------------- servers on a star


def _geryon(inputs: IterationInputs) -> Estimate:
    size = max(SLICE_BYTES, inputs.nbytes / MOST_SLICES)
    found, plain = (geryon(inputs.layers, inputs.star, carry, classes, size) for classes in (8, 1))
    return Estimate(found, "one class", plain, f"8 classes, slices of {_megabytes(size)}, no latency")


def _tensorexpress(inputs: IterationInputs) -> Estimate:
    size = max(PACKET_BYTES, inputs.nbytes / MOST_PACKETS)
    found, plain = (tensorexpress(inputs.layers, inputs.star, queues, size) for queues in (8, 1))
    return Estimate(found, "one queue", plain, f"8 queues, packets of {size / 1e3:.3g} kB, no latency")


def _mercury(inputs: IterationInputs) -> Estimate:
    """Price whole tensors that are pre-empted packet by packet, compared with slices in the order of readiness."""
    star, layers = inputs.star, inputs.layers
    price = one_way(inputs.workers, inputs.servers, inputs.link)
    slices = [(piece.tensor, price.seconds(piece.nbytes)) for piece in sliced(layers.nbytes, 1, SLICE_BYTES)]
    transfers = [Transfer((i,), (Stage("push", one), Stage("pull", one))) for i, one in slices]
    plain = period(layers, transfers, Order(gated=True))
    found = mercury(layers, star, inputs.latency_seconds)
    return Estimate(found, "slices in turn", plain, f"start-up {write_seconds(inputs.latency_seconds)} a tensor")


def _byteps(inputs: IterationInputs) -> Estimate:
    """Price summation services that serve the most urgent piece first, compared with the order of readiness."""
    spare = min(inputs.servers, inputs.workers)
    fleet = Fleet(inputs.workers, spare, inputs.bits_per_second, inputs.latency_seconds)
    found = byteps(inputs.layers, fleet, credit_bytes=CREDIT_PIECES * PIECE_BYTES, gated=True)
    plain = byteps(inputs.layers, fleet, gated=True)
    detail = f"pieces of {_megabytes(PIECE_BYTES)}, {CREDIT_PIECES} of them admitted ahead, {spare} hosts without GPUs"
    return Estimate(found, "no priority", plain, detail)


def _auto_architecture(inputs: IterationInputs) -> Estimate:
    """Price the survey's seven methods on hosts of one GPU each, whose copies within a host take no time."""
    cluster = Cluster(
        inputs.workers,
        Price(0.0, 0.0),
        inputs.link,
        gpus_per_host=1,
        servers=inputs.servers or None,
        overlapped_pace=1.0,
    )
    if inputs.subject.gpu is not None:
        cluster = replace(cluster, memory_bytes_per_second=inputs.subject.gpu.memory_bytes_per_second)
    chosen = choose(inputs.layers, cluster)
    return Estimate(chosen.seconds[chosen.method], WFBP_A2A, chosen.seconds[WFBP_A2A], f"chosen: {chosen.method}")


def _count(things: Sized, name: str) -> str:
    return f"{len(things):,} {name}{'' if len(things) == 1 else 's'}"


def _megabytes(nbytes: float) -> str:
    return f"{nbytes / 1e6:.3g} MB"


MODELS: dict[Callable[..., Any], Callable[[IterationInputs], Estimate]] = {
    period: _iteration_dag,
    search: _general_scheduler,
    greedy: _omgs_sgd,
    compressed: _compression_scheduler,
    choose: _auto_architecture,
    geryon: _geryon,
    tensorexpress: _tensorexpress,
    mercury: _mercury,
    byteps: _byteps,
}
"""How to price each registered model; all-reduces first, then servers."""
