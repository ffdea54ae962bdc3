"""1-bit Adam and 0/1 Adam: workers average Adam's momentum in signs, with second moments that are frozen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from laconic.registry import knob, named_sentence, technique
from laconic.sync.base import State, SyncContext, average_buffers
from laconic.sync.moments import SIGNS, MomentRule
from laconic.sync.tensor_lists import copies, copy_into, keep, kept
from laconic.values.cadence import Cadence, Stretch
from laconic.worker import Communication


@technique("frozen_adam", paper="Tang et al. (1-bit Adam), ICML 2021")
@dataclass(frozen=True)
class FrozenAdam(MomentRule):
    """Average momenta in place of gradients, with Adam's second moments frozen when this rule began.

    Each worker updates the common momentum with its gradient, the mean of these (compressed as the sentence says)
    becomes the next common momentum m, and the step is lr·m/(√v + ε) with the frozen second moment v, without bias
    correction. Where v is 0 nothing moves. It continues torch's Adam and AdamW after some steps of their own: `bsp
    until step 1000, then frozen_adam / …`; the paper spends 15 to 20 % of all steps on these.
    """

    @property
    def cadence(self) -> Cadence:
        return Cadence(1, overlaps=False)

    @torch.no_grad()
    def stepping(self, context: SyncContext, state: State) -> Communication[State]:
        moments = self.moments(context)
        means = yield from context.average([m.updated_mean(m.gradient) for m in moments])
        for moment, mean in zip(moments, means, strict=True):
            moment.mean.copy_(moment.masked(mean))
            moment.step()
        return state


@technique("freezing_adam", paper="Lu et al. (0/1 Adam), ICLR 2023")
@dataclass(frozen=True)
class FreezingAdam(MomentRule):
    """0/1 Adam's first stage: Adam without bias correction whose variances are updated ever more rarely.

    Steps that update them average gradients exactly; all others average gradients as the sentence says, and update the
    momentum alone. The first `kappa` updates are one step apart, the next two, then four, and so on.
    """

    can_start: ClassVar[bool] = True
    kappa: int = knob(16, low=1, doc="updates of the variances after which the gaps between them double")

    def stretches(self, steps: int | None) -> Sequence[Stretch]:
        alone = Cadence(1, overlaps=False)
        if steps is None:
            return (Stretch(alone),)
        share = self.exact_steps(steps) / steps
        return tuple(one for one in (Stretch(alone, share, exact=True), Stretch(alone, 1 - share)) if one.share)

    def init(self, context: SyncContext) -> State:
        return {"began": torch.tensor(context.step)}

    def updates_variances(self, step: int) -> bool:
        """Return whether the rule's step of this number, counted from 1, updates the variances."""
        doublings = ((step - 1) // self.kappa + 1).bit_length() - 1
        gap = 1 << doublings
        return (step - self.kappa * (gap - 1)) % gap == 0

    def exact_steps(self, steps: int) -> int:
        """Return how many of the rule's first steps update the variances."""
        found, gap, before = 0, 1, 0  # steps before the updates that are `gap` apart
        while before < steps:
            found += min(self.kappa, (steps - before) // gap)
            before += self.kappa * gap
            gap *= 2
        return found

    @torch.no_grad()
    def stepping(self, context: SyncContext, state: State) -> Communication[State]:
        moments, exact = self.moments(context), self.updates_variances(context.step + 1 - int(state["began"]))
        means = yield from context.average(copies(m.gradient for m in moments), exact)
        for moment, gradient in zip(moments, means, strict=True):
            momentum, beta = moment.updated_mean(gradient), moment.group["betas"][1]
            if exact:
                moment.square.mul_(beta).addcmul_(gradient, gradient, value=1 - beta)
            moment.mean.copy_(momentum if exact else moment.masked(momentum))
            moment.step()
            context.optimizer.state[moment.parameter]["step"] += 1
        return state


@technique("local_frozen_adam", paper="Lu et al. (0/1 Adam), ICLR 2023")
@dataclass(frozen=True)
class LocalFrozenAdam(MomentRule):
    """0/1 Adam's second stage: `frozen_adam` with local steps, which averages the sum of lr·m once per round.

    All workers move from the point where the round began by the mean of these sums (divided by √v + ε), and the mean
    divided by the sum of learning rates is the momentum again. Rounds begin with one step and become twice as long
    after every `doubling` steps, up to `longest`. Reading chosen: rounds double with the number of steps, which the
    paper ties to each task's learning rate; the point is stored, because subtracting a worker's own steps from the
    parameters would leave rounding errors.
    """

    replicas_differ: ClassVar[bool] = True
    doubling: int = knob(32768, low=1, doc="steps after which rounds are twice as long")
    longest: int = knob(16, low=1, doc="steps in the longest rounds")

    def stretches(self, steps: int | None) -> Sequence[Stretch]:
        if steps is None:
            return (Stretch(Cadence(self.longest, overlaps=False)),)
        found, before, length = [], 0, 1
        while before < steps:
            end = steps if length == self.longest else min(steps, before + self.doubling)
            found.append(Stretch(Cadence(length, overlaps=False), (end - before) / steps))
            before, length = end, min(self.longest, 2 * length)
        return tuple(found)

    def init(self, context: SyncContext) -> State:
        points, rates = copies(context.parameters), torch.zeros(len(context.parameters), dtype=torch.float64)
        moved = keep("moved", [torch.zeros_like(p) for p in points])
        return keep("point", points) | moved | {"rates": rates, "began": torch.tensor(context.step)}

    def ends_round(self, step: int) -> bool:
        """Return whether the rule's step of this number, counted from 1, is the last of a round."""
        return step % min(self.longest, 1 << min(64, (step - 1) // self.doubling)) == 0

    @torch.no_grad()
    def stepping(self, context: SyncContext, state: State) -> Communication[State]:
        moments, everything = self.moments(context), range(len(context.parameters))
        points, moved = kept(state, "point", everything), kept(state, "moved", everything)
        for moment, point, sum_ in zip(moments, points, moved, strict=True):
            moment.mean.copy_(moment.masked(moment.updated_mean(moment.gradient)))
            moment.step()
            sum_.add_(moment.mean, alpha=moment.rate)
            point.mul_(moment.decay_factor)
        state["rates"] += torch.tensor([moment.rate for moment in moments], dtype=torch.float64)
        if self.ends_round(context.step + 1 - int(state["began"])):
            yield from self._average(context, state)
        return state

    def _average(self, context: SyncContext, state: State, exact: bool = False) -> Communication[None]:
        """Average the displacements of a round; nothing is sent where all learning rates were 0."""
        moments, everything = self.moments(context), range(len(context.parameters))
        points, moved, rates = kept(state, "point", everything), kept(state, "moved", everything), state["rates"]
        if not rates.any():
            return
        means = yield from context.average(copies(moved), exact)
        for moment, point, mean, rate in zip(moments, points, means, rates.tolist(), strict=True):
            if rate:
                displacement = moment.masked(mean)
                moment.mean.copy_(displacement / rate)
                point.sub_(displacement / moment.denominator)
        copy_into(context.parameters, points)
        for sum_ in moved:
            sum_.zero_()
        rates.zero_()
        yield from average_buffers(context)

    @torch.no_grad()
    def leave(self, context: SyncContext, state: State) -> Communication[None]:
        yield from self._average(context, state, exact=True)


named_sentence(
    "one_bit_adam",
    f"bsp until step 1000, then frozen_adam / {SIGNS}",
    axis="compression",
    paper="Tang et al., ICML 2021",
    doc="""Adam for a while, then momenta of one bit each, with memories at workers and owners, behind frozen variances.

    Write the sentence out to choose another length of the first stage. Reading chosen: the scale is the mean magnitude,
    which makes signs a contraction; the published program's root mean square makes none for spiky momenta.
    """,
    holds="one bit of 32: 97 % fewer bytes than float32 after the warm-up",
    formula="m ← mean of (|u|₁/n)·sign(u), u = βm + (1-β)g + e, in two hops; x ← x - lr·m/(√v + ε), v frozen",
)

named_sentence(
    "zero_one_adam",
    f"freezing_adam / {SIGNS} until step 1000, then local_frozen_adam / {SIGNS}",
    axis="compression",
    paper="Lu, Li, Zhang, De Sa, He, ICLR 2023",
    doc="""Adam with one-bit gradients between updates of its variances, then local steps whose sums use one bit.

    Write the sentence out to choose other lengths (the paper's first stage ends with the warm-up of the learning rate).
    Reading chosen: memories begin anew in the second stage.
    """,
    formula="one-bit mean gradients between rarer updates of v; then x ← x₀ - mean C(Σ lr·m)/(√v + ε) after rounds",
)
