"""Differences in place of gradients: EF21 and DIANA say how far a gradient is from an estimate that all know already,
MARINA how far it is from the last one."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from laconic import kernels
from laconic.compression.base import Compressor, Exchange, Outcome, State
from laconic.compression.error_feedback import counted
from laconic.compression.wrapper import Keeping, Wrapping, inner_of, within
from laconic.registry import knob, named_sentence, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet, Meets, Reduce

_ANY = TensorSpec("any", (8, 8), torch.float32)


class Shift(Wrapping):
    """A word that keeps an estimate of every worker's gradient, and says differences to it."""

    @property
    def follows(self) -> float:
        """How much of a new gradient counts in what is estimated; 1: it is the gradient."""
        return 1.0

    @abstractmethod
    def steps(self, inner: Compressor, x: Tensor) -> tuple[float, float]:
        """How much of what was said counts, and how far the estimate goes towards it."""

    def around(self, inner: Compressor) -> Compressor:
        return Shifted(inner, self)


@technique(
    "ef21",
    paper="Richtárik, Sokolov, Fatkhullin, NeurIPS 2021; EF21-SGDM: Fatkhullin et al., NeurIPS 2023",
    evidence="published",
    reproduces="Beznosikov et al.'s example, on which topk alone grows by 1 + 11γ/6 a step: converges",
    formula="c = C(g_i - h_i), h_i ← h_i + c, result mean h_i",
)
@dataclass(frozen=True)
class EF21(Shift):
    """Say how far the gradient is from an estimate that sender and receivers share, around any contraction: topk+ef21.

    An estimate takes the place of an error memory, and needs no bound on gradients or on how workers differ. With
    `momentum` below 1 (EF21-SGDM, about 0.1) a moving average of gradients is estimated, which noisy ones need.
    Where something is not finite, it is in the result, and the estimate stays as it was.
    """

    momentum: float = knob(1.0, above=0, high=1, doc="share of a new gradient in the average; 1: the gradient itself")

    @property
    def follows(self) -> float:
        return self.momentum

    def objects(self, inner: Compressor) -> str | None:
        return inner.refuses_memory

    def steps(self, inner: Compressor, x: Tensor) -> tuple[float, float]:
        return counted(inner, x), 1.0

    @staticmethod
    def step_size(contraction: float, smoothness: float, mean_smoothness: float | None = None) -> float:
        """The largest learning rate for which the theory holds: L, and the root of the mean of workers' L²."""
        if contraction >= 1:
            return 1 / smoothness
        root = math.sqrt(1 - contraction)
        ratio = (1 - contraction) / (1 - root) / (1 - root)
        return 1 / (smoothness + (mean_smoothness or smoothness) * math.sqrt(ratio))


@technique(
    "diana",
    paper="Mishchenko, Gorbunov, Takáč, Richtárik, arXiv 1901.09269, 2019",
    formula="m = Q(g - h), result = mean h + mean m, h ← h + a·m with a = 1/(1 + ω)",
)
@dataclass(frozen=True)
class DIANA(Shift):
    """Say how far the gradient is from a shift that sender and receivers share, around what is unbiased: qsgd+diana.

    Shifts go towards the gradients at the optimum, where those of single workers are not zero: what is rounded becomes
    nothing, and so does its noise. Where something is not finite, it is in the result, and shifts stay as they were.
    """

    rate: float | None = knob(None, low=0, high=1, doc="how far shifts go towards what was said; none: 1/(1+ω)")

    def objects(self, inner: Compressor) -> str | None:
        if inner.variance(_ANY) is None:
            return "what is rounded must be right in the mean, with a known variance; write qsgd+diana"
        return None

    def steps(self, inner: Compressor, x: Tensor) -> tuple[float, float]:
        omega = inner.variance(TensorSpec("", tuple(x.shape), x.dtype)) or 0.0
        return 1.0, 1 / (1 + omega) if self.rate is None else self.rate

    @staticmethod
    def step_size(variance: float, smoothness: float, workers: int) -> float:
        """A learning rate for full gradients."""
        return 1 / (smoothness * (1 + 6 * variance / workers))


@dataclass(frozen=True)
class Shifted(Keeping):
    """What such a chain becomes: m = C(v - h) is said, the result is the common h plus the mean of m, both h's move.

    A worker's own parts are kept as its share of the mean (over the number of workers): their sum is the common one,
    and stays so when memories go to another number of workers.
    """

    how: Shift

    @property
    def refuses_memory(self) -> str | None:
        return f"its estimate takes the place of an error memory; write topk+{self.how.name}"

    @property
    def kept(self) -> tuple[str, ...]:
        return "own", *(["average"] if self.how.follows < 1 else [])

    def begin(self, spec: TensorSpec) -> State:
        wide = torch.promote_types(spec.dtype, torch.float32)
        state = {key: torch.zeros(spec.shape, dtype=wide) for key in ("common", *self.kept)}
        return state | ({"begun": torch.zeros((), dtype=torch.bool)} if self.how.follows < 1 else {})

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        own, common, size = state["own"], state["common"], meet.size
        share, step = self.how.steps(self.inner, x)
        wanted, followed = self._followed(x, state, size)
        said = yield from self.inner.exchange((wanted - size * own).to(x.dtype), inner_of(state), meet)
        mean = share * said.result.view_as(x).to(common.dtype)
        mine = mean if said.sent is None else share * said.sent.view_as(x).to(common.dtype)
        known = mean.isfinite()  # to all alike
        result, sent = common + mean, size * own + mine
        state = {
            "common": common + torch.where(known, step * mean, 0.0),
            "own": own + torch.where(known, (step / size) * mine, 0.0),
        }
        return Outcome(result.to(x.dtype), state | followed | within(said.state), sent.to(x.dtype))

    def _followed(self, x: Tensor, state: State, size: int) -> tuple[Tensor, State]:
        """What is estimated: the gradient, or its moving average, which begins with the first one."""
        wide = x.to(state["common"].dtype)
        if self.how.follows == 1:
            return wide, {}
        before = size * state["average"]
        share = torch.where(state["begun"], self.how.follows, 1.0)
        now = before + share * (wide - before)
        kept = torch.where(now.isfinite(), now, before) / size
        return now, {"average": kept, "begun": torch.ones_like(state["begun"])}


