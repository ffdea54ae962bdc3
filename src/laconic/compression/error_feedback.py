"""Error feedback: what was not said today is added to what is said tomorrow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from laconic.compression.base import Compressor, Exchange, Exchanges, Outcome, State
from laconic.compression.codec import Codec
from laconic.compression.wrapper import Keeping, Wrapping, inner_of, within
from laconic.kernels.messages import finite
from laconic.registry import knob, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet


@technique(
    "error_feedback",
    aliases=["ef", "memory"],
    paper="Seide et al., Interspeech 2014; Karimireddy et al., ICML 2019",
    formula="v = x + e, say C(v), e ← v - C(v)",
)
@dataclass(frozen=True)
class ErrorFeedback(Wrapping):
    """What was not said today is added to what is said tomorrow: the word `ef`, which wraps the chain before it.

    `Remembering`, which the chain becomes, does the work. `decay` below 1 forgets (SparseLoCo); `low_pass` below 1 lets
    the memory follow slowly (ScaleCom); `inside` keeps it in changes of parameters, so that a new learning rate does
    not rescale old errors (EF-SignSGD, Mem-SGD).
    """

    decay: float = knob(1.0, above=0, high=1, doc="what is kept of the memory when it is added")
    low_pass: float = knob(1.0, above=0, high=1, doc="how far the memory goes towards the new error")
    inside: bool = knob(False, doc="whether the learning rate is inside the memory")

    def objects(self, inner: Compressor) -> str | None:
        return inner.refuses_memory

    def around(self, inner: Compressor) -> Compressor:
        return Remembering(inner, self)


@dataclass(frozen=True)
class Remembering(Keeping):
    """v = x + e goes into the inner compressor; e becomes v minus what it said.

    Invariant, whatever the inner compressor does: the sum of all that was said plus the last e is the sum of all
    inputs. What the inner compressor says of itself is its own message, or the common result where that cannot be told
    apart (PowerSGD). Around an unbiased compressor whose variance ω is above 1 the memory would grow for ever: there
    what was said counts 1/(1+ω), which is a contraction. (Where v is not finite the memory is dropped: an overflow must
    not be remembered for ever.)
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
        """In as few passes over memory as the codec knows."""
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
        """All tensors in one launch, and in one message."""
        errors = [state["error"].view(-1) for state in states]
        rows = yield meets[0].gather(codec.feed_all([x.reshape(-1) for x in xs], errors, meets))
        means = codec.means(rows, [x.numel() for x in xs])
        return [Outcome(mean.view(x.shape), state) for mean, x, state in zip(means, xs, states, strict=True)]

    def _general(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        rate = meet.rate if self.how.inside else 1.0
        share, before = counted(self.inner, x), state["error"]
        wanted = rate * x + self.how.decay * before
        said = yield from self.inner.exchange(wanted.clone(), inner_of(state), meet)
        own = said.result if said.sent is None else said.sent
        error = wanted - share * own.view_as(wanted)
        if self.how.low_pass < 1:
            error = before + self.how.low_pass * (error - before)
        state = {"error": finite(error), **within(said.state)}
        result = said.result * (share / rate) if rate else torch.zeros_like(said.result)
        return Outcome(result, state, share * own)


def counted(inner: Compressor, x: Tensor) -> float:
    """How much of what such a compressor says of such a tensor a memory takes for said."""
    omega = inner.spread(TensorSpec("", tuple(x.shape), x.dtype))
    return 1.0 if omega <= 1 else 1 / (1 + omega)
