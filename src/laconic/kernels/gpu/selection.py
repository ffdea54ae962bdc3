"""Selection by a threshold at memory speed, with or without error feedback; many tensors in one launch.

One pass over the data: a tile makes one bit of each element, 32 to a word, and extracts what passes from the words, bit
by bit: few pass, and they still lie in the cache. A tile has a few places of its own in a scratch buffer, and reserves
room with an atomic addition only where they do not suffice. A second launch, which touches only what passed, puts the
runs in order. 4 bytes an element, 12 with a memory, and about 30 for each that passes. Their number is not known
beforehand: there is room for one in sixteen; tiles that found none are marked, and processed again with room for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from laconic.kernels import messages, reference
from laconic.kernels.gpu.eligibility import plain
from laconic.kernels.gpu.lists import Tiles, pointers, tiled
from laconic.kernels.gpu.triton_helpers import INTERPRETED, loaded, located, pointed, stored

_TILE, _WARPS = 2048, 1
_OWN = 32  # elements of a tile for each place of its own
_SHARE, _MORE = 32, 4096  # room to reserve: a place for so many elements, and so many more
_WIDTH = 32  # how much of each run is moved at once
GROUP = tl.constexpr(64)
"""The number of tiles whose runs a program moves, and whose counts are added up for the programs after it."""
BLOCK = tl.constexpr(1024)
LENGTH, MASK = tl.constexpr(16), tl.constexpr((1 << 16) - 1)
"""The number of bits of a run's length, above which its beginning is stored."""

Limits = Sequence[float | Tensor] | Tensor


@triton.jit
def ones(word):
    """Return how many bits are set."""
    word = word.to(tl.uint32)
    word -= (word >> 1) & 0x55555555
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    return ((((word + (word >> 4)) & 0x0F0F0F0F) * 0x01010101) >> 24).to(tl.int32)


@triton.jit
def _second(first, second):
    return second


@triton.jit
def dealt(words):
    """Return the same words, each in one thread: after a sum along rows, all threads of a row have it, and Triton would
    keep that layout. The output of a scan has a new layout; this scan changes nothing else."""
    if INTERPRETED:
        return words
    else:
        return tl.associative_scan(words, 0, _second)


@triton.jit
def lowest(word):
    """Return the number of the lowest bit that is set: the exponent of its value."""
    bit = (word & (0 - word)).to(tl.uint32).to(tl.float32)
    return (bit.to(tl.int32, bitcast=True) >> 23) - 127