named_sentence(
    "ef21_sgdm",
    "bsp / topk(0.01)+ef21(momentum=0.1) / allreduce",
    axis="compression",
    paper="Fatkhullin, Tyurin, Richtárik, NeurIPS 2023",
    doc="""The largest of how far a worker's momentum is from what all know of it; the result is the mean momentum, so
    that an optimizer of plain steps follows it.""",
    formula="v_i ← v_i + 0.1(g_i - v_i), c = top_k(v_i - h_i), h_i ← h_i + c, result mean h_i",
)


@technique(
    "marina",
    paper="Gorbunov, Burlachenko, Li, Richtárik, ICML 2021",
    formula="g ← mean of all ∇f_i with chance p, else g + mean Q(∇f_i(now) - ∇f_i(before))",
)
@dataclass(frozen=True)
class MARINA(Wrapping):
    """Say how the gradient has changed since the last step, around what is unbiased; by a common coin, all of it.

    randk(0.05)+marina, for full gradients: the last one is kept. (Mini-batches want the same samples at both points,
    that is a second backward pass per step, which a compressor cannot ask for.) A tensor draws its coin for itself;
    with `flat` there is one. The first exchange says everything, and so does the one after a result that was not
    finite, or after the number of workers has changed.
    """

    full: float | None = knob(
        None, above=0, high=1, doc="probability of saying all; none: both kinds cost the same in the mean"
    )

    def objects(self, inner: Compressor) -> str | None:
        if inner.variance(_ANY) is None:
            return "changes must be right in the mean, with a known variance; write randk(0.05)+marina"
        return None

    def around(self, inner: Compressor) -> Compressor:
        return Changes(inner, self)

    @staticmethod
    def step_size(full: float, variance: float, smoothness: float, workers: int) -> float:
        """The largest learning rate for which the theory holds, where workers draw independently."""
        return 1 / (smoothness * (1 + math.sqrt((1 - full) * variance / (full * workers))))


@dataclass(frozen=True)
class Changes(Keeping):
    """What such a chain becomes."""

    how: MARINA

    @property
    def refuses_memory(self) -> str | None:
        return "what was not said of a change is forgotten on purpose; write randk(0.05)+marina"

    @property
    def asks(self) -> tuple[type, ...]:
        return tuple(dict.fromkeys((Reduce, *self.inner.asks)))

    def begin(self, spec: TensorSpec) -> State:
        wide = torch.promote_types(spec.dtype, torch.float32)
        zeros = {key: torch.zeros(spec.shape, dtype=wide) for key in ("common", "last")}
        return zeros | {"size": torch.zeros((), dtype=torch.int64)}  # among whom all is known; 0: it is not

    def probability(self, spec: TensorSpec, size: int) -> float:
        """Of saying everything."""
        if self.how.full is not None:
            return self.how.full
        return min(1.0, self.inner.payload_bytes(spec, size) / max(1, spec.nbytes))

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        wide, inner = x.to(state["common"].dtype), inner_of(state)
        probability = self.probability(TensorSpec("", tuple(x.shape), x.dtype), meet.size)
        coin = float(kernels.uniform(meet.key("coin", shared=True), 0, 1)[0]) < probability
        if coin or int(state["size"]) != meet.size:
            common, sent = (yield meet.mean(x.clone())).to(wide.dtype), x
        else:
            said = yield from self.inner.exchange((wide - state["last"]).to(x.dtype), inner, meet)
            common, inner = state["common"] + said.result.view_as(x), said.state
            sent = state["common"] + (said.result if said.sent is None else said.sent).view_as(x)
        known = torch.where(common.isfinite().all(), meet.size, 0)
        kept = {"common": common, "last": wide.clone(), "size": known.to(state["size"])}
        return Outcome(common.to(x.dtype), kept | within(inner), sent.to(x.dtype))

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        """In the mean over coins."""
        return sum(nbytes for _, nbytes in self.prices(spec, size))

    def prices(self, spec: TensorSpec, size: int) -> tuple[tuple[Meets, int], ...]:
        p = self.probability(spec, size)
        changes = ((how, round((1 - p) * nbytes)) for how, nbytes in self.inner.prices(spec, size))
        return ("reduce", round(p * spec.nbytes)), *changes
