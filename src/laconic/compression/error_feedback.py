"""Error feedback: what was not said today is added to what is said tomorrow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from laconic.compression.base import Compressor, Exchange, Outcome, State, TensorSpec
from laconic.errors import StrategyError
from laconic.registry import technique
from laconic.worker import Meet


@technique(
    "error_feedback",
    aliases=["ef", "memory"],
    paper="Seide et al., Interspeech 2014; Karimireddy et al., ICML 2019",
)
@dataclass(frozen=True)
class ErrorFeedback(Compressor):
    """What was not said today is added to what is said tomorrow: the word `ef`, which wraps the chain before it.

    `Remembering`, which the chain becomes, does the work.
    """

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        raise StrategyError("error feedback wraps a compressor: write it last in a chain, as in `bf16+ef`")

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return 0


@dataclass(frozen=True)
class Remembering(Compressor):
    """v = x + e goes into the inner compressor; e becomes v minus what it said.

    Invariant, whatever the inner compressor does: the sum of all that was said plus the last e is the sum of all
    inputs. (Where v is not finite the memory is dropped: an overflow must not be remembered for ever.)
    """

    inner: Compressor

    @property
    def meets(self) -> Literal["reduce", "gather"]:
        return self.inner.meets

    @property
    def conserved(self) -> tuple[str, ...]:
        return "error", *(f"inner.{key}" for key in self.inner.conserved)

    def accepts(self, spec: TensorSpec) -> bool:
        return self.inner.accepts(spec)

    def init(self, spec: TensorSpec) -> State:
        inner = {f"inner.{key}": value for key, value in self.inner.init(spec).items()}
        return {"error": torch.zeros(spec.shape, dtype=spec.dtype), **inner}

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        wanted = x + state["error"]
        inner = {key.removeprefix("inner."): value for key, value in state.items() if key.startswith("inner.")}
        said = yield from self.inner.exchange(wanted.clone(), inner, meet)
        error = wanted - (said.result if said.sent is None else said.sent).view_as(wanted)
        error.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
        state = {"error": error, **{f"inner.{key}": value for key, value in said.state.items()}}
        return Outcome(said.result, state, said.sent)

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return self.inner.payload_bytes(spec, size)
