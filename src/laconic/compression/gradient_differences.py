"""Differences in place of gradients: EF21 and DIANA send how far a gradient is from an estimate that all workers know,
MARINA how far it is from the last one."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from laconic import kernels
from laconic.compression.base import Compressor, Exchange, Outcome, State
from laconic.compression.error_feedback import after_burn_in, counted
from laconic.compression.optional import prices_of, refusal_of_memory, variance_of
from laconic.compression.wrapper import Memory, StatefulWrapper, inner_of, within
from laconic.registry import knob, named_sentence, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet, Meets, Reduce

_ANY = TensorSpec("any", (8, 8), torch.float32)


class Shift(Memory):
    """A wrapping word that keeps an estimate of every worker's gradient, and sends compressed differences to it."""

    @property
    def follows(self) -> float:
        """The share of a new gradient in the average that is estimated; 1 means the gradient itself."""
        return 1.0

    @abstractmethod
    def steps(self, inner: Compressor, x: Tensor) -> tuple[float, float]:
        """Return the share of a decoded message that counts, and how far the estimate moves towards it."""

    def around(self, inner: Compressor) -> Compressor:
        return Shifted(inner, self)


def _noise_dies_out(memory: Memory, omega: float | None) -> str | None:
    """Return what differences to an estimate guarantee around an unbiased compressor of variance ω."""
    if omega is None:
        return None
    return f"unbiased (ω = {omega:.2g}) with {memory.name}: SGD's rate, the noise of compression dying out"


@technique(
    "ef21",
    paper="Richtárik, Sokolov, Fatkhullin, NeurIPS 2021; EF21-SGDM: Fatkhullin et al., NeurIPS 2023",
    evidence="published",
    reproduces="Beznosikov et al.'s example, on which topk alone grows by 1 + 11γ/6 a step: converges",
    formula="c = C(g_i - h_i), h_i ← h_i + c, result mean h_i",
)
@dataclass(frozen=True)
class EF21(Shift):
    """Send how far the gradient is from an estimate that sender and receivers share; for contractions: topk+ef21.

    An estimate takes the place of an error memory, and needs no bound on gradients or on how workers differ. With
    `momentum` below 1 (EF21-SGDM, about 0.1) a moving average of gradients is estimated, which noisy ones need. A value
    that is not finite is in the result, and the estimate stays as it was.
    """

    momentum: float = knob(1.0, above=0, high=1, doc="share of a new gradient in the average; 1: the gradient itself")

    @property
    def follows(self) -> float:
        return self.momentum

    def guarantee(self, omega: float | None, delta: float | None) -> str | None:
        return None if delta is None else after_burn_in("EF21", delta)

    def objects(self, inner: Compressor) -> str | None:
        return refusal_of_memory(inner)

    def steps(self, inner: Compressor, x: Tensor) -> tuple[float, float]:
        return counted(inner, TensorSpec("", tuple(x.shape), x.dtype)), 1.0

    @staticmethod
    def step_size(contraction: float, smoothness: float, mean_smoothness: float | None = None) -> float:
        """Return the largest learning rate for which the theory holds, from δ, the smoothness L, and the root of the
        mean of the workers' L²."""
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
    """Send how far the gradient is from a shift that sender and receivers share; for unbiased codecs: qsgd+diana.

    Shifts move towards the gradients at the optimum, where those of single workers are not zero: the differences
    vanish, and so does the noise of rounding them. A value that is not finite is in the result, and shifts stay as they
    were.
    """

    rate: float | None = knob(None, low=0, high=1, doc="how far shifts move towards what was sent; none: 1/(1+ω)")

    def guarantee(self, omega: float | None, delta: float | None) -> str | None:
        return _noise_dies_out(self, omega)

    def objects(self, inner: Compressor) -> str | None:
        if variance_of(inner, _ANY) is None:
            return "diana needs an unbiased compressor with a known variance; write qsgd+diana"
        return None

    def steps(self, inner: Compressor, x: Tensor) -> tuple[float, float]:
        omega = variance_of(inner, TensorSpec("", tuple(x.shape), x.dtype)) or 0.0
        return 1.0, 1 / (1 + omega) if self.rate is None else self.rate

    @staticmethod
    def step_size(variance: float, smoothness: float, workers: int) -> float:
        """Return a learning rate for full gradients, from ω, the smoothness and the number of workers."""
        return 1 / (smoothness * (1 + 6 * variance / workers))


