"""What a compressor may have beside the core of `Compressor`: one small protocol per idea, and how each is asked for.

A compressor implements a protocol by having its members, without deriving from it; whoever implements none of them is
a complete compressor. Callers never read such a member directly: the function below a protocol returns it, or what
holds for a compressor without it.
"""

# mypy: disable-error-code="type-abstract"
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, TypeVar, cast, runtime_checkable

import torch
from torch import Tensor

from laconic.compression.base import Compressor, Exchange, State
from laconic.compression.bucket import BucketExchange, BucketMeet, TensorBucket, is_changed_below
from laconic.errors import StrategyError
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Edge, Meets

Kind = TypeVar("Kind")
_implemented: dict[tuple[type, type], bool] = {}  # by class and protocol: Python takes long to find it out


def implementation(compressor: Compressor, protocol: type[Kind]) -> Kind | None:
    """Return the compressor itself if it implements a protocol, and otherwise None."""
    key = type(compressor), protocol
    if key not in _implemented:
        _implemented[key] = isinstance(compressor, protocol)
    return cast(Kind, compressor) if _implemented[key] else None


# ---------------------------------------------------------------------------------------------- messages


@runtime_checkable
class SeveralMessages(Protocol):
    """For an exchange of several messages, or of messages that are not all combined as `meets` says."""

    def prices(self, spec: TensorSpec, size: int) -> tuple[tuple[Meets, int], ...]:
        """Return the messages of an exchange, each as how it is combined with the others' and its bytes; the bytes add
        up to `payload_bytes`."""
        ...


def prices_of(compressor: Compressor, spec: TensorSpec, size: int) -> tuple[tuple[Meets, int], ...]:
    """Return the messages of an exchange as `prices` does: one of `payload_bytes`, unless it has several."""
    several = implementation(compressor, SeveralMessages)
    if several is None:
        return ((compressor.meets, compressor.payload_bytes(spec, size)),)
    return several.prices(spec, size)


@runtime_checkable
class Settling(Protocol):
    """For compressors whose first messages differ from the later ones, as during a warm-up."""

    @property
    def settling(self) -> int:
        """The number of steps at the start whose messages differ from the ones that `prices` describes."""
        ...


def settling_of(compressor: Compressor) -> int:
    """Return the number of steps at the start whose messages differ from the later ones, 0 unless declared."""
    settles = implementation(compressor, Settling)
    return 0 if settles is None else settles.settling


@runtime_checkable
class WholeBucket(Protocol):
    """For compressors that exchange all tensors of a message at once, with the bytes and results of one after the
    other."""

    def exchange_bucket(self, bucket: TensorBucket, meet: BucketMeet) -> BucketExchange | None:
        """Exchange a bucket: leave the common result in `bucket.flat` and change the memory in place; return None where
        these tensors are exchanged one by one."""
        ...


def exchange_bucket_of(compressor: Compressor, bucket: TensorBucket, meet: BucketMeet) -> BucketExchange | None:
    """Return the exchange of a whole bucket, or None where each tensor is exchanged by itself: also where a subclass
    has changed `exchange` and not `exchange_bucket`."""
    whole = implementation(compressor, WholeBucket)
    if whole is None or is_changed_below(compressor, "exchange", "exchange_bucket"):
        return None
    return whole.exchange_bucket(bucket, meet)


@runtime_checkable
class KeepsRest(Protocol):
    """For compressors of whole buckets that find what a result leaves out of the input while they write the result, as
    error feedback wants."""

    def exchange_rest(self, bucket: TensorBucket, rest: Tensor, meet: BucketMeet) -> BucketExchange | None:
        """Do as `exchange_bucket` with the input in `rest`, a flat vector beside the bucket's, and leave there the
        input minus this worker's contribution (the common result where that cannot be told apart), where that is
        finite, and otherwise zero."""
        ...


def exchange_rest_of(
    compressor: Compressor, bucket: TensorBucket, rest: Tensor, meet: BucketMeet
) -> BucketExchange | None:
    """Return the exchange of a bucket that keeps the rest, or None where there is none: also where a subclass has
    changed `exchange` and not `exchange_rest`."""
    keeping = implementation(compressor, KeepsRest)
    if keeping is None or is_changed_below(compressor, "exchange", "exchange_rest"):
        return None
    return keeping.exchange_rest(bucket, rest, meet)


@runtime_checkable
class Joining(Protocol):
    """For compressors of all tensors of a message as one vector; the word `flat` does that for any other."""

    @property
    def joins(self) -> bool:
        """Whether all tensors of a message are compressed as one."""
        ...


def joins_of(compressor: Compressor) -> bool:
    """Return whether all tensors of a message are compressed as one, which must be declared."""
    joining = implementation(compressor, Joining)
    return joining is not None and joining.joins


def takes_vectors(compressor: Compressor, spec: TensorSpec) -> bool:
    """Return whether such a tensor may as well be compressed as a vector, or in pieces of it: its shape changes neither
    whether it is accepted nor the bytes."""
    vector = replace(spec, shape=(spec.numel,))
    if takes_factors_of(compressor) or compressor.accepts(spec) != compressor.accepts(vector):
        return False
    return not compressor.accepts(spec) or prices_of(compressor, spec, 2) == prices_of(compressor, vector, 2)


