"""What a compressor may have beside its core: how it is asked for, and that wrappers pass it on."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from laconic import registry
from laconic.compression import optional
from laconic.compression.base import Compressor, Exchange, Outcome, State
from laconic.compression.bucket import BucketExchange, BucketMeet, Moment, TensorBucket
from laconic.compression.flat import Joint
from laconic.compression.wrapper import Wrapper
from laconic.errors import StrategyError
from laconic.runtime.meeting import EdgeMeeting, Meeting
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Edge, Meet, Meets
from tests.compression.table import compressor

SPEC = TensorSpec("x", (4, 5), torch.float32)
BUCKET = TensorBucket((SPEC,), torch.arange(20.0))
BUCKET_MEET = BucketMeet(0, 2, False, (SPEC,), Moment(7, 1.0, lambda spec: Meeting(0, 2, 7, spec.name)))
PROTOCOLS = [kind for _, kind in inspect.getmembers(optional, inspect.isclass) if kind.__module__ == optional.__name__]
CORE = ("meets", "asks", "accepts", "init", "exchange", "payload_bytes")
ARGUMENTS: dict[str, Any] = {
    "spec": SPEC,
    "size": 3,
    "x": torch.arange(20.0),
    "bucket": BUCKET,
    "entry": "left",
    "memories": [torch.ones(2), torch.ones(2)],
    "rest": torch.arange(20.0),
    "state": {},
}
"""What members are called with; `meet` is a meeting of two neighbours in `edge`, and of all workers elsewhere."""


def members(protocol: type) -> list[str]:
    """Return the names that a protocol asks for."""
    return [name for name in vars(protocol) if not name.startswith("_")]


OPTIONAL = [name for protocol in PROTOCOLS for name in members(protocol)]


@dataclass(frozen=True)
class Plain(Compressor):
    """A compressor that implements nothing but the core."""

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        mean = yield meet.mean(x.clone())
        return Outcome(mean, state)

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return 4 * spec.numel


def _answer(*values: object) -> Any:
    """Return a generator that asks for nothing and ends with these values."""
    return values
    yield


@dataclass(frozen=True)
class Everything(Compressor):
    """A compressor that implements every protocol, with values that no default has."""

    joins = True
    transparent = True
    decoded_with_memory = True
    cost = "transform"
    takes = ("momentum", "weight_decay")
    takes_factors = True
    wire = torch.float16
    settling = 17
    conserved = ("left", "right")
    refuses_memory = "it remembers enough"
    asks = (int,)

    @property
    def meets(self) -> Meets:
        return "merge"

    def accepts(self, spec: TensorSpec) -> bool:
        return spec.shape == SPEC.shape

    def init(self, spec: TensorSpec) -> State:
        return {"left": torch.full(spec.shape, 0.5)}

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        return _answer("one", x.sum().item(), sorted(state), meet.step)  # type: ignore[no-any-return]

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return 1000 * spec.numel + size

    def ring_bits(self, size: int) -> int:
        return 20 + size

    def prices(self, spec: TensorSpec, size: int) -> tuple[tuple[Meets, int], ...]:
        return ("ring", 1000 * spec.numel), ("gather", size)

    def variance(self, spec: TensorSpec) -> float | None:
        return 11.0 * spec.numel

    def contraction(self, spec: TensorSpec) -> float | None:
        return 0.125 / spec.numel

    def spread(self, spec: TensorSpec) -> float:
        return 13.0 * spec.numel

    def exchange_bucket(self, bucket: TensorBucket, meet: BucketMeet) -> BucketExchange | None:
        return _answer("bucket", bucket.lengths, meet.step)  # type: ignore[no-any-return]

    def exchange_rest(self, bucket: TensorBucket, rest: Tensor, meet: BucketMeet) -> BucketExchange | None:
        return _answer("rest", bucket.lengths, rest.tolist(), meet.step)  # type: ignore[no-any-return]

    def add_memories(self, entry: str, memories: Sequence[Tensor]) -> Tensor:
        return 3 * sum(memories, start=torch.zeros(())).sum().item() + len(entry)  # type: ignore[return-value, no-any-return]

    def edge(self, x: Tensor, state: State, meet: Edge) -> Exchange:
        return _answer("edge", x.sum().item(), sorted(state), meet.other)  # type: ignore[no-any-return]


def value(of: object, member: str) -> Any:
    """Return a property, or what a method returns for `ARGUMENTS`; of a generator, what it ends with."""
    found = getattr(of, member)
    if not callable(found):
        return found
    meets = {"edge": EdgeMeeting(0, 2, 7, "x", other=1), "exchange_bucket": BUCKET_MEET, "exchange_rest": BUCKET_MEET}
    given = ARGUMENTS | {"meet": meets.get(member, Meeting(0, 2, 7, "x"))}
    found = found(**{name: given[name] for name in inspect.signature(found).parameters})
    if inspect.isgenerator(found):
        with pytest.raises(StopIteration) as end:
            next(found)
        return end.value.value
    return {key: x.tolist() for key, x in found.items()} if isinstance(found, dict) else found


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda kind: kind.__name__)
def test_a_wrapper_forwards_every_protocol(protocol: type) -> None:
    inner = Everything()
    assert isinstance(inner, protocol), "give Everything what this protocol asks for"
    assert not isinstance(Plain(), protocol)
    for made in (Wrapper(inner), Wrapper(Wrapper(inner))):
        assert isinstance(made, protocol)
        for member in members(protocol):
            assert value(made, member) == value(inner, member)


@pytest.mark.parametrize("member", CORE)
def test_a_wrapper_forwards_the_core(member: str) -> None:
    assert value(Wrapper(Everything()), member) == value(Everything(), member)


def test_the_core_is_all_that_a_compressor_has() -> None:
    assert {name for name in vars(Compressor) if not name.startswith("_")} == {"axis", *CORE}


def test_around_a_compressor_without_it_a_wrapper_says_what_holds_without() -> None:
    plain, made = Plain(), Wrapper(Plain())
    assert optional.prices_of(made, SPEC, 3) == optional.prices_of(plain, SPEC, 3) == (("reduce", 80),)
    assert optional.variance_of(made, SPEC) is optional.contraction_of(made, SPEC) is None
    assert optional.spread_of(made, SPEC) == optional.settling_of(made) == 0
    assert not optional.joins_of(made) and not optional.takes_of(made) and not optional.takes_factors_of(made)
    assert not optional.is_decoded_with_memory(made)
    assert optional.wire_of(made) is optional.refusal_of_memory(made) is None
    assert not optional.conserved_of(made) and not optional.has_memory(made)
    assert optional.exchange_bucket_of(made, BUCKET, BUCKET_MEET) is None
    with pytest.raises(StrategyError, match="Plain exchanges with all workers at once"):
        optional.edge_of(made, torch.zeros(2), {}, EdgeMeeting(0, 2, 0, "x", other=1))


def test_a_wrapper_with_messages_of_its_own_makes_no_promise_for_them() -> None:
    class Doubling(Wrapper):
        def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
            return self.inner.exchange(2 * x, state, meet)

    made = Doubling(Everything())
    assert optional.variance_of(made, SPEC) is optional.contraction_of(made, SPEC) is optional.wire_of(made) is None
    assert optional.spread_of(made, SPEC) == 0
    assert optional.exchange_bucket_of(made, BUCKET, BUCKET_MEET) is None
    with pytest.raises(StrategyError, match="Doubling exchanges with all workers at once"):
        optional.edge_of(made, torch.zeros(2), {}, EdgeMeeting(0, 2, 0, "x", other=1))
    assert optional.conserved_of(made) == ("left", "right") and optional.settling_of(made) == 17


def test_a_chain_keeps_what_its_compressor_promises() -> None:
    assert optional.variance_of(compressor("flat+qsgd"), SPEC) == optional.variance_of(compressor("qsgd"), SPEC)
    assert optional.contraction_of(compressor("flat+topk"), SPEC) == optional.contraction_of(compressor("topk"), SPEC)
    assert optional.wire_of(compressor("flat+bf16")) == torch.bfloat16
    assert optional.variance_of(compressor("flat+qsgd+ef"), SPEC) is None
    assert optional.joins_of(compressor("flat+topk+ef"))
    assert not Joint(Everything()).takes_factors


@pytest.mark.parametrize("omega, delta", [(None, None), (0.25, 0.75), (1.0, None)])
def test_a_small_variance_is_a_contraction(omega: float | None, delta: float | None) -> None:
    class Rounding(Plain):
        def variance(self, spec: TensorSpec) -> float | None:
            return omega

    assert optional.contraction_of(Rounding(), SPEC) == delta
    assert optional.spread_of(Rounding(), SPEC) == (omega or 0.0)


def _family(kind: type) -> list[type]:
    return [kind, *(below for child in kind.__subclasses__() for below in _family(child))]


def test_every_compressor_spells_protocols_as_they_are() -> None:
    registry.load()
    declared = {name: inspect.getattr_static(p, name) for p in PROTOCOLS for name in members(p)}
    for kind in _family(Compressor):
        for name in OPTIONAL:
            own, asked = vars(kind).get(name), declared[name]
            if own is not None and inspect.isfunction(asked):
                assert inspect.isfunction(own), f"{kind.__qualname__}.{name}"
                assert list(inspect.signature(own).parameters) == list(inspect.signature(asked).parameters), kind
            elif own is not None:
                assert not inspect.isfunction(own), f"{kind.__qualname__}.{name} must be a property"


def test_memories_of_several_workers_are_added() -> None:
    memories = [torch.tensor([1.0, 2.0]), torch.tensor([0.5, -4.0]), torch.tensor([0.0, 1.0])]
    for made in (Plain(), Wrapper(Plain()), compressor("topk+ef")):
        assert optional.added_memories(made, "error", memories).tolist() == [1.5, -1.0]
    assert memories[0].tolist() == [1.0, 2.0], "and stay as they are"