@dataclass(frozen=True)
class Shifted(StatefulWrapper):
    """The compressor that a chain with `ef21` or `diana` becomes: m = C(v - h) is sent, where h is the estimate.

    The result is the common h plus the mean of m, and both the common and the own h are updated. A worker's own parts
    are kept as its share of the mean (divided by the number of workers): their sum is the common one, and stays so when
    the number of workers changes.
    """

    how: Shift

    @property
    def refuses_memory(self) -> str | None:
        return f"its estimate takes the place of an error memory; write topk+{self.how.name}"

    @property
    def decoded_with_memory(self) -> bool:
        return True

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
        outcome = yield from self.inner.exchange((wanted - size * own).to(x.dtype), inner_of(state), meet)
        mean = share * outcome.result.view_as(x).to(common.dtype)
        mine = mean if outcome.sent is None else share * outcome.sent.view_as(x).to(common.dtype)
        known = mean.isfinite()  # the same on all workers
        result, sent = common + mean, size * own + mine
        state = {
            "common": common + torch.where(known, step * mean, 0.0),
            "own": own + torch.where(known, (step / size) * mine, 0.0),
        }
        return Outcome(result.to(x.dtype), state | followed | within(outcome.state), sent.to(x.dtype))

    def _followed(self, x: Tensor, state: State, size: int) -> tuple[Tensor, State]:
        """Return what is estimated, the gradient or its moving average, which begins with the first one, and its
        state."""
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
    doc="""EF21 on momentum: the largest values of how far a worker's momentum is from its common estimate.

    The result is the mean momentum, so that an optimizer of plain steps follows it.
    """,
    formula="v_i ← v_i + 0.1(g_i - v_i), c = top_k(v_i - h_i), h_i ← h_i + c, result mean h_i",
)


@technique(
    "marina",
    paper="Gorbunov, Burlachenko, Li, Richtárik, ICML 2021",
    formula="g ← mean of all ∇f_i with chance p, else g + mean Q(∇f_i(now) - ∇f_i(before))",
)
@dataclass(frozen=True)
class MARINA(Memory):
    """Send the compressed change of the gradient since the last step, and by a common coin the full gradient.

    It wraps unbiased compressors, as in randk(0.05)+marina, for full gradients: the last one is kept. (Mini-batches
    want the same samples at both points, that is a second backward pass per step, which a compressor cannot ask for.)
    Each tensor draws its own coin; with `flat` there is one. The first exchange sends everything, and so does the one
    after a result that was not finite, or after the number of workers has changed.
    """

    full: float | None = knob(
        None,
        above=0,
        high=1,
        doc="probability of sending the full gradient; none: both kinds cost the same in the mean",
    )

    def objects(self, inner: Compressor) -> str | None:
        if variance_of(inner, _ANY) is None:
            return "marina needs an unbiased compressor with a known variance; write randk(0.05)+marina"
        return None

    def guarantee(self, omega: float | None, delta: float | None) -> str | None:
        return _noise_dies_out(self, omega)

    def around(self, inner: Compressor) -> Compressor:
        return Changes(inner, self)

    @staticmethod
    def step_size(full: float, variance: float, smoothness: float, workers: int) -> float:
        """Return the largest learning rate for which the theory holds, where workers draw independently; `full` is the
        probability of a full gradient, `variance` is ω."""
        return 1 / (smoothness * (1 + math.sqrt((1 - full) * variance / (full * workers))))


@dataclass(frozen=True)
class Changes(StatefulWrapper):
    """The compressor that a chain with `marina` becomes."""

    how: MARINA

    @property
    def refuses_memory(self) -> str | None:
        return "what was not sent of a change is forgotten on purpose; write randk(0.05)+marina"

    @property
    def decoded_with_memory(self) -> bool:
        return True

    @property
    def asks(self) -> tuple[type, ...]:
        return tuple(dict.fromkeys((Reduce, *self.inner.asks)))

    def begin(self, spec: TensorSpec) -> State:
        wide = torch.promote_types(spec.dtype, torch.float32)
        zeros = {key: torch.zeros(spec.shape, dtype=wide) for key in ("common", "last")}
        return zeros | {
            "size": torch.zeros((), dtype=torch.int64)
        }  # the number of workers that know the full gradient; 0: none

    def probability(self, spec: TensorSpec, size: int) -> float:
        """Return the probability of sending the full gradient."""
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
            outcome = yield from self.inner.exchange((wide - state["last"]).to(x.dtype), inner, meet)
            common, inner = state["common"] + outcome.result.view_as(x), outcome.state
            sent = state["common"] + (outcome.result if outcome.sent is None else outcome.sent).view_as(x)
        known = torch.where(common.isfinite().all(), meet.size, 0)
        kept = {"common": common, "last": wide.clone(), "size": known.to(state["size"])}
        return Outcome(common.to(x.dtype), kept | within(inner), sent.to(x.dtype))

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        """Return the bytes of a step in the mean over coins."""
        return sum(nbytes for _, nbytes in self.prices(spec, size))

    def prices(self, spec: TensorSpec, size: int) -> tuple[tuple[Meets, int], ...]:
        p = self.probability(spec, size)
        changes = ((how, round((1 - p) * nbytes)) for how, nbytes in prices_of(self.inner, spec, size))
        return ("reduce", round(p * spec.nbytes)), *changes