@runtime_checkable
class AlongEdges(Protocol):
    """For compressors that meet in the way "edge": with one neighbour of a topology at a time."""

    def edge(self, x: Tensor, state: State, meet: Edge) -> Exchange:
        """Exchange with one neighbour alone. The result is the difference between the neighbour's tensor and this
        worker's, as both of them approximate it."""
        ...


def edge_of(compressor: Compressor, x: Tensor, state: State, meet: Edge) -> Exchange:
    """Return the exchange with one neighbour alone; raise an error where the compressor has none."""
    along = implementation(compressor, AlongEdges)
    if along is None:
        raise no_edge(compressor)
    return along.edge(x, state, meet)


def no_edge(compressor: Compressor) -> StrategyError:
    """Return the error of a compressor that has no exchange with one neighbour alone."""
    name = compressor.name or type(compressor).__name__
    return StrategyError(f"{name} exchanges with all workers at once; between neighbours write power_gossip")


@runtime_checkable
class SumsOfIntegers(Protocol):
    """For compressors whose messages are whole numbers that are added, with a step that is known beforehand: so that
    sums can be taken modulo a power of two, as secure aggregation does."""

    def ring_bits(self, size: int) -> int | None:
        """Return the bits in which each sum of `size` workers' numbers fits, or None if they are not added so."""
        ...


def ring_bits_of(compressor: Compressor, size: int) -> int | None:
    """Return the bits in which each sum of `size` workers' whole numbers fits, or None where there are none."""
    summing = implementation(compressor, SumsOfIntegers)
    return None if summing is None else summing.ring_bits(size)


@runtime_checkable
class Casting(Protocol):
    """For compressors that only cast to a shorter format, which can also be used in a message to a single worker."""

    @property
    def wire(self) -> torch.dtype | None:
        """The format that is sent, if casting is all that this compressor does, and otherwise None."""
        ...


def wire_of(compressor: Compressor) -> torch.dtype | None:
    """Return the format that is sent, if casting is all that the compressor does, and otherwise None."""
    casting = implementation(compressor, Casting)
    return None if casting is None else casting.wire


@runtime_checkable
class Transparent(Protocol):
    """For words of a chain that only move what the other words encode, and lose nothing by themselves."""

    @property
    def transparent(self) -> bool:
        """Whether nothing is lost by this word itself."""
        ...


def is_transparent(compressor: Compressor) -> bool:
    """Return whether a word only moves what others encode, which must be declared."""
    moving = implementation(compressor, Transparent)
    return moving is not None and moving.transparent


@runtime_checkable
class Costing(Protocol):
    """For compressors whose encoding takes more than a pass over the elements: what `laconic plan` expects of one that
    nobody has timed."""

    @property
    def cost(self) -> str:
        """The rough cost of encoding: elementwise, reduce, select, transform or matmul."""
        ...


def cost_of(compressor: Compressor) -> str:
    """Return the rough cost of encoding, elementwise unless declared."""
    costing = implementation(compressor, Costing)
    return "elementwise" if costing is None else costing.cost


@runtime_checkable
class DecodedWithMemory(Protocol):
    """For compressors whose messages are decoded with what earlier ones left on the receiver's side, as changes of an
    estimate that all workers share. Who receives the messages of one worker alone, as a server does, has no such
    memory."""

    @property
    def decoded_with_memory(self) -> bool:
        """Whether a message can be decoded only by who decoded all earlier ones."""
        ...


def is_decoded_with_memory(compressor: Compressor) -> bool:
    """Return whether a message can be decoded only by who decoded all earlier ones, which must be declared."""
    remembering = implementation(compressor, DecodedWithMemory)
    return remembering is not None and remembering.decoded_with_memory


def refusal_of_receiver(compressor: Compressor) -> str | None:
    """Return why a receiver that decodes each message by itself cannot take this compressor's, or None if it can."""
    if not is_decoded_with_memory(compressor):
        return None
    return (
        "messages of this compression are decoded with what all workers remember of the earlier ones, and a server "
        "decodes each message by itself"
    )


# ---------------------------------------------------------------------------------------------- bounds of the error


@runtime_checkable
class Unbiased(Protocol):
    """For compressors whose result is right in the mean over their random draws."""

    def variance(self, spec: TensorSpec) -> float | None:
        """Return ω if C is unbiased with E|C(v) - v|² ≤ ω|v|², or None if it makes no such promise."""
        ...


def variance_of(compressor: Compressor, spec: TensorSpec) -> float | None:
    """Return ω if the compressor is unbiased with E|C(v) - v|² ≤ ω|v|², or None if it makes no such promise."""
    unbiased = implementation(compressor, Unbiased)
    return None if unbiased is None else unbiased.variance(spec)


