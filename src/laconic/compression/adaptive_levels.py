"""Quantisation levels that follow the gradients: a table shared by all workers, refitted now and then to their
statistics."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from laconic.compression.adaptive import Adaptive, Choice
from laconic.compression.base import State
from laconic.compression.level_tables import Tabled, bucket_norms, mirrored
from laconic.compression.selector import drawn
from laconic.compression.truncated import Array, Normals, multiplier, powers, sweep
from laconic.kernels.reference import in_buckets
from laconic.registry import knob, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet, Meets


@dataclass(frozen=True, eq=False)
class Fitted(Tabled):
    """A codec that rounds at random to a given table of levels, which are shares of a bucket's l2 norm."""

    levels: Tensor = field(default_factory=lambda: torch.tensor([-1.0, 1.0]))

    @property
    def table(self) -> Tensor:
        return self.levels

    @property
    def scale(self) -> str:
        return "l2"


@dataclass(frozen=True)
class FollowedLevels(Adaptive):
    """Quantisation to 2^b fitted levels without zero, symmetric around it, as shares of a bucket's l2 norm.

    In the steps listed in `updates`, and in every multiple of `every`, each worker sends mean, deviation and norm of
    the coordinates of some of its buckets, twelve bytes a bucket beside the step's payload; all workers fit the same
    table to the same mixture. There is one table for each tensor, or one for the model if `flat` stands before it. A
    bucket that contains a value that is not finite decodes to values that are not finite, and is left out of the fit.
    """

    bits: int = knob(3, low=2, high=8, gentler="more", doc="b: bits of a level's number")
    bucket: int = knob(8192, low=1, doc="elements that share a norm")
    updates: tuple[int, ...] = knob((100, 2000), low=0, doc="steps in which levels are fitted")
    every: int = knob(10_000, low=1, doc="levels are also fitted in every step that is a multiple of this number")
    buckets: int = knob(16, low=1, doc="the largest number of buckets that each worker samples for a fit")
    weighted: bool = knob(True, doc="whether a bucket counts by the square of its norm, as its error does")

    @property
    def meets(self) -> Meets:
        return "gather"

    @property
    def refuses_memory(self) -> str | None:
        return (
            "it is unbiased, and its table has no bound on its variance that a memory could be guarded by; write qsgd"
        )

    @abstractmethod
    def positive(self, state: State) -> Tensor:
        """Return the levels above zero in ascending order, of which the last is 1."""

    @abstractmethod
    def fitted(self, state: State, model: Normals) -> State:
        """Return the state with the levels that fit the mixture `model`."""

    def due(self, step: int) -> bool:
        """Tell whether levels are fitted in this step."""
        return step in self.updates or (step > 0 and step % self.every == 0)

    def codec(self, state: State) -> Fitted:
        """Return the codec that rounds to the levels in `state`."""
        return Fitted(self.bucket, mirrored(self.positive(state)))

    def choose(self, x: Tensor, state: State, meet: Meet) -> Choice:
        if self.due(meet.step):
            gathered = yield meet.gather(self.statistics(x.reshape(-1).float(), meet))
            model = mixture(gathered.reshape(-1, 3).double().cpu().numpy(), self.weighted)
            if model is not None:
                state = {key: value.to(x.device) for key, value in self.fitted(state, model.folded).items()}
        return self.codec(state), state

    def statistics(self, flat: Tensor, meet: Meet) -> Tensor:
        """Return, for a random sample of buckets, a row each with the mean and the deviation of the coordinates as
        shares of the bucket's norm, and that norm."""
        rows = in_buckets(flat, self.bucket)
        chosen = drawn(min(self.buckets, len(rows)), len(rows), meet.key("buckets"), flat.device)
        sizes = in_buckets(torch.ones_like(flat), self.bucket)[chosen].sum(dim=1)
        norms = bucket_norms(flat, self.bucket, "l2")[chosen]
        shares = rows[chosen] / norms.where(norms > 0, 1)[:, None]
        mean, square = shares.sum(dim=1) / sizes, shares.square().sum(dim=1) / sizes
        return torch.stack([mean, (square - mean**2).clamp(min=0).sqrt(), norms], dim=1)

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        """Return the bytes of a step in which no levels are fitted."""
        return self.codec(self.init(spec)).payload_bytes(spec, size)


