"""Selectors: exact, by a sample, by bisection; and random places that all workers share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from laconic import kernels
from laconic.claims import Contraction, Payload
from laconic.compression.base import Compressor, Exchange, Outcome, State
from laconic.compression.bucket import BucketExchange, BucketMeet, TensorBucket, is_changed_below
from laconic.compression.codes import bits
from laconic.compression.selected_buckets import SelectedLayout
from laconic.compression.selector import Selector, drawn, share_of
from laconic.kernels import messages
from laconic.kernels.lists import TensorList
from laconic.kernels.sparse_messages import first_or_largest
from laconic.registry import knob, named_sentence, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet, Meets

_SAMPLE, _PASSING = 0.001, 100  # share of a tensor that is sampled; how many of the sample are k at least
_AIMED = 0.9  # the share of k that should pass a limit: what is more than k is not sent
_FIXED = ("packed", "plain")  # the forms of places whose length depends on their number alone


@technique(
    "topk",
    aliases=["top_k"],
    paper="Aji and Heafield, EMNLP 2017; Stich et al., NeurIPS 2018",
    claims=[Contraction()],
    evidence="third-party",
    reproduces="topk.npz, recorded from GRACE: places, values and memory, step by step, as `topk(0.05)+ef`",
    formula="C(x)_i = x_i where |x_i| is among the k largest, else 0",
    worth_trying=["topk(0.1)+ef", "topk(0.01)+ef", "topk(0.001)+ef"],
)
@dataclass(frozen=True)
class TopK(Selector):
    """The k largest magnitudes, exactly; among equal ones the first. Without memory it loses the rest: write topk+ef.

    `threshold=sampled` sends what is at least a quantile of a sample of 0.1 % (more of a small tensor: ninety of the
    sample pass, so that the count is 0.9 k to some 10 %): no sort. At most k are sent, the first, and a message has
    room for k, so that nobody waits for its length (but for `index=bitmap` and `golomb`, or values in another code).
    Zeros are not sent. NaN counts as larger than all, so that it is sent. Reading chosen: what workers read from a
    server is dense; `ps(down=…)` drops there too.
    """

    threshold: str = knob("exact", choices=("exact", "sampled"), doc="the k-th largest magnitude, or an estimate of it")

    @property
    def varies(self) -> bool:
        return self.threshold == "sampled"

    @property
    def padded(self) -> bool:
        return self.varies and self.index in _FIXED

    def contraction(self, spec: TensorSpec) -> float | None:
        return None if self.varies else super().contraction(spec)

    def choose(self, x: Tensor, meet: Meet) -> Tensor:
        least = self.least(x, None, meet)
        if least is None:
            return largest(x, self.count(x.numel()))
        places, values = kernels.passing(x, least)
        kept = self.kept(places, values, x.numel())
        return places if kept is None else places[kept]

    def least(self, x: Tensor, error: Tensor | None, meet: Meet) -> Tensor | None:
        return self.estimate(x, error, meet) if self.varies else None

    def sample(self, numel: int) -> tuple[int, int]:
        """Return how many values of such a tensor are sampled, and which largest of them is the limit."""
        looked = max(math.ceil(_SAMPLE * numel), math.ceil(_PASSING / self.ratio))
        return looked, self.count(numel) if looked >= numel else max(1, round(_AIMED * self.ratio * looked))

    def estimate(self, x: Tensor, error: Tensor | None, meet: Meet) -> Tensor:
        """Return an estimate of the magnitude that somewhat less than k of x + error have at least, above zero."""
        return kernels.sampled_limit(x, error, *self.sample(x.numel()), meet.key("sample"))

    def kept(self, places: Tensor, values: Tensor, numel: int) -> Tensor | None:
        return first_or_largest(kernels, values, self.count(numel))

    @property
    def lists(self) -> bool:
        return self.index in _FIXED and not is_changed_below(self, "choose", "feed_bucket")

    def feeds(self, bucket: TensorBucket) -> bool:
        return self.lists and bucket.flat.dtype == torch.float32

    def feed_bucket(
        self,
        bucket: TensorBucket,
        errors: TensorList | None,
        meet: BucketMeet,
        shares: Sequence[float] | None = None,
    ) -> BucketExchange:
        assert shares is None, "nothing of a selection is rounded at random"
        layout, samples = _layout_of(self, bucket.lengths)
        if self.varies:
            return layout.exchange_sampled(samples, bucket, errors, meet)
        return layout.exchange_largest(bucket, errors, meet)

    def means(
        self,
        rows: Tensor,
        lengths: Sequence[int],
        out: Sequence[Tensor] | None = None,
        shares: Sequence[float] | None = None,
    ) -> list[Tensor]:
        assert shares is None, "nothing of a selection is rounded at random"
        layout, _ = _layout_of(self, tuple(lengths))
        means = list(layout.averaged(rows, torch.empty(sum(lengths), device=rows.device)).split(list(lengths)))
        return messages.written(means, out)

    def sampled(self, x: Tensor, meet: Meet) -> float:
        """Return the estimate for a tensor without error memory, as a Python float."""
        return float(self.estimate(x, None, meet))


@lru_cache(1024)
def _layout_of(selector: TopK, lengths: tuple[int, ...]) -> tuple[SelectedLayout, tuple[tuple[int, int], ...]]:
    """Return what is sent of tensors of these lengths, and how each one's limit is sampled."""
    most = tuple(selector.count(n) for n in lengths)
    widths = tuple(32 if selector.index == "plain" else bits.width(n - 1) for n in lengths)
    layout = SelectedLayout(lengths, most, widths, selector.padded, selector.left_out)
    return layout, tuple(selector.sample(n) for n in lengths)


