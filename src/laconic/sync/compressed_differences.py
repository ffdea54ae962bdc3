"""Averaging of compressed differences from a common model, as in CocktailSGD, and related named sentences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from laconic.registry import knob, named_sentence, technique
from laconic.sync.base import State, Sync
from laconic.sync.contexts import OverlapContext
from laconic.sync.tensor_lists import copies, keep, kept
from laconic.worker import Communication

_AVERAGE = "said"


@technique("difference_averaging", paper="Wang et al. (CocktailSGD), ICML 2023")
@dataclass(frozen=True)
class DifferenceAveraging(Sync[OverlapContext]):
    """Send, after every step, how the model differs from a common one, and move both by the mean difference.

    The difference of worker i's model x_i from the common model y is the error memory: what a worker sent is subtracted
    from its own model, the mean of what all sent is added to it and to the common one, and what it did not send stays
    in x_i. With `overlap` the exchange goes on during the next step. `laconic.finish` ends with the mean of all models.
    """

    overlap: bool = knob(False, doc="whether an exchange goes on while the next gradient is computed")
    late: ClassVar[bool] = True
    replicas_differ: ClassVar[bool] = True

    def init(self, context: OverlapContext) -> State:
        return keep("common", copies(context.parameters))

    @torch.no_grad()
    def after_step(self, context: OverlapContext, state: State) -> Communication[State]:
        yield from self._complete(context, state)
        common = kept(state, "common", range(len(context.parameters)))
        differences = [p.detach() - y for p, y in zip(context.parameters, common, strict=True)]
        context.start(_AVERAGE, context.average_and_sent(differences))
        if not self.overlap:
            yield from self._complete(context, state)
        return state

    @torch.no_grad()
    def _complete(self, context: OverlapContext, state: State) -> Communication[None]:
        """Wait for the exchange in flight; subtract what was sent from the own model, and add the mean to both."""
        if not context.is_in_flight(_AVERAGE):
            return
        means, own = yield from context.wait_for(_AVERAGE)
        common = kept(state, "common", range(len(context.parameters)))
        for p, y, mean, sent in zip(context.parameters, common, means, own, strict=True):
            unsent = (p - y) - sent
            y.add_(mean)
            p.copy_(y + unsent)

    def leave(self, context: OverlapContext, state: State) -> Communication[None]:
        yield from self._complete(context, state)
        yield from super().leave(context, state)

    def settle(self, context: OverlapContext, state: State) -> Communication[State]:
        """Replace all models by their mean, after which no differences are left to send."""
        yield from self.leave(context, state)
        return self.init(context)


named_sentence(
    "cocktail_sgd",
    "difference_averaging(overlap=true) / flat+masked(0.1)+topk(0.2, index=bitmap)+strided_bits(4, 128)"
    "+two_hop(memory=true) / allreduce",
    axis="compression",
    paper="Wang et al., ICML 2023",
    doc="""A random tenth of the model, of that the largest fifth, in four bits, in two hops with a memory at owners.
    What was not sent stays in each worker's own model; one step of delay hides the exchange. Reading chosen: the shares
    of the published scripts.""",
    evidence="fixture",
    reproduces="cocktail_sgd.npz: masks, codes, scales, values: its codec, as `topk(0.2)+strided_bits(4, 128)`, alone",
    formula="C = Q(top_k(random tenth of x_i - y)) in two hops; x_i ← x_i - C + mean, y ← y + mean, C again at owners",
)

named_sentence(
    "qsparse_local_sgd",
    "local_sgd(8) / topk(0.01)+qsgd(levels=15, bucket=128)+error_feedback / allreduce",
    axis="compression",
    paper="Basu, Data, Karakus, Diggavi, NeurIPS 2019",
    doc="""Local steps, then the largest of the net progress and the memory, quantised at random. The learning rate is
    included, since progress is in parameters. All workers exchange at the same steps; the asynchronous form is not
    implemented.""",
    formula="u = m + progress of 8 local steps, q = QSGD(top_k(u)), m ← u - q",
)

named_sentence(
    "pqasgd",
    "local_sgd(8) / qsgd(levels=1) / allreduce",
    axis="compression",
    paper="Jiang and Agrawal, NeurIPS 2018",
    doc="""Local steps, then the mean of all workers' changes since the last averaging, in two bits at random, without a
    memory: what is lost is zero in the mean. Reading chosen: the change of parameters is quantised.""",
    formula="y ← y + mean Q(x_i - y) after 8 local steps, Q to -s, 0 or s at random, s = |bucket|₂",
)