@triton.jit
def written(x, error, words, before, most, to, TILE: tl.constexpr, FED: tl.constexpr):
    """Write the place of each bit, and the bits of the value there, one behind another."""
    group = tl.arange(0, TILE // 32) * 32
    for _ in range(most):
        some = words != 0
        i = group + lowest(words)
        v = tl.load(x + i, mask=some, other=0.0)
        if FED:
            v += tl.load(error + i, mask=some, other=0.0)
        word = (v.to(tl.int32, bitcast=True).to(tl.int64) << 32) | i.to(tl.int64)
        tl.store(to + before, word, mask=some)
        before += 1
        words &= words - 1


@triton.jit
def _compact_tile(x, error, rest, limit, runs, state, room, scratch, TILE: tl.constexpr, OWN: tl.constexpr,
                  FED: tl.constexpr, KEPT: tl.constexpr, NANS: tl.constexpr, AGAIN: tl.constexpr,
                  MASKED: tl.constexpr):  # fmt: skip
    bit = tl.arange(0, 32)[None, :]
    i = tl.arange(0, TILE // 32)[:, None] * 32 + bit
    v = loaded(x, i, rest, MASKED)
    if FED:
        v += loaded(error, i, rest, MASKED)
    passes = (tl.abs(v) < limit) == 0 if NANS else tl.abs(v) >= limit
    if MASKED:
        passes &= i < rest
    words = dealt(tl.sum(tl.where(passes, 1 << bit, 0), 1))
    each = ones(words)
    before = tl.cumsum(each, 0) - each
    count = tl.sum(each, 0)
    tile = tl.program_id(0)
    start = tile.to(tl.int64) * OWN
    if count > (-1 if AGAIN else OWN):
        asked = tl.atomic_add(state, count.to(tl.int64), sem="relaxed")
        start = tl.where(asked + count <= room, asked + tl.num_programs(0).to(tl.int64) * OWN, -1)
    if not AGAIN:
        tl.atomic_add(state + 1 + tile // GROUP, count.to(tl.int64), sem="relaxed")
    tl.store(runs + tile, (start << LENGTH) | count)
    if start >= 0:
        written(x, error, words, before, tl.max(each, 0), scratch + start, TILE, FED)
        if KEPT:
            tl.debug_barrier()  # wait until all threads have read what is overwritten
            stored(error, i, rest, tl.where(passes, v - v, v), MASKED)
    else:
        if FED:
            stored(error, i, rest, v, MASKED)


@triton.jit(do_not_specialize=["place_2", "room"])
def _compact(x, error, place_0, place_1, place_2, limits, runs, state, room, scratch, TILE: tl.constexpr,
             OWN: tl.constexpr, FED: tl.constexpr, KEPT: tl.constexpr, NANS: tl.constexpr, AGAIN: tl.constexpr,
             LISTED: tl.constexpr, ALIGNED: tl.constexpr):  # fmt: skip
    """Copy what passes of v = x + error (FED), or x, into the scratch; the rest stays in `error` (KEPT). AGAIN: only
    tiles that found no room before."""
    number, base, n = located(place_0, place_1, place_2, TILE, LISTED)
    x = pointed(x, number, LISTED, ALIGNED) + base
    if KEPT:
        error = pointed(error, number, LISTED, ALIGNED) + base
    limit = tl.load(limits + number)
    missing = True
    if AGAIN:
        missing = tl.load(runs + tl.program_id(0)) < 0
    if missing:
        if base + TILE <= n:
            _compact_tile(x, error, n - base, limit, runs, state, room, scratch, TILE, OWN, FED, KEPT, NANS, AGAIN,
                          False)  # fmt: skip
        else:
            _compact_tile(x, error, n - base, limit, runs, state, room, scratch, TILE, OWN, FED, KEPT, NANS, AGAIN,
                          True)  # fmt: skip


@triton.jit(do_not_specialize=["number_of_tiles", "tensors", "room"])
def _move(scratch, runs, state, tiles, firsts, number_of_tiles, ends, tensors, places, values, room,
          TILE: tl.constexpr, WIDTH: tl.constexpr, LISTED: tl.constexpr):  # fmt: skip
    """Move each tile's run to its place in the order of tiles, as places in its tensor and values; also write where
    each tensor's runs end, and how much room was requested."""
    group = tl.program_id(0)
    if group == 0:
        tl.store(ends + tensors, tl.load(state))
    earlier = tl.zeros([BLOCK], tl.int64)
    for first in range(0, group, BLOCK):
        j = first + tl.arange(0, BLOCK)
        earlier += tl.load(state + 1 + j, mask=j < group, other=0)
    tile = group * GROUP + tl.arange(0, GROUP)
    inside = tile < number_of_tiles
    run = tl.load(runs + tile, mask=inside, other=0)
    begin, count = run >> LENGTH, run & MASK
    end = tl.sum(earlier, 0) + tl.cumsum(count, 0)
    into = end - count
    count = tl.where((begin >= 0) & (end <= room), count, 0)  # tiles without room are processed again
    last = tile == number_of_tiles - 1
    if LISTED:
        number = tl.load(tiles + tile, mask=inside, other=0)
        last |= inside & (number != tl.load(tiles + tile + 1, mask=tile + 1 < number_of_tiles, other=-1))
        tl.store(ends + number, end, mask=last)
        tile -= tl.load(firsts + number)
    else:
        tl.store(ends + tile * 0, end, mask=last)
    base = tile.to(tl.int64) * TILE
    for first in range(0, tl.max(count, 0).to(tl.int32), WIDTH):
        j = first + tl.arange(0, WIDTH)[None, :]
        some = j < count[:, None]
        word = tl.load(scratch + begin[:, None] + j, mask=some, other=0)
        to = into[:, None] + j
        tl.store(places + to, base[:, None] + word.to(tl.int32), mask=some)
        tl.store(values + to, (word >> 32).to(tl.int32).to(tl.float32, bitcast=True), mask=some)


def _even(n: int) -> int:
    """Return n rounded up such that what lies behind so many numbers of 8 bytes begins at a multiple of 16, where
    Triton sees no new kind of call."""
    return n + n % 2


@dataclass
class Passing:
    """The result of a compaction, on the device: words in a scratch buffer, each tile's run, and each group's counts.

    Of each tile it has where its run begins and how long it is; of each group of tiles how many values those are,
    behind the total room that was requested.
    """

    tiles: Tiles
    scratch: Tensor
    runs: Tensor
    state: Tensor
    tensors: int

    def moved(self, room: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return places and values in order, in tensors of length `room`, and where those of each tensor end; the last
        entry is how much room was requested."""
        device, tiles = self.scratch.device, self.tiles
        places = torch.empty(_even(room) + self.tensors + 1, dtype=torch.int64, device=device)
        values, ends = torch.empty(room, device=device), places[_even(room) :]
        _move[(-(-tiles.count // GROUP.value),)](
            self.scratch, self.runs, self.state, tiles.tiles, tiles.firsts, tiles.count, ends, self.tensors, places,
            values, room, _TILE, _WIDTH, tiles.listed, num_warps=4,
        )  # fmt: skip
        return places, values, ends


def compacted(xs: Sequence[Tensor], errors: Sequence[Tensor] | None, limits: Tensor, room: int, nans: bool) -> Passing:
    """Compact a list of tensors in one pass, without waiting; `room` is what tiles can reserve beyond their own
    places."""
    device = xs[0].device
    tiles = tiled(tuple(x.numel() for x in xs), _TILE, device)
    own = tiles.count * (_TILE // _OWN)
    held = _even(own + room)
    scratch = torch.empty(held + tiles.count, dtype=torch.int64, device=device)
    state = torch.zeros(1 - (-tiles.count // GROUP.value), dtype=torch.int64, device=device)
    found = Passing(tiles, scratch[: own + room], scratch[held:], state, len(xs))
    _launch(found, xs, errors, limits, nans, False)
    return found


def _launch(
    found: Passing, xs: Sequence[Tensor], errors: Sequence[Tensor] | None, limits: Tensor, nans: bool, again: bool
) -> None:
    (given, aligned), (memory, aligned_too) = pointers(xs), pointers(errors or xs)
    kept, own = errors is not None, _TILE // _OWN
    _compact[(found.tiles.count,)](
        memory if again else given, memory, *found.tiles.place, limits, found.runs, found.state,
        found.scratch.numel() - found.tiles.count * own, found.scratch, _TILE, own, kept and not again, kept, nans,
        again, found.tiles.listed, aligned and aligned_too, num_warps=_WARPS, enable_fp_fusion=False,
    )  # fmt: skip


def _each(
    xs: Sequence[Tensor], errors: Sequence[Tensor] | None, thresholds: Limits, nans: bool
) -> list[tuple[Tensor, Tensor]]:
    """Return what passes in each tensor; the host waits once, for their numbers."""
    device, n = xs[0].device, sum(x.numel() for x in xs)
    limits = on_device(thresholds, device)
    asked_for = n // _SHARE + _MORE
    found = compacted(xs, errors, limits, asked_for, nans)
    places, values, at = found.moved(found.scratch.numel())
    *ends, asked = at.tolist()
    if asked > asked_for:
        found.scratch = torch.cat([found.scratch, found.scratch.new_empty(ends[-1])])
        found.state[0] = asked_for
        _launch(found, xs, errors, limits, nans, True)
        places, values, _ = found.moved(ends[-1])
    return [(places[a:b], values[a:b]) for a, b in zip([0, *ends], ends, strict=False)]


def on_device(thresholds: Limits, device: torch.device) -> Tensor:
    """Return the thresholds as one tensor on the device, a number for each tensor."""
    if not isinstance(thresholds, Tensor) and len(thresholds) == 1:
        only = thresholds[0]
        thresholds = only if isinstance(only, Tensor) else torch.full((1,), only, dtype=torch.float32, device=device)
    if isinstance(thresholds, Tensor):
        return thresholds.to(device, torch.float32).view(-1)
    if any(isinstance(threshold, Tensor) for threshold in thresholds):
        return torch.stack([torch.as_tensor(threshold, dtype=torch.float32, device=device) for threshold in thresholds])
    plain = torch.tensor(thresholds, dtype=torch.float32, pin_memory=device.type == "cuda")
    return plain.to(device, non_blocking=True)


def suit(*tensors: Tensor) -> bool:
    return plain(*tensors) and all(x.numel() for x in tensors)


def select(x: Tensor, threshold: float | Tensor) -> tuple[Tensor, Tensor]:
    return _each([x], None, [threshold], False)[0] if suit(x) else reference.select(x, threshold)


def passing(x: Tensor, threshold: float | Tensor) -> tuple[Tensor, Tensor]:
    return passing_each([x], [threshold])[0]


def feed_selected(x: Tensor, error: Tensor, threshold: float | Tensor) -> tuple[Tensor, Tensor]:
    return feed_selected_each([x], [error], [threshold])[0]


def passing_each(xs: Sequence[Tensor], thresholds: Limits) -> list[tuple[Tensor, Tensor]]:
    return _each(xs, None, thresholds, True) if suit(*xs) else messages.passing_each(reference, xs, thresholds)


def feed_selected_each(
    xs: Sequence[Tensor], errors: Sequence[Tensor], thresholds: Limits
) -> list[tuple[Tensor, Tensor]]:
    if not suit(*xs, *errors):
        return messages.feed_selected_each(reference, xs, errors, thresholds)
    return _each(xs, errors, thresholds, True)