largest = kernels.largest


@technique(
    "mstopk",
    aliases=["ms_topk"],
    paper="Shi et al., MLSys 2021",
    formula="C(x)_i = x_i on k places: |x_i| above a bisected threshold, and a run of those just below it",
)
@dataclass(frozen=True)
class MSTopK(Selector):
    """Exactly k values that are about the largest, by a threshold found by bisection.

    The values above it are filled up to k with a run of those below. Counting passes only, no sort. The run may begin
    anywhere and wraps around to the front, so that all have the same chance. Error memory belongs to it, at the worker
    (the usual reading): write mstopk+ef.
    """

    rounds: int = knob(30, low=1, doc="halvings of the interval between the mean and the largest magnitude")

    def choose(self, x: Tensor, meet: Meet) -> Tensor:
        k, size = self.count(x.numel()), torch.where(x.isnan(), torch.inf, x.abs())
        mean, most = float(size.mean()), float(size.max())
        low, high, few, upper, many, lower = 0.0, 1.0, 0, math.inf, x.numel(), 0.0
        for _ in range(self.rounds if math.isfinite(most) else 0):
            middle = (low + high) / 2
            threshold = mean + middle * (most - mean)
            count = int((size >= threshold).sum())
            if count <= k:
                high = middle
                if count > few:
                    few, upper = count, threshold
            else:
                low = middle
                if count < many:
                    many, lower = count, threshold
        surely = torch.nonzero(size >= upper).view(-1)[:k]  # more only where there are more infinities
        between = torch.nonzero((size >= lower) & (size < upper)).view(-1)
        start = int(kernels.integers(meet.key("run"), 0, 1)[0]) % max(1, between.numel())
        return torch.cat([surely, between.roll(-start)[: k - surely.numel()]]).sort().values


