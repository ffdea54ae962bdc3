"""Error feedback: what a message leaves out is added to the input of the next one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from laconic.compression.base import Compressor, Exchange, Exchanges, Outcome, State
from laconic.compression.codec import Codec
from laconic.compression.optional import refusal_of_memory, spread_of
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
    new learning rate does not rescale old errors (EF-SignSGD, Mem-SGD).
    """

    decay: float = knob(1.0, above=0, high=1, doc="share of the memory that is kept when it is added")
    low_pass: float = knob(1.0, above=0, high=1, doc="how far the memory moves towards the new error")
    inside: bool = knob(False, doc="whether the learning rate is inside the memory")

    def objects(self, inner: Compressor) -> str | None:
        return refusal_of_memory(inner)

    def guarantee(self, omega: float | None, delta: float | None) -> str | None:
        return None if delta is None else after_burn_in("error feedback", delta)

    def around(self, inner: Compressor) -> Compressor:
        return Remembering(inner, self)


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
        return x.dtype == torch.float32 and self.how == ErrorFeedback() and counted(self.inner, x) == 1.0

    def _fused(self, codec: Codec, x: Tensor, state: State, meet: Meet) -> Exchange:
        """Exchange with as few passes over memory as the codec has."""
        error = state["error"]
        payload = codec.feed(x, error, meet)
        mean = yield from codec.average(payload, x, meet)
        return Outcome(mean, {"error": error})

    def exchange_all(self, xs: Sequence[Tensor], states: Sequence[State], meets: Sequence[Meet]) -> Exchanges | None:
        codec = self.inner
        if not isinstance(codec, Codec) or not codec.lists or not all(map(self._is_plain, xs)):
            return None
        return self._fused_all(codec, xs, states, meets)

    def _fused_all(
        self, codec: Codec, xs: Sequence[Tensor], states: Sequence[State], meets: Sequence[Meet]
    ) -> Exchanges:
        """Encode all tensors in one launch, and send them in one message."""
        errors = [state["error"].view(-1) for state in states]
        rows = yield meets[0].gather(codec.feed_all([x.reshape(-1) for x in xs], errors, meets))
        means = codec.means(rows, [x.numel() for x in xs])
        return [Outcome(mean.view(x.shape), state) for mean, x, state in zip(means, xs, states, strict=True)]

    def _general(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        rate = meet.rate if self.how.inside else 1.0
        share, before = counted(self.inner, x), state["error"]
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


def counted(inner: Compressor, x: Tensor) -> float:
    """Return the share of a decoded message that the memory counts as sent, for such a compressor and tensor."""
    omega = spread_of(inner, TensorSpec("", tuple(x.shape), x.dtype))
    return 1.0 if omega <= 1 else 1 / (1 + omega)
