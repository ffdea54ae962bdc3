"""What becomes of the optimizer's own state (momentum, Adam's moments) when models are averaged."""

from __future__ import annotations

import torch

from laconic.sync.base import SyncContext
from laconic.worker import Communication

POLICIES = ("keep", "reset", "average")


@torch.no_grad()
def treat_momentum(context: SyncContext, policy: str) -> Communication[None]:
    """Keep each worker's optimizer state, reset it, or average, and so send, all of it that has a parameter's shape."""
    if policy == "reset":
        for parameter in context.parameters:
            context.optimizer.state.pop(parameter, None)
    elif policy == "average":
        yield from _average(context)


def _average(context: SyncContext) -> Communication[None]:
    """Average the optimizer state; a worker without state for a parameter (it took another branch) counts as zero.

    Such a worker gets no state either. Workers first agree, by one small message, on the number of tensors of each
    parameter, so that all send the same.
    """
    mine = []
    for parameter in context.parameters:
        memory = context.optimizer.state.get(parameter, {})
        mine.append([memory[k] for k in sorted(memory) if getattr(memory[k], "shape", None) == parameter.shape])
    counts = torch.tensor([len(tensors) for tensors in mine], device=context.parameters[0].device)
    (most,) = yield [context.group.all_reduce(counts, "max", control=1.0)]
    sent = [
        [x.clone() for x in tensors] or [torch.zeros_like(p) for _ in range(n)]
        for p, tensors, n in zip(context.parameters, mine, most.tolist(), strict=True)
    ]
    means = iter((yield from context.mean([x for tensors in sent for x in tensors])))
    for tensors, n in zip(mine, most.tolist(), strict=True):
        averaged = [next(means) for _ in range(n)]
        for x, mean in zip(tensors, averaged, strict=False):
            x.copy_(mean)