@technique(
    "randk",
    aliases=["random_k"],
    paper="Konečný and Richtárik, 2018; Stich et al., NeurIPS 2018",
    claims=[Payload(lambda spec, c: 4 * c.count(spec.numel))],
    holds="errors (n/k - 1)|x|² scaled and (1 - k/n)|x|² unscaled, exactly: 99 and 0.99 for one of a hundred",
    formula="C(x)_i = (n/k)·x_i on k random places that all workers share, else 0",
    worth_trying=["randk(0.01, scaled=false)+ef"],
)
@dataclass(frozen=True)
class RandK(Compressor):
    """k random coordinates, the same on all workers, so that places are not sent and values are summed directly.

    `scaled` by n/k it is unbiased and takes no memory, with which it would diverge; unscaled it is a contraction in the
    mean and wants one: randk(scaled=false)+ef. `block`: one run of consecutive coordinates, cheaper to cut out.
    """

    ratio: float = knob(
        0.01, above=0, high=1, gentler="more", doc="share of the coordinates that are sent, at least one"
    )
    scaled: bool = knob(True, doc="whether values are multiplied by n/k, for an unbiased mean")
    block: bool = knob(False, doc="whether the coordinates are consecutive")

    @property
    def refuses_memory(self) -> str | None:
        return "values scaled by n/k diverge with a memory; write randk(scaled=false)+ef" if self.scaled else None

    def count(self, numel: int) -> int:
        return share_of(self.ratio, numel)

    def choose(self, numel: int, meet: Meet, device: torch.device) -> Tensor:
        k, key = self.count(numel), meet.key("places", shared=True)
        if self.block:
            start = int(kernels.integers(key, 0, 1)[0]) * numel >> kernels.draws.BITS
            return (torch.arange(start, start + k, device=device)) % numel
        return drawn(k, numel, key, device)

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        places = self.choose(x.numel(), meet, x.device)
        own = x.reshape(-1)[places].float()
        if self.scaled:
            own *= x.numel() / len(places)
        mean = yield meet.mean(own.clone())
        return _scattered(x, state, places, mean, own)

    def variance(self, spec: TensorSpec) -> float | None:
        return spec.numel / self.count(spec.numel) - 1 if self.scaled else None

    def contraction(self, spec: TensorSpec) -> float | None:
        return None if self.scaled else self.count(spec.numel) / spec.numel

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return 4 * self.count(spec.numel)


def _scattered(x: Tensor, state: State, places: Tensor, mean: Tensor, own: Tensor) -> Outcome:
    """Return the outcome with the common mean and this worker's own values at these places, and zeros elsewhere."""
    result, sent = torch.zeros(2, x.numel(), device=x.device)
    result[places], sent[places] = mean, own
    return Outcome(result.view(x.shape).to(x.dtype), state, sent.view(x.shape).to(x.dtype))


named_sentence(
    "mem_sgd",
    "bsp / topk+error_feedback(inside=true) / allreduce",
    axis="compression",
    paper="Stich, Cordonnier, Jaggi, NeurIPS 2018",
    doc="""Top-k with an error memory in changes of parameters: the learning rate is inside the memory.""",
    evidence="published",
    reproduces="Beznosikov et al.'s example, on which topk alone grows by 1 + 11γ/6 a step: converges linearly",
    formula="u = m + lr·g, s = top_k(u), m ← u - s, x ← x - mean s",
)