@runtime_checkable
class Contracting(Protocol):
    """For compressors whose error is smaller than what they compress, as error feedback wants; an unbiased one with ω
    below 1 need not say so."""

    def contraction(self, spec: TensorSpec) -> float | None:
        """Return δ if E|C(v) - v|² ≤ (1 - δ)|v|², or None if C makes no such promise."""
        ...


def contraction_of(compressor: Compressor, spec: TensorSpec) -> float | None:
    """Return δ if E|C(v) - v|² ≤ (1 - δ)|v|², or None if the compressor makes no such promise."""
    contracting = implementation(compressor, Contracting)
    if contracting is None:
        return contraction_from(variance_of(compressor, spec))
    return contracting.contraction(spec)


def contraction_from(variance: float | None) -> float | None:
    """Return the δ that an unbiased compressor with this ω has without being scaled, or None if it has none."""
    return None if variance is None or variance >= 1 else 1 - variance


@runtime_checkable
class PartlyRandom(Protocol):
    """For compressors that are biased as a whole and round at random what they send."""

    def spread(self, spec: TensorSpec) -> float:
        """Return ω of the part that is rounded at random, whatever else is left out: what error feedback must be
        guarded against."""
        ...


def spread_of(compressor: Compressor, spec: TensorSpec) -> float:
    """Return ω of the part that is rounded at random: that of the whole, unless the compressor says otherwise."""
    partly = implementation(compressor, PartlyRandom)
    return variance_of(compressor, spec) or 0.0 if partly is None else partly.spread(spec)


# ---------------------------------------------------------------------------------------------- memory


@runtime_checkable
class Conserving(Protocol):
    """For compressors whose state holds a part of the sum over all workers, as an error memory does."""

    @property
    def conserved(self) -> tuple[str, ...]:
        """The state entries whose sum over workers is kept when the number of workers changes; of the others, rank 0's
        are kept."""
        ...


def conserved_of(compressor: Compressor) -> tuple[str, ...]:
    """Return the state entries whose sum over workers is kept when the number of workers changes, none unless
    declared."""
    conserving = implementation(compressor, Conserving)
    return () if conserving is None else conserving.conserved


@runtime_checkable
class AddsMemories(Protocol):
    """For compressors with conserved state entries that are encoded, so that their elements cannot be added."""

    def add_memories(self, entry: str, memories: Sequence[Tensor]) -> Tensor:
        """Return the entry that holds the sum of what several workers have in it."""
        ...


def added_memories(compressor: Compressor, entry: str, memories: Sequence[Tensor]) -> Tensor:
    """Return the conserved entry that holds the sum of what several workers have in it: of its elements, unless the
    compressor encodes them."""
    adding = implementation(compressor, AddsMemories)
    if adding is not None:
        return adding.add_memories(entry, memories)
    total = torch.zeros_like(memories[0])
    for memory in memories:
        total = total + memory
    return total


@runtime_checkable
class RefusesMemory(Protocol):
    """For compressors around which error feedback makes no sense, as those with a memory of their own."""

    @property
    def refuses_memory(self) -> str | None:
        """The reason why error feedback must not wrap this compressor, or None if it may."""
        ...


def refusal_of_memory(compressor: Compressor) -> str | None:
    """Return the reason why error feedback must not wrap this compressor, or None if it may."""
    refusing = implementation(compressor, RefusesMemory)
    return None if refusing is None else refusing.refuses_memory


def has_memory(compressor: Compressor) -> bool:
    """Return whether steps depend on earlier ones, so that a second backward before `step()` makes no sense."""
    return bool(conserved_of(compressor) or compressor.init(TensorSpec("any", (2, 2), torch.float32)))


def memory_bytes(compressor: Compressor, specs: Sequence[TensorSpec]) -> int:
    """Return the bytes of the state for such tensors, without allocating any of it."""
    with torch.device("meta"):
        states = [compressor.init(spec) for spec in specs if compressor.accepts(spec)]
    return sum(tensor.nbytes for state in states for tensor in state.values())


# ---------------------------------------------------------------------------------------------- input


@runtime_checkable
class TakesSettings(Protocol):
    """For compressors that do a part of the optimizer's work, as DGC does with momentum."""

    @property
    def takes(self) -> tuple[str, ...]:
        """Settings of the user's optimizer that this compressor applies itself: they are zero in the optimizer while it
        is in use, and are found in `meet.settings`."""
        ...


def takes_of(compressor: Compressor) -> tuple[str, ...]:
    """Return the settings of the user's optimizer that the compressor applies itself, none unless declared."""
    taking = implementation(compressor, TakesSettings)
    return () if taking is None else taking.takes


@runtime_checkable
class TakesFactors(Protocol):
    """For compressors that send a linear layer's inputs and output gradients in place of their product."""

    @property
    def takes_factors(self) -> bool:
        """Whether it asks for the factors that a linear layer's gradient is the product of (`meet.factors`), which must
        be kept for it."""
        ...


def takes_factors_of(compressor: Compressor) -> bool:
    """Return whether the factors of linear layers' gradients must be kept for the compressor."""
    taking = implementation(compressor, TakesFactors)
    return taking is not None and taking.takes_factors
