"""ECQ-SGD: an error memory that is added weakly and fades, which keeps it stable around any variance."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from laconic.compression.base import Compressor, Exchange, Outcome, State
from laconic.compression.optional import refusal_of_memory
from laconic.compression.wrapper import StatefulWrapper, Wrapping, inner_of, within
from laconic.registry import knob, named_sentence, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet


@technique(
    "compensation",
    paper="Wu, Huang, Huang, Zhang (ECQ-SGD), ICML 2018",
    formula="u = g + αh, q = C(u), h ← βh + g - q",
)
@dataclass(frozen=True)
class Compensation(Wrapping):
    """An error memory that is added with weight alpha and fades by beta: u = g + alpha·h is compressed to q.

    The memory h becomes beta·h + g - q. With both coefficients at 1 this is `ef` without its guard, which diverges
    around a variance above 1, where `ef` counts less of what was sent; here weaker coefficients do that. alpha=0 is the
    quantiser alone.
    """

    alpha: float = knob(0.2, low=0, high=1, doc="weight with which old errors are added")
    beta: float = knob(0.9, above=0, high=1, doc="share of the old errors that is kept in the next step")

    def objects(self, inner: Compressor) -> str | None:
        return refusal_of_memory(inner)

    def around(self, inner: Compressor) -> Compressor:
        return Compensated(inner, self)


@dataclass(frozen=True)
class Compensated(StatefulWrapper):
    """The compressor that a chain with `compensation` becomes.

    A value that is not finite is in the result, and not in the memory h.
    """

    how: Compensation

    @property
    def refuses_memory(self) -> str | None:
        return "it has a memory of its own; write qsgd+compensation"

    @property
    def kept(self) -> tuple[str, ...]:
        return ("errors",)

    def begin(self, spec: TensorSpec) -> State:
        return {"errors": torch.zeros(spec.shape, dtype=spec.dtype)}

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        before = state["errors"]
        outcome = yield from self.inner.exchange(x + self.how.alpha * before, inner_of(state), meet)
        own = outcome.result if outcome.sent is None else outcome.sent
        errors = self.how.beta * before + (x - own.view_as(x))
        kept = {"errors": errors.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0), **within(outcome.state)}
        return Outcome(outcome.result, kept, own)


named_sentence(
    "ecq_sgd",
    "bsp / qsgd(levels=4)+compensation(0.2, 0.9) / allreduce",
    axis="compression",
    paper="Wu, Huang, Huang, Zhang, ICML 2018",
    doc="""Stochastic quantisation that old errors correct a little, and less the older they are.

    Reading chosen: QSGD's norm and widths; both coefficients are from a simulation, since the paper's defaults are not
    known.
    """,
    formula="q = QSGD(g + 0.2h), h ← 0.9h + g - q",
)
