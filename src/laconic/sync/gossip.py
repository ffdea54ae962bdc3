"""Decentralised SGD: every worker keeps its own model and mixes it with those of its neighbours."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from typing_extensions import TypeVar

from laconic.registry import technique
from laconic.sync.base import State, Sync
from laconic.sync.contexts import MixingContext
from laconic.sync.tensor_lists import copies, copy_into, keep, kept
from laconic.topology.mixing import Matrix
from laconic.worker import Communication

_MIX = "mix"


Mixes = TypeVar("Mixes", bound=MixingContext, contravariant=True, default=MixingContext)


class Gossiping(Sync[Mixes]):
    """The base of rules whose workers mix their models with neighbours after a step.

    They use the optimizer's update u = x before − x after in place of learning rate times gradient, so that momentum,
    Adam and weight decay work. The optimizer's state stays on its worker.
    """

    talks: ClassVar[str] = "mix"
    needs: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "compression": ("none", "cast_fp16", "cast_bf16", "power_gossip"),
    }
    late: ClassVar[bool] = True
    replicas_differ: ClassVar[bool] = True

    @property
    def guarantee(self) -> str:
        return "workers agree in the limit only: SGD's rate after a transient that the graph sets (Lian et al., 2017)"

    def init(self, context: Mixes) -> State:
        self.check(context)
        return self.begin(context)

    @abstractmethod
    def check(self, context: Mixes) -> None:
        """Refuse mixing weights with which the rule would not work."""

    def begin(self, context: Mixes) -> State:
        """Return the rule's state while all models are equal."""
        return {}

    def settle(self, context: Mixes, state: State) -> Communication[State]:
        """Replace all models by their mean, and begin with a fresh state."""
        yield from self.leave(context, state)
        return self.begin(context)


@technique("dpsgd", aliases=["d_psgd", "decentralized_sgd"], paper="Lian et al., NIPS 2017")
@dataclass(frozen=True)
class DPSGD(Gossiping):
    """x_i = (sum over neighbours j of W_ij·x_j) − u_i, with models mixed while the next gradient is computed.

    x_i is worker i's model, u_i its optimizer's update and W the mixing weights. The exchange begins right after a step
    and is waited for after the next one, so that it costs time only where it takes longer than computing. The mean of
    all models moves by the mean of the updates exactly.
    """

    def check(self, context: MixingContext) -> None:
        context.mixing().must_be(self.name, "doubly")

    def begin(self, context: MixingContext) -> State:
        return keep("x", copies(context.parameters))

    @torch.no_grad()
    def after_step(self, context: MixingContext, state: State) -> Communication[State]:
        everything = range(len(context.parameters))
        before = kept(state, "x", everything)
        mixed = (yield from context.wait_for(_MIX)) if context.is_in_flight(_MIX) else before  # at first all are equal
        copy_into(context.parameters, [m + (p - x) for m, p, x in zip(mixed, context.parameters, before, strict=True)])
        x = copies(context.parameters)
        context.start(_MIX, context.mix(x, context.mixing().at(context.step + 1)))
        return keep("x", x)

    def leave(self, context: MixingContext, state: State) -> Communication[None]:
        """Complete the exchange in flight, so that no worker is left waiting, and replace all models by their mean."""
        if context.is_in_flight(_MIX):
            yield from context.wait_for(_MIX)
        yield from super().leave(context, state)


@technique("d2", aliases=["d_squared", "exact_diffusion"], paper="Tang et al., ICML 2018")
@dataclass(frozen=True)
class D2(Gossiping):
    """D-PSGD for workers whose data differ: each adds back what the last mixing took from it.

    y_i = x_i − u_i + c_i, x_i = sum over j of W_ij·y_j, and the correction c_i becomes x_i minus the model before
    mixing: written out, this is 2·x − x_before − u + u_before, with one model of memory. Where the learning rate has
    changed, c is scaled with it, since it stands for rate times a difference of gradients. It needs lambda_min(W) >
    −1/3; (W + I)/2 replaces a W without that, and a notice says so.
    """

    def check(self, context: MixingContext) -> None:
        weights = context.mixing().must_be(self.name, "doubly", "symmetric", "static")
        if _too_negative(weights.lambda_min) and context.group.rank == 0:
            print(
                f"laconic: {self.name} needs mixing weights with lambda_min above -1/3, and these have "
                f"{weights.lambda_min:.4g}; (W + I)/2 takes their place",
                file=sys.stderr,
            )

    def begin(self, context: MixingContext) -> State:
        state = keep("correction", [torch.zeros_like(p) for p in context.parameters])
        return state | {"rate": torch.zeros((), dtype=torch.float64)}

    @staticmethod
    def matrix(context: MixingContext) -> Matrix:
        """Return the mixing matrix: W, or (W + I)/2 where W has too negative an eigenvalue."""
        weights = context.mixing()
        w = weights.at(0)
        return (w + np.eye(len(w))) / 2 if _too_negative(weights.lambda_min) else w

    @torch.no_grad()
    def after_step(self, context: MixingContext, state: State) -> Communication[State]:
        before, rate = float(state["rate"]), context.rate
        scale = rate / before if before else 1.0
        corrections = kept(state, "correction", range(len(context.parameters)))
        left = copies(context.parameters)
        y = [x.add(c, alpha=scale) for x, c in zip(left, corrections, strict=True)]
        mixed = yield from context.mix(y, self.matrix(context))
        copy_into(context.parameters, mixed)
        state = keep("correction", [m - x for m, x in zip(mixed, left, strict=True)])
        return state | {"rate": torch.tensor(rate, dtype=torch.float64)}


def _too_negative(lambda_min: float) -> bool:
    return lambda_min <= -1 / 3 + 1e-9
