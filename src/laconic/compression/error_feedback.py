"""Error feedback: what a message leaves out is added to the input of the next one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from laconic.compression.base import Compressor, Exchange, Outcome, State
from laconic.compression.bucket import BucketExchange, BucketMeet, TensorBucket
from laconic.compression.codec import Codec
from laconic.compression.optional import exchange_bucket_of, exchange_rest_of, refusal_of_memory, spread_of
from laconic.compression.rounded_memory import RoundedMemory
from laconic.compression.wrapper import Memory, StatefulWrapper, inner_of, within
from laconic.kernels.messages import finite
from laconic.registry import knob, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet


@technique(
    "error_feedback",
    aliases=["ef", "memory"],
    paper="Seide et al., Interspeech 2014; Karimireddy et al., ICML 2019",
    formula="v = x + e, send C(v), e ← v - C(v)",
)
@dataclass(frozen=True)
class ErrorFeedback(Memory):
    """Error feedback: what a message left out is added to the next step's input; it wraps the chain before it.

    The word is `ef`; `Remembering`, which the chain becomes, does the work. `decay` below 1 forgets (SparseLoCo);
    `low_pass` below 1 lets the memory follow slowly (ScaleCom); `inside` keeps it in changes of parameters, so that a
    new learning rate does not rescale old errors (EF-SignSGD, Mem-SGD). A memory of 16 or 8 bits (`precision`; with
    4, MicroAdam, Modoranu et al., NeurIPS 2024) is rounded at random between steps: what was sent plus the memory is
    the sum of all inputs in the mean, and to the rounding of the memory in each step.
    """

    decay: float = knob(1.0, above=0, high=1, doc="share of the memory that is kept when it is added")
    low_pass: float = knob(1.0, above=0, high=1, doc="how far the memory moves towards the new error")
    inside: bool = knob(False, doc="whether the learning rate is inside the memory")
    precision: str = knob("full", choices=("full", "bf16", "int8"), doc="how a value of the memory is kept")

    def objects(self, inner: Compressor) -> str | None:
        return refusal_of_memory(inner)

    def guarantee(self, omega: float | None, delta: float | None) -> str | None:
        return None if delta is None else after_burn_in("error feedback", delta)

    def around(self, inner: Compressor) -> Compressor:
        exact = Remembering(inner, replace(self, precision="full"))
        return exact if self.precision == "full" else RoundedMemory(exact, self.precision)


@dataclass(frozen=True)
class Remembering(StatefulWrapper):
    """A compressor with an error memory e: v = x + e is compressed by the inner one, and e becomes v minus what was
    sent.

    Invariant, whatever the inner compressor does: the sum of all that was sent plus the last e is the sum of all
    inputs. What was sent is the worker's own decoded message, or the common result where the own part cannot be
    separated from it (PowerSGD). Around an unbiased compressor whose variance ω is above 1 the memory would grow for
    ever: there what was sent counts 1/(1+ω), which is a contraction. (Where v is not finite the memory is dropped: an
    overflow must not be remembered for ever.)
    """

    how: ErrorFeedback = field(default_factory=ErrorFeedback)

    @property
    def kept(self) -> tuple[str, ...]:
        return ("error",)

    def begin(self, spec: TensorSpec) -> State:
        return {"error": torch.zeros(spec.shape, dtype=spec.dtype)}

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        if isinstance(self.inner, Codec) and self.inner.meets == "gather" and self._is_plain(x):
            return self._fused(self.inner, x, state, meet)
        return self._general(x, state, meet)

    def _is_plain(self, x: Tensor) -> bool:
        return x.dtype == torch.float32 and self.how == ErrorFeedback() and counted(self.inner, _spec_of(x)) == 1.0

    def _fused(self, codec: Codec, x: Tensor, state: State, meet: Meet) -> Exchange:
        """Exchange with as few passes over memory as the codec has."""
        error = state["error"]
        payload = codec.feed(x, error, meet)
        mean = yield from codec.average(payload, x, meet)
        return Outcome(mean, {"error": error})

    def exchange_bucket(self, bucket: TensorBucket, meet: BucketMeet) -> BucketExchange | None:
        codec = self.inner
        shares = bucket.fact("shares", lambda: [counted(codec, spec) for spec in bucket.specs])
        plain, alone = self.how == ErrorFeedback(), set(shares) == {1.0}
        if plain and isinstance(codec, Codec) and codec.feeds(bucket):
            return self._fused_bucket(codec, bucket, meet, None if alone else shares)
        alone = alone and plain and bucket.flat.dtype == torch.float32
        rest = exchange_rest_of(codec, bucket.inner, bucket.vectors["error"], meet) if alone else None
        if rest is not None:
            return self._rest_bucket(rest, bucket, meet)
        exchange = exchange_bucket_of(codec, bucket.inner, replace(meet, own=True))
        return None if exchange is None else self._general_bucket(exchange, shares, bucket, meet)

    def _fused_bucket(
        self, codec: Codec, bucket: TensorBucket, meet: BucketMeet, shares: Sequence[float] | None
    ) -> BucketExchange:
        """Encode all tensors with as few passes over memory as the codec has."""
        return codec.feed_bucket(bucket, bucket.memory("error"), meet, shares)

    def _rest_bucket(self, exchange: BucketExchange, bucket: TensorBucket, meet: BucketMeet) -> BucketExchange:
        """Compress the memory itself, to which the input is added: the inner exchange leaves the new one there."""
        bucket.vectors["error"].add_(bucket.flat)
        own = yield from exchange
        return bucket.flat.clone() if meet.own and own is None else own

    def _general_bucket(
        self, exchange: BucketExchange, shares: Sequence[float], bucket: TensorBucket, meet: BucketMeet
    ) -> BucketExchange:
        rate = meet.rate if self.how.inside else 1.0
        flat, error = bucket.flat, bucket.vectors["error"]
        before = error.clone() if self.how.low_pass < 1 else None
        if rate != 1:
            flat.mul_(rate)
        if self.how.decay != 1:
            error.mul_(self.how.decay)
        flat.copy_(error.add_(flat))
        own = yield from exchange
        own = flat if own is None else own
        counts = own if set(shares) == {1.0} else bucket.scaled(own, shares)
        error.sub_(counts)
        if before is not None:
            error.sub_(before).mul_(self.how.low_pass).add_(before)
        finite(error)
        sent = counts.clone() if meet.own and counts is flat else counts
        if rate == 0:
            flat.zero_()
        elif any(share / rate != 1 for share in shares):
            flat.copy_(bucket.scaled(flat, [share / rate for share in shares]))
        return sent if meet.own else None

    def _general(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        rate = meet.rate if self.how.inside else 1.0
        share, before = counted(self.inner, _spec_of(x)), state["error"]
        wanted = rate * x + self.how.decay * before
        outcome = yield from self.inner.exchange(wanted.clone(), inner_of(state), meet)
        own = outcome.result if outcome.sent is None else outcome.sent
        error = wanted - share * own.view_as(wanted)
        if self.how.low_pass < 1:
            error = before + self.how.low_pass * (error - before)
        state = {"error": finite(error), **within(outcome.state)}
        result = outcome.result * (share / rate) if rate else torch.zeros_like(outcome.result)
        return Outcome(result, state, share * own)


def after_burn_in(memory: str, delta: float) -> str:
    """Return what such a memory guarantees around a contraction δ."""
    return f"contraction (δ = {delta:.2g}) with {memory}: SGD's rate after a burn-in of order 1/δ"


def counted(inner: Compressor, spec: TensorSpec) -> float:
    """Return the share of a decoded message that the memory counts as sent, for such a compressor and tensor."""
    omega = spread_of(inner, spec)
    return 1.0 if omega <= 1 else 1 / (1 + omega)


def _spec_of(x: Tensor) -> TensorSpec:
    return TensorSpec("", tuple(x.shape), x.dtype)
