"""Local steps: workers train on their own, and their parameters are averaged from time to time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic.registry import knob, named_sentence, technique
from laconic.sync.base import Context, State, Sync, SyncContext, average_buffers
from laconic.sync.momentum import POLICIES, treat_momentum
from laconic.sync.tensor_lists import keep, kept
from laconic.values.cadence import Cadence, Stretch
from laconic.worker import Communication


class Averaging(Sync[Context]):
    """The base of rules with local steps: it keeps the point of the last averaging, and averages again.

    Workers send their displacement from that point, not the parameters: the mean is the same, a compressor has smaller
    values to encode, and low precision loses less. Buffers are averaged too, so that the mean can be evaluated.
    """

    late: ClassVar[bool] = True
    replicas_differ: ClassVar[bool] = True
    copies: ClassVar[int] = 1

    def init(self, context: Context) -> State:
        counts = {"met": torch.tensor(context.step), "rounds": torch.tensor(0)}
        return keep("point", [p.detach().clone() for p in context.parameters]) | counts

    @torch.no_grad()
    def average_models(self, context: Context, state: State, exact: bool = False) -> Communication[None]:
        """Average the models, so that all workers go on from the mean."""
        points = kept(state, "point", range(len(context.parameters)))
        displacements = [p.detach() - point for p, point in zip(context.parameters, points, strict=True)]
        means = yield from context.average(displacements, exact)
        self.move(state, points, means)
        for parameter, point in zip(context.parameters, points, strict=True):
            parameter.copy_(point)
        yield from average_buffers(context)
        yield from self.after_averaging(context, state)

    def move(self, state: State, points: list[Tensor], means: list[Tensor]) -> None:
        """Move the common points by the mean displacements, in place."""
        for point, mean in zip(points, means, strict=True):
            point.add_(mean)

    def after_averaging(self, context: Context, state: State) -> Communication[None]:
        """Do what follows an averaging, such as a treatment of the optimizers' state."""
        yield from ()

    def leave(self, context: Context, state: State) -> Communication[None]:
        if int(state["met"]) < context.step:
            yield from self.average_models(context, state, exact=True)
            state["met"] = torch.tensor(context.step)


def local_steps(period: int) -> str:
    """Return what theory guarantees of averages after so many local steps."""
    return f"{period} local steps: SGD's rate if the learning rate shrinks with the period (Stich, 2019)"


@technique(
    "local_sgd",
    aliases=["local", "periodic_averaging"],
    paper="Stich, ICLR 2019",
    worth_trying=[f"local({period})" for period in (2, 4, 8, 16, 32, 64)],
)
@dataclass(frozen=True)
class LocalSGD(Averaging):
    """`period` local steps on each worker, then all workers go on from the mean of their models.

    The number of averagings, and so of bytes, is that of `bsp` divided by the period. A period of 1 averages gradients
    in place of parameters, and so it *is* `bsp`, to the bit and with any optimizer (for plain SGD the two are the same
    up to rounding). `growing` lengthens the gaps to period, 2·period, 3·period … (Spiridonoff et al., NeurIPS 2021:
    average often early, rarely late). Steps are counted from where the rule begins to govern, so that a phase's first
    gap is a whole one. `laconic.finish` averages what is left over at the end.
    """

    period: int = knob(8, low=1, gentler="less", doc="local steps between averagings")
    momentum: str = knob(
        "keep", choices=POLICIES, doc="what happens to the optimizer's state at an averaging; average sends it too"
    )
    growing: bool = knob(False, doc="whether the i-th gap is i times the period")

    @property
    def cadence(self) -> Cadence | None:
        return None if self.growing else Cadence(self.period, overlaps=self._is_bsp)

    def stretches(self, steps: int | None) -> Sequence[Stretch]:
        """Gaps that grow come to no length in the end. In a run of known length those of one octave count as equal, and
        what follows the last averaging as a part of the gap before."""
        if not self.growing or steps is None:
            return super().stretches(steps)
        octaves: dict[int, list[int]] = {}  # the gaps of each
        before, gap = 0, self.period
        while before + gap <= steps:
            octaves.setdefault((gap // self.period).bit_length(), []).append(gap)
            before, gap = before + gap, gap + self.period
        if not octaves:
            return (Stretch(Cadence(self.period, overlaps=False)),)
        last = max(octaves)
        return [
            Stretch(Cadence(round(sum(gaps) / len(gaps)), False), (sum(gaps) + (steps - before) * (k == last)) / steps)
            for k, gaps in octaves.items()
        ]

    @property
    def guarantee(self) -> str:
        return local_steps(self.period)

    @property
    def reads_optimizer_state(self) -> bool:
        return self.momentum != "keep"

    @property
    def _is_bsp(self) -> bool:
        return self.period == 1 and not self.growing and self.momentum == "keep"

    def averages_gradients(self, step: int) -> bool:
        return self._is_bsp

    def after_step(self, context: SyncContext, state: State) -> Communication[State]:
        now = context.step + 1
        gap = self.period * (int(state["rounds"]) + 1) if self.growing else self.period
        if now - int(state["met"]) >= gap:
            if not self._is_bsp:
                yield from self.average_models(context, state)
            state |= {"met": torch.tensor(now), "rounds": state["rounds"] + 1}
        return state

    def after_averaging(self, context: SyncContext, state: State) -> Communication[None]:
        yield from treat_momentum(context, self.momentum)


@technique("one_shot_averaging", aliases=["one_shot"], paper="Zinkevich et al., NIPS 2010; Zhang et al., JMLR 2013")
@dataclass(frozen=True)
class OneShotAveraging(Averaging):
    """Workers never communicate until `laconic.finish(model, optimizer)` averages their models once.

    Bytes do not depend on the number of steps: one all-reduce of the model. With `allreduce(order=rank)` its equal
    parts are padded by up to N - 1 values, which the ledger counts as control bytes. For quadratics with a common
    Hessian nothing is lost; elsewhere a bias stays that more workers do not remove. The papers' variants (a tail
    average of each worker's iterates, correction of the bias from a subsample) are not implemented.
    """


named_sentence(
    "post_local_sgd",
    "bsp until step 500, then local_sgd(16)",
    axis="sync",
    paper="Lin, Stich, Patel, Jaggi, ICLR 2020",
    doc="""Mini-batch SGD first, local SGD after the switch, to generalise better than the large batch does.

    Write the sentence out to choose other numbers: `bsp until step 2000, then local_sgd(8)`. The paper switches at the
    first decay of the learning rate, which a script that logs it can name: `bsp until lr<0.05, then local_sgd(16)`.
    """,
)

named_sentence(
    "hierarchical_local_sgd",
    "[local_sgd(2)]@node > [local_sgd(16)]@site",
    axis="sync",
    paper="Lin, Stich, Patel, Jaggi, ICLR 2020",
    doc="""Average within a host every H steps, over all hosts every H·H_b steps; here H = 2 and H_b = 8.

    Write tiers out to choose other numbers and more levels, each with its whole period: `[local_sgd(4)]@node >
    [local_sgd(16)]@rack > [local_sgd(64)]@site`. The traffic across a level is divided by that level's period.
    """,
)
