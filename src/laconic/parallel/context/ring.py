"""Ring attention: queries stay, and keys and values travel around a ring of devices while blocks are computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from laconic.errors import LaconicError
from laconic.parallel.context.blockwise import BlockGradients, RunningSoftmax
from laconic.parallel.context.messages import Direction, Ring, finish
from laconic.parallel.context.parts import Parts
from laconic.parallel.device_groups import groups_of
from laconic.parallel.message_code import MessageCode
from laconic.real.connect import connect
from laconic.registry import technique


@dataclass(frozen=True)
class PairSeconds:
    """On virtual workers whose `Compute` has one second for each part of a step: the seconds of one query and one key,
    for all heads and samples, forward and backward."""

    forward: float
    backward: float


@technique(
    "ring_attention",
    axis="parallel",
    paper="Liu, Zaharia and Abbeel, ICLR 2024 (arXiv 2310.01889); Brandon et al. (Striped Attention), arXiv 2311.09431",
    why_no_word="It takes the place of a model's attention; write `attend = ring_attention(mesh['cp'], length)`.",
)
def ring_attention(
    mesh: DeviceMesh,
    length: int,
    *,
    causal: bool = False,
    zigzag: bool = False,
    forward: str = "none",
    backward: str = "none",
    seed: int = 0,
    pair_seconds: PairSeconds | None = None,
) -> RingAttention:
    """Return attention over sequences of so many tokens that are cut among the devices of a mesh with one dimension.

    Each device calls it with the queries, keys and values of its own tokens. In p steps each computes its queries with
    the keys and values that it has, while those travel on to the next device. The backward pass computes scores again
    from the logarithms that the forward pass kept, and sends keys and values around once more; behind them travel the
    sums of their gradients. Nothing is padded: where a length does not divide, parts differ by a token or two.

    With b samples of s tokens whose keys and values have h elements each, a device sends 2 (p - 1)/p · b·s·h elements
    forward and 4 (p - 1)/p · b·s·h backward; gradients are sent in float32 at least.

    torch has `context_parallel` for this (`torch.distributed.tensor.experimental`), which this does not use: as of
    torch 2.13 it refuses causal attention on CPUs, and it knows no codes, no lengths that do not divide, and no ledger.
    What this lacks is its fused kernels: the scores of a block are held in memory.

    - `mesh`: the devices, such as `init_device_mesh("cpu", (4,))` or a mesh's dimension `mesh["cp"]`.
    - `length`: of the whole sequence.
    - `causal`: whether a token sees those before it alone.
    - `zigzag`: cut as `Parts` says, so that all devices have the same work where attention is causal.
    - `forward`, `backward`: how keys and values, and their gradients, are encoded on their way: any compression whose
      messages have a known length, such as `cast_bf16` or `int8(256)`. Gradients are encoded anew on every hop.
    - `seed`: of codes that draw random numbers.
    - `pair_seconds`: what computing takes, on a virtual clock.
    """
    if mesh.ndim != 1:
        raise LaconicError(f"a ring has one dimension, and this mesh {mesh.ndim}: give one of them, such as mesh['cp']")
    (group,) = groups_of(mesh).values()
    ways: dict[Direction, str] = {"forward": forward, "backward": backward}
    codes = {way: code for way, text in ways.items() if (code := MessageCode.of(text)) is not None}
    ring = Ring(connect(), group, codes, seed)
    return RingAttention(ring, Parts(length, group.size, zigzag), causal, pair_seconds)


class RingAttention:
    """Attention over a sequence that is cut among devices; `ring_attention` makes it.

    - `parts`: which device holds which tokens.
    - `positions`: of this device's tokens in the whole sequence, for position embeddings and targets.
    """

    def __init__(self, ring: Ring, parts: Parts, causal: bool, pair_seconds: PairSeconds | None = None) -> None:
        self.ring, self.parts, self.causal, self._pair_seconds = ring, parts, causal, pair_seconds
        self.positions = parts.positions(ring.group.rank)

    def cut(self, x: Tensor, dim: int = 1) -> Tensor:
        """Return this device's part of a tensor that has the whole sequence along a dimension."""
        if x.shape[dim] != self.parts.length:
            raise LaconicError(f"the sequence has {self.parts.length} tokens, and this tensor {x.shape[dim]}")
        return x.index_select(dim, self.positions.to(x.device))

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None = None) -> Tensor:
        """Return what `scaled_dot_product_attention` returns for this device's queries and the whole sequence.

        - `query`, `key`, `value`: those of this device's tokens, (batch, heads, tokens, width). A head of keys may
          serve several of queries, as with `enable_gqa`.
        - `scale`: what scores are multiplied by; default: one over the root of the width.
        """
        given, tokens = (query, key, value), self.parts.tokens(self.ring.group.rank)
        if any(x.ndim != 4 or x.shape[2] != tokens for x in given):
            raise LaconicError(
                f"this device holds {tokens} of the sequence's {self.parts.length} tokens: it wants queries, keys and "
                f"values of (batch, heads, {tokens}, width), not {', '.join(str(tuple(x.shape)) for x in given)}"
            )
        if query.shape[1] % key.shape[1] or key.shape[1] != value.shape[1] or key.dtype != value.dtype:
            raise LaconicError(
                "keys and values have the same heads and format, and their heads divide those of queries"
            )
        grouped = query.unflatten(1, (key.shape[1], -1))
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        mixed: Tensor = _Attention.apply(grouped, key.unsqueeze(2), value.unsqueeze(2), self, scale)  # type: ignore[no-untyped-call]
        return mixed.flatten(1, 2)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, scale: float, call: int) -> tuple[Tensor, Tensor]:
        """Return the outputs, and the logarithms of sums of exponentials."""
        ring, size, rank = self.ring, self.ring.group.size, self.ring.group.rank
        softmax = RunningSoftmax(query, value.shape[-1], scale)
        message = ring.encoded(_joined(key, value), "forward", f"{call}/{rank}")
        for step in range(size):
            source = (rank - step) % size
            more = step < size - 1
            following = self._room((source - 1) % size, key, value, key.dtype, "forward")
            passing = ring.begin_passing([message], [following]) if more else []
            keys, values = (key, value) if step == 0 else self._held(message, source, key, value, call)
            for block in self.parts.blocks(rank, source, self.causal):
                softmax.add(keys, values, block)
            self._note_time("forward", source)
            finish(passing)
            message = following
        return softmax.result()

    def backward(self, saved: Sequence[Tensor], gradient: Tensor, scale: float, call: int) -> tuple[Tensor, ...]:
        """Return the gradients of this device's queries, keys and values.

        In step t a device adds what its queries contribute to the gradients of keys that came t hops, and sends the sum
        on in the next step, beside the keys and values that the next device needs then. The last hop brings it home.
        """
        query, key, value, outputs, logarithms = saved
        ring, size, rank, dtype = self.ring, self.ring.group.size, self.ring.group.rank, logarithms.dtype
        message = ring.encoded(_joined(key, value), "forward", f"{call}/{rank}")  # the same bytes as before
        gradients = BlockGradients(query, outputs, logarithms, gradient, scale)
        home = total = key.new_empty(0)
        for step in range(size + 1 if size > 1 else 1):
            source = (rank - step) % size
            sends, rooms = [], []
            if step < size - 1:
                sends.append(message)
                rooms.append(self._room((source - 1) % size, key, value, key.dtype, "forward"))
            if step >= 2:
                sends.append(ring.encoded(total, "backward", f"{call}/{(source + 1) % size}/{step}"))
                rooms.append(self._room(source, key, value, dtype, "backward"))
            passing = ring.begin_passing(sends, rooms)
            added = self._contributed(gradients, step, source, key, value, message, call) if step < size else home
            finish(passing)
            if step >= 2:
                came = ring.decoded(rooms[-1], added.numel(), dtype, "backward", f"{call}/{source}/{step}")
                added = added + came
            home, total = (added if step in (0, size) else home), added
            message = rooms[0] if step < size - 1 else message
        of_keys, of_values = self._split(home, rank, key, value)
        return gradients.queries.to(query.dtype), of_keys.to(key.dtype), of_values.to(value.dtype)

    def _contributed(
        self, gradients: BlockGradients, step: int, source: int, key: Tensor, value: Tensor, message: Tensor, call: int
    ) -> Tensor:
        """Return what this device's queries contribute to the gradients of a device's keys and values, flat."""
        keys, values = (key, value) if step == 0 else self._held(message, source, key, value, call)
        dtype = gradients.queries.dtype
        into = torch.zeros_like(keys, dtype=dtype), torch.zeros_like(values, dtype=dtype)
        for block in self.parts.blocks(self.ring.group.rank, source, self.causal):
            gradients.add(keys, values, block, *into)
        self._note_time("backward", source)
        return _joined(*into)

    def _held(self, message: Tensor, source: int, key: Tensor, value: Tensor, call: int) -> Sequence[Tensor]:
        """Return the keys and values of another device."""
        numel = self._numel(source, key, value)
        flat = self.ring.decoded(message, numel, key.dtype, "forward", f"{call}/{source}")
        return self._split(flat, source, key, value)

    def _numel(self, device: int, *like: Tensor) -> int:
        tokens = self.parts.tokens(device)
        return sum(x.numel() // x.shape[-2] * tokens for x in like)

    def _room(self, device: int, key: Tensor, value: Tensor, dtype: torch.dtype, direction: Direction) -> Tensor:
        return self.ring.room(key, self._numel(device, key, value), dtype, direction)

    def _split(self, flat: Tensor, device: int, *like: Tensor) -> Sequence[Tensor]:
        """Return a device's keys and values, or their gradients, of which this flat tensor consists."""
        parts = flat.split([self._numel(device, x) for x in like])
        tokens = self.parts.tokens(device)
        return [part.view(*x.shape[:-2], tokens, x.shape[-1]) for part, x in zip(parts, like, strict=True)]

    def _note_time(self, part: Direction, source: int) -> None:
        """Tell a virtual clock how long the blocks with a device's keys have taken."""
        if self._pair_seconds is not None:
            pairs = self.parts.pairs(self.ring.group.rank, source, self.causal)
            self.ring.worker.computed(part, pairs * getattr(self._pair_seconds, part))


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, attention: RingAttention, scale: float) -> Tensor:
        attention.ring.calls += 1
        ctx.how = attention, scale, attention.ring.calls
        outputs, logarithms = attention.forward(query, key, value, scale, attention.ring.calls)
        ctx.save_for_backward(query, key, value, outputs, logarithms)
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        attention, scale, call = ctx.how
        return *attention.backward(ctx.saved_tensors, gradients[0], scale, call), None, None


def _joined(keys: Tensor, values: Tensor) -> Tensor:
    return torch.cat([keys.reshape(-1), values.reshape(-1)])