@technique(
    "scalecom",
    paper="Chen et al., NeurIPS 2020",
    claims=[Payload(lambda spec, c: 8 * c.count(spec.numel))],
    formula="C(x)_i = x_i on the k places that are largest at worker t mod N, else 0",
    worth_trying=["scalecom+ef(low_pass=0.1)"],
)
@dataclass(frozen=True)
class ScaleCom(Compressor):
    """The coordinates that are largest at one worker, the step's leader, for all workers, so that values are summed.

    Memories of different workers are alike, so that one worker's choice serves all; leaders rotate. Use a memory that
    follows slowly (`scalecom+ef(low_pass=0.1)`) for large batches. The choice is exact (`per=tensor`) or the largest of
    each chunk. Reading chosen: β and the length of chunks are knobs, since they differ between models.
    """

    cost: ClassVar[str] = "select"
    ratio: float = knob(
        0.01, above=0, high=1, gentler="more", doc="share of the coordinates that are sent, at least one"
    )
    per: str = knob("tensor", choices=("tensor", "chunk"), doc="exactly the largest, or the largest of each chunk")

    @property
    def meets(self) -> Meets:
        return "broadcast"

    def count(self, numel: int) -> int:
        if self.per == "chunk":
            return -(-numel // self._chunk(numel))
        return share_of(self.ratio, numel)

    def _chunk(self, numel: int) -> int:
        return min(numel, max(1, round(1 / self.ratio)))

    def choose(self, flat: Tensor) -> Tensor:
        """Return the leader's places of a flat tensor."""
        if self.per == "tensor":
            return largest(flat, self.count(flat.numel()))
        chunk = self._chunk(flat.numel())
        rows = torch.nn.functional.pad(flat.abs(), (0, -flat.numel() % chunk), value=-1.0).view(-1, chunk)
        return rows.argmax(dim=1) + chunk * torch.arange(len(rows), device=flat.device)

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        flat, leader = x.reshape(-1), meet.step % meet.size
        chosen = self.choose(flat) if meet.rank == leader else flat.new_zeros(self.count(flat.numel()))
        places = (yield meet.broadcast(chosen.to(torch.int32), leader)).long()
        own = flat[places].float()
        mean = yield meet.mean(own.clone())
        return _scattered(x, state, places, mean, own)

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return 8 * self.count(spec.numel)

    def prices(self, spec: TensorSpec, size: int) -> tuple[tuple[Meets, int], ...]:
        k = self.count(spec.numel)
        return ("broadcast", 4 * k), ("reduce", 4 * k)


@technique(
    "gtopk",
    aliases=["global_topk"],
    paper="Shi et al., ICDCS 2019",
    claims=[Payload(lambda spec, c: 8 * c.count(spec.numel))],
    evidence="fixture",
    reproduces="gtopk.npz: 2, 4 and 8 workers' places, mean and memory, as `gtopk(0.04)+ef`",
    formula="S(… S(S(x_1) + S(x_2)) + S(S(x_3) + S(x_4)) …)/N up a tree, S = top_k",
    worth_trying=["gtopk+ef"],
)
@dataclass(frozen=True)
class GlobalTopK(Compressor):
    """The k largest of the sum, by a tree that keeps k at every node; the rest returns to the workers' memories.

    A worker's own choice that is not in the result at the root counts as not sent, so that its memory keeps it; what
    was dropped at an inner node and reaches the root through others is lost (the operator is not associative). Reading
    chosen: no warm-up of its own; `ramp` is one.
    """

    cost: ClassVar[str] = "select"
    ratio: float = knob(
        0.001, above=0, high=1, gentler="more", doc="share of the coordinates that are sent, at least one"
    )

    @property
    def meets(self) -> Meets:
        return "merge"

    def count(self, numel: int) -> int:
        return share_of(self.ratio, numel)

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        flat = x.reshape(-1).float()
        places = largest(flat, self.count(flat.numel()))
        merged = yield meet.merge(_pairs(places, flat[places]), _merged)
        final, total = merged[0].long(), merged[1].contiguous().view(torch.float32)
        result, sent = torch.zeros(2, flat.numel(), device=x.device)
        result[final] = total / meet.size
        adopted = places[torch.isin(places, final)]
        sent[adopted] = flat[adopted]
        return Outcome(result.view(x.shape).to(x.dtype), state, sent.view(x.shape).to(x.dtype))

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return 8 * self.count(spec.numel)


def _pairs(places: Tensor, values: Tensor) -> Tensor:
    """Return places and the bits of values as one tensor of integers."""
    return torch.stack([places.to(torch.int32), values.contiguous().view(torch.int32)])


def _merged(mine: Tensor, other: Tensor) -> Tensor:
    """Return the k largest of the sum of two sparse vectors."""
    both = torch.cat([mine, other], dim=1)
    places, where = both[0].unique(return_inverse=True)
    values = torch.zeros(len(places), device=mine.device)
    values.index_add_(0, where, both[1].contiguous().view(torch.float32))
    kept = largest(values, mine.shape[1])
    return _pairs(places[kept], values[kept])


named_sentence(
    "commlib",
    "[bsp / none / allreduce]@node > [bsp / flat+mstopk(0.01, index=plain)+ef / allreduce]@site",
    axis="architecture",
    paper="Shi et al., MLSys 2021",
    doc="""Dense sums where links are fast and the largest values where they are slow: hierarchical top-k.

    Inside a node gradients are reduce-scattered, so that each of its g members has the node's sum of a shard. It adds
    its residual, selects the share ρ of the shard with `mstopk`, and exchanges pairs of 32 bits each with its
    counterparts in the m nodes; shards are gathered inside. Between nodes a member sends 8(m-1)·ρd/g bytes, 1/(mρ) of
    what a dense all-reduce of shards sends. Write the tiers out for another ρ. Reading chosen: a shard's owner has the
    residual. The paper's cache of samples and its parallel layer-wise rates are no communication of gradients, and not
    here.""",
    formula="inside: sum of shard l at member l; between: Σ over nodes of MSTopK(shard + e); inside: all shards to all",
)
