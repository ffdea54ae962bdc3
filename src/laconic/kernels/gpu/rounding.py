"""Rounding to bfloat16 at random for a list of tensors in one launch: 6 bytes an element."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from laconic.kernels import reference
from laconic.kernels.gpu.eligibility import plain
from laconic.kernels.gpu.lists import keys_of, pointers, starts, table, tiled
from laconic.kernels.gpu.triton_helpers import draw, key_of, loaded, located, pointed, stored
from laconic.kernels.lists import listed
from laconic.kernels.reference.rounding import MOST

_TILE, _WARPS = 4096, 4
_MOST = tl.constexpr(MOST)


@triton.jit(do_not_specialize=["place_2", "keys"])
def _round(xs, place_0, place_1, place_2, begins, keys, out, TILE: tl.constexpr, LISTED: tl.constexpr,
           ALIGNED: tl.constexpr):  # fmt: skip
    number, base, n = located(place_0, place_1, place_2, TILE, LISTED)
    low, high = key_of(keys, number)
    i = tl.arange(0, TILE)
    x = loaded(pointed(xs, number, LISTED, ALIGNED) + base, i, n - base, True)
    word = tl.minimum(tl.maximum(x, -_MOST), _MOST).to(tl.int32, bitcast=True)
    word = (word + (draw(base + i, low, high) >> 8)) & -65536
    stored(out + tl.load(begins + number) + base, i, n - base, word.to(tl.float32, bitcast=True).to(tl.bfloat16), True)


def round_randomly(xs: Sequence[Tensor], keys: Sequence[int]) -> Tensor:
    if not plain(*xs):
        return reference.round_randomly(xs, keys)
    xs = listed(xs)
    device, tiles, begins = xs[0].device, tiled(xs.lengths, _TILE, xs[0].device), starts(xs.lengths)
    out = torch.empty(begins[-1], dtype=torch.bfloat16, device=device)
    given, aligned = pointers(xs)
    _round[(tiles.count,)](
        given, *tiles.place, table(begins[:-1], torch.int64, device), keys_of(keys, device), out, _TILE,
        LISTED=len(xs) > 1, ALIGNED=aligned, num_warps=_WARPS,
    )  # fmt: skip
    return out
