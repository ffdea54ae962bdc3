"""Workers whose models differ from a common one by what they have not said yet: CocktailSGD."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from laconic.registry import knob, named_sentence, technique
from laconic.sync.base import State, Sync, SyncContext
from laconic.sync.tensors import copies, keep, kept

_SAID = "said"


@technique("difference_averaging", paper="Wang et al. (CocktailSGD), ICML 2023")
@dataclass(frozen=True)
class DifferenceAveraging(Sync):
    """After every step each worker says how its model differs from the common one; the mean moves both.

    x_i - y is the error memory: what a worker said leaves its own model, the mean of what all said is added to it and
    to the common one, and what it did not say stays in x_i. With `overlap` the exchange goes on during the next step.
    `laconic.finish` ends with the mean of all models.
    """

    overlap: bool = knob(False, doc="whether an exchange goes on while the next gradient is computed")
    late: ClassVar[bool] = True
    replicas_differ: ClassVar[bool] = True

    def init(self, context: SyncContext) -> State:
        return keep("common", copies(context.parameters))

    @torch.no_grad()
    def after_step(self, context: SyncContext, state: State) -> Generator[Any, Any, State]:
        yield from self._arrive(context, state)
        common = kept(state, "common", range(len(context.parameters)))
        apart = [p.detach() - y for p, y in zip(context.parameters, common, strict=True)]
        context.start(_SAID, context.average_and_own(apart))
        if not self.overlap:
            yield from self._arrive(context, state)
        return state

    @torch.no_grad()
    def _arrive(self, context: SyncContext, state: State) -> Generator[Any, Any, None]:
        """What was said leaves the own model; the mean joins both."""
        if not context.is_in_flight(_SAID):
            return
        means, own = yield from context.arrive(_SAID)
        common = kept(state, "common", range(len(context.parameters)))
        for p, y, mean, said in zip(context.parameters, common, means, own, strict=True):
            unsaid = (p - y) - said
            y.add_(mean)
            p.copy_(y + unsaid)

    def leave(self, context: SyncContext, state: State) -> Generator[Any, Any, None]:
        yield from self._arrive(context, state)
        yield from super().leave(context, state)

    def settle(self, context: SyncContext, state: State) -> Generator[Any, Any, State]:
        """All have met: nobody has anything left to say."""
        yield from self.leave(context, state)
        return self.init(context)


named_sentence(
    "cocktail_sgd",
    "difference_averaging(overlap=true) / flat+masked(0.1)+topk(0.2, index=bitmap)+strided_bits(4, 128)"
    "+two_hop(memory=true) / allreduce",
    axis="compression",
    paper="Wang et al., ICML 2023",
    doc="""A random tenth of the model, of that the largest fifth, in four bits, in two hops with a memory at owners.
    What was not said stays in each worker's own model; one step of delay hides the exchange. Reading chosen: the shares
    of the published scripts.""",
    evidence="fixture",
    reproduces="cocktail_sgd.npz: masks, codes, scales and decoded values",
    formula="C = Q(top_k(random tenth of x_i - y)) in two hops; x_i ← x_i - C + mean, y ← y + mean, C again at owners",
)

named_sentence(
    "qsparse_local_sgd",
    "local_sgd(8) / topk(0.01)+qsgd(levels=15, bucket=128)+error_feedback / allreduce",
    axis="compression",
    paper="Basu, Data, Karakus, Diggavi, NeurIPS 2019",
    doc="""Local steps, then the largest of the net progress and the memory, quantised at random. The learning rate is
    inside, since progress is in parameters. All workers meet at the same steps; the asynchronous form is not here.""",
    formula="u = m + progress of 8 local steps, q = QSGD(top_k(u)), m ← u - q",
)

named_sentence(
    "pqasgd",
    "local_sgd(8) / qsgd(levels=1) / allreduce",
    axis="compression",
    paper="Jiang and Agrawal, NeurIPS 2018",
    doc="""Local steps, then the mean of everybody's change since the last meeting, in two bits at random, without a
    memory: what is lost is zero in the mean. Reading chosen: the change of parameters is quantised.""",
    formula="y ← y + mean Q(x_i - y) after 8 local steps, Q to -s, 0 or s at random, s = |bucket|₂",
)
