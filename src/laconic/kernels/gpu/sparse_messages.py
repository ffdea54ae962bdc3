"""Messages of chosen places and values for a whole list of tensors, in a few launches and without waiting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from laconic.kernels import reference, sparse_messages
from laconic.kernels.gpu import compaction, passing_runs, radix, sampled_lists
from laconic.kernels.gpu.lists import Tiles, keys_of, pointers, starts, table, tiled
from laconic.kernels.lists import TensorList, listed
from laconic.kernels.sparse_messages import part_bytes

_MOST = (1 << 31) - (1 << 20)  # the largest number of elements of a list
_WARPS, _PART = 4, 1024  # elements that a program writes at once
_TILE, _ROWS = 2048, 16  # elements whose runs are copied together; tiles of which a program moves the runs
_SAMPLE_TILE, _SAMPLE_WARPS = 4096, 8


@dataclass(frozen=True)
class _Room:
    """Memory of one message: tallies, and memory that is zero for group sums, counts and the message itself."""

    tallies: Tensor
    state: Tensor
    groups: Tensor
    counts: Tensor
    words: Tensor


def _room(tiles: Tiles, tensors: int, counts: int, length: int, device: torch.device) -> _Room:
    groups = -(-tiles.count // compaction.GROUP.value)
    sizes = [2 * groups, counts, -(-length // 4) + 1]
    begins = starts([-(-size // 4) * 4 for size in sizes])  # at multiples of 16 bytes
    zeros = torch.zeros(begins[-1], dtype=torch.int32, device=device)
    found, held, words = (zeros[begin : begin + size] for begin, size in zip(begins, sizes, strict=False))
    tallies = torch.empty(tiles.count, dtype=torch.int64, device=device)
    state = torch.empty(tensors * radix.STATE.value, dtype=torch.int32, device=device)
    return _Room(tallies, state, found.view(torch.int64), held, words)


def _suit(xs: TensorList, errors: TensorList | None) -> bool:
    given = xs.plain and (errors is None or errors.plain)
    return given and all(xs.lengths) and sum(xs.lengths) < _MOST


def encode_largest(
    xs: Sequence[Tensor], errors: Sequence[Tensor] | None, counts: Sequence[int], widths: Sequence[int]
) -> Tensor:
    xs, errors = listed(xs), None if errors is None else listed(errors)
    if not _suit(xs, errors):
        return sparse_messages.encode_largest(reference, xs, errors, counts, widths)
    device = xs[0].device
    tiles = tiled(xs.lengths, radix.TILE, device)
    begins = starts([part_bytes(count, width) for count, width in zip(counts, widths, strict=True)])
    room = _room(tiles, len(xs), len(xs) * radix.COUNTS.value, begins[-1], device)
    ks, bits = table(tuple(counts), torch.int32, device), table(tuple(widths), torch.int32, device)
    radix.find_limits(xs, errors, ks, room.counts, room.state)
    given, aligned = pointers(xs if errors is None else errors)
    compaction.tally_largest[(tiles.count,)](
        given, *tiles.place, room.state, room.tallies, room.groups, radix.TILE, tiles.listed, aligned,
        num_warps=_WARPS,
    )  # fmt: skip
    compaction.write_chosen[(tiles.count,)](
        given, *tiles.place, ks, bits, table(begins[:-1], torch.int64, device), room.state, room.tallies, room.groups,
        room.words, radix.TILE, min(_PART, radix.TILE), errors is not None, tiles.listed, aligned, num_warps=_WARPS,
    )  # fmt: skip
    return room.words.view(torch.uint8)[: begins[-1]]


def encode_sampled(
    xs: Sequence[Tensor],
    errors: Sequence[Tensor] | None,
    samples: Sequence[tuple[int, int]],
    most: Sequence[int],
    widths: Sequence[int],
    keys: Sequence[int],
) -> Tensor:
    xs, errors = listed(xs), None if errors is None else listed(errors)
    if not _suit(xs, errors):
        return sparse_messages.encode_sampled(reference, xs, errors, samples, most, widths, keys)
    device, fed = xs[0].device, errors is not None
    tiles, own = tiled(xs.lengths, _TILE, device), _own(xs.lengths, most)
    begins = starts([part_bytes(count, width, True) for count, width in zip(most, widths, strict=True)])
    digits = len(xs) * sampled_lists.COUNTED.value
    room = _room(tiles, len(xs), digits + 2 * len(xs), begins[-1], device)
    totals = room.counts[digits:]
    runs = torch.empty(tiles.count * own, dtype=torch.int64, device=device)
    ks, bits = table(tuple(most), torch.int32, device), table(tuple(widths), torch.int32, device)
    (given, aligned), (memory, aligned_too) = pointers(xs), pointers(xs if errors is None else errors)
    both_aligned = aligned and aligned_too
    limits = _limits(xs, given, memory, samples, keys, room.counts, fed, both_aligned)
    passing_runs.copy_passing[(tiles.count,)](
        given, memory, *tiles.place, limits, totals, room.tallies, room.groups, runs, _TILE, own, fed, tiles.listed,
        both_aligned, num_warps=1, enable_fp_fusion=False,
    )  # fmt: skip
    behind = table(tuple(begin + 4 for begin in begins[:-1]), torch.int64, device)  # the numbers of values
    firsts = table(starts([-(-n // _TILE) for n in xs.lengths])[:-1], torch.int32, device)
    sampled_lists.settle[(len(xs),)](
        memory, table(xs.lengths, torch.int64, device), firsts, limits, ks, behind, totals, room.state, room.tallies,
        room.groups, room.words, _TILE, tiles.listed, aligned_too, num_warps=_WARPS,
    )  # fmt: skip
    several = tiled(xs.lengths, _TILE * _ROWS, device)
    passing_runs.write_passing[(several.count,)](
        memory, *several.place, firsts, ks, bits, behind, room.state, room.tallies, room.groups, runs, room.words,
        _TILE, _ROWS, min(_PART, _TILE), own, fed, tiles.listed, aligned_too, num_warps=_WARPS,
    )  # fmt: skip
    return room.words.view(torch.uint8)[: begins[-1]]


def _own(lengths: Sequence[int], most: Sequence[int]) -> int:
    """Return how many places a tile has for what passes: four times the expected number, since large values of a
    gradient lie together; no more than a quarter of it, which takes half as much memory as the tensors."""
    return min(_TILE // 4, max(32, triton.next_power_of_2(4 * _TILE * sum(most) // sum(lengths))))


def _limits(
    xs: TensorList, given: object, memory: object, samples: Sequence[tuple[int, int]], keys: Sequence[int],
    counts: Tensor, fed: bool, aligned: bool,
) -> Tensor:  # fmt: skip
    """Return the bits of each tensor's limit; digits are counted in `counts`, which are zero."""
    device = xs[0].device
    looked = tuple(min(count, (1 << 31) - 1) for count, _ in samples)
    held = [min(count, n) for count, n in zip(looked, xs.lengths, strict=True)]
    begins = starts(held)
    limits = torch.empty(len(xs), dtype=torch.int32, device=device)
    sampled_lists.sample_limits[(-(-max(held) // _SAMPLE_TILE), len(xs))](
        given, memory, table(xs.lengths, torch.int64, device), table(looked, torch.int64, device),
        table(tuple(k for _, k in samples), torch.int32, device), table(begins[:-1], torch.int64, device),
        keys_of(keys, device), torch.empty(begins[-1], device=device), counts, limits, _SAMPLE_TILE, fed, len(xs) > 1,
        aligned, num_warps=_SAMPLE_WARPS, enable_fp_fusion=False,
    )  # fmt: skip
    return limits