def mixture(statistics: Array, weighted: bool) -> Normals | None:
    """Return the mixture of truncated normals that these statistics describe, or None if no bucket is usable."""
    mean, deviation, norm = statistics[np.isfinite(statistics).all(axis=1) & (statistics[:, 2] > 0)].T
    if not len(norm):
        return None
    return Normals.of(mean, deviation, (norm / norm.max()) ** 2 if weighted else 1.0)


@technique(
    "alq",
    paper="Faghri et al., NeurIPS 2020",
    evidence="fixture",
    reproduces="alq.json: levels after every sweep, 24 cases, as `alq(smallest=published)`, which is not the default",
    formula="Q(x)_i = |x|₂·level, at random a neighbour of x_i/|x|₂; levels by coordinate descent on the variance",
)
@dataclass(frozen=True)
class ALQ(FollowedLevels):
    """Rounding at random to levels that are fitted to the gradients by coordinate descent on the expected variance.

    Each level goes to where the expected variance between its neighbours is least. Reading chosen: fits in steps 100
    and 2000 and then every 10,000, of 16 buckets a worker. The smallest level's neighbour is its own mirror image,
    since the table has no zero; `smallest=published` fits it as the published program does, as if zero were a level,
    after which the variance of the table in use may rise.
    """

    first: str = knob("exponential", choices=("exponential", "uniform"), doc="the table before the first fit")
    sweeps: int = knob(10, low=1, doc="sweeps of coordinate descent in a fit")
    smallest: str = knob(
        "exact",
        choices=("exact", "published"),
        doc="whether the smallest level's neighbour is its mirror image or zero",
    )

    def init(self, spec: TensorSpec) -> State:
        count = 2 ** (self.bits - 1)
        if self.first == "uniform":
            return {"levels": torch.arange(1, 2 * count, 2) / (2 * count - 1)}
        return {"levels": 2.0 ** torch.arange(1 - count, 1, dtype=torch.float32)}

    def positive(self, state: State) -> Tensor:
        return state["levels"]

    def fitted(self, state: State, model: Normals) -> State:
        levels = state["levels"].double().cpu().numpy()
        for _ in range(self.sweeps):
            levels = sweep(levels, model, self.smallest == "published")
        return {"levels": torch.from_numpy(levels).float()}


@technique(
    "amq",
    paper="Faghri et al., NeurIPS 2020",
    evidence="fixture",
    reproduces="amq.json: the multiplier after every step of a descent, as `amq`; the choice among descents is not",
    formula="Q(x)_i = ±|x|₂·p^j, at random a neighbour of x_i/|x|₂; p minimises the expected variance",
)
@dataclass(frozen=True)
class AMQ(FollowedLevels):
    """Rounding at random to powers of one multiplier p, which is fitted to the gradients by gradient descent.

    It begins with p = 1/2, which gives NUQSGD's levels without zero. Reading chosen: descents of the expected variance
    from nine starts from 0.1 to 0.9, of 300 steps with rate 0.1, and the best end, which is never worse than p = 1/2.
    """

    def init(self, spec: TensorSpec) -> State:
        return {"multiplier": torch.tensor(0.5)}

    def positive(self, state: State) -> Tensor:
        levels = powers(float(state["multiplier"]), 2 ** (self.bits - 1))
        return torch.from_numpy(levels).float().to(state["multiplier"].device)

    def fitted(self, state: State, model: Normals) -> State:
        return {"multiplier": torch.tensor(multiplier(float(state["multiplier"]), 2 ** (self.bits - 1), model))}
