"""Lists of tensors for one launch: which tile belongs to which tensor, and where each tensor begins.

Tables are made of whole numbers alone and cached, since a bucket's tensors stay where they are for a whole run. They
are used on any stream: whoever makes one waits for its copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from laconic.kernels.draws import halves
from laconic.kernels.lists import listed


@dataclass(frozen=True)
class Tiles:
    """The arguments of `parts.located`, and the number of programs."""

    tiles: Any
    firsts: Any
    lengths: Any
    count: int
    listed: bool

    @property
    def place(self) -> tuple[Any, Any, Any]:
        return self.tiles, self.firsts, self.lengths


def table(numbers: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return these numbers as a tensor on the device, cached. A CUDA graph that is being recorded keeps the one that
    there is; where there is none it gets one of its own, which every replay copies again."""
    recording = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    found = _tables.get((numbers, dtype, device))
    if found is None and recording:
        pinned = torch.tensor(numbers, dtype=dtype, pin_memory=True)
        _of_graphs.append(pinned)
        return pinned.to(device, non_blocking=True)
    if found is None:
        if len(_tables) >= _MOST_TABLES:
            _tables.clear()
        found = _tables[numbers, dtype, device] = torch.tensor(numbers, dtype=dtype, device=device)
    if recording:
        _of_graphs.append(found)
    return found


_MOST_TABLES = 4096
_tables: dict[tuple[tuple[float, ...], torch.dtype, torch.device], Tensor] = {}
_of_graphs: list[Tensor] = []  # what the replays of graphs read: tables, or the host's side of them


@lru_cache(4096)
def tiled(lengths: tuple[int, ...], tile: int, device: torch.device) -> Tiles:
    """Return tiles of so many elements, of which the last of each tensor is shorter."""
    counts = [-(-n // tile) for n in lengths]
    if len(lengths) == 1:
        return Tiles(0, 0, lengths[0], counts[0], False)
    tiles = torch.repeat_interleave(torch.tensor(counts)).to(device=device, dtype=torch.int32)
    firsts = table((0, *accumulate(counts[:-1])), torch.int32, device)
    return Tiles(tiles, firsts, table(lengths, torch.int64, device), sum(counts), True)


def starts(lengths: Sequence[int]) -> tuple[int, ...]:
    """Return where each part begins if they lie one behind another, and where the last one ends."""
    return (0, *accumulate(lengths))


def pointers(tensors: Sequence[Tensor]) -> tuple[Any, bool]:
    """Return the tensor itself, or a table of where each begins, and whether all begin at a multiple of 16 bytes."""
    if len(tensors) == 1:
        return tensors[0], True  # Triton checks the alignment itself
    tensors = listed(tensors)
    return table(tensors.places, torch.int64, tensors[0].device), tensors.aligned


def keys_of(keys: Sequence[int], device: torch.device) -> Any:
    """Return each tensor's key as `parts.key_of` takes it: the number itself, or a table, which changes with every step
    and is copied without waiting. Keys that have a `table` already are that table."""
    if (recorded := getattr(keys, "table", None)) is not None:
        return recorded
    signed = [key - (key >> 63 << 64) for key in keys]
    if len(signed) == 1:
        return signed[0]
    return torch.tensor(signed, pin_memory=device.type == "cuda").to(device, non_blocking=True)


def halves_of(key: int) -> tuple[int, int]:
    """Return `draws.halves` of one key, as kernels take whole numbers of 32 bits."""
    low, high = halves(key)
    return low - (low >> 31 << 32), high - (high >> 31 << 32)


def outputs(lengths: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return a buffer for float32 tensors of these lengths, and where in it each begins."""
    begins = starts([-(-n // 4) * 4 for n in lengths])
    return torch.empty(begins[-1], device=device), table(begins[:-1], torch.int64, device)


def destinations(
    lengths: tuple[int, ...], out: Sequence[Tensor] | None, device: torch.device
) -> tuple[Tensor, Tensor, bool, list[Tensor]]:
    """Return where float32 tensors of these lengths are written: a pointer, how many elements behind it each begins,
    whether all of these are multiples of four, and the tensors: those of `out`, or new ones."""
    if out is None:
        room, begins = outputs(lengths, device)
        return room, begins, True, views(room, lengths)
    out = listed(out)
    behind = tuple((place - out.places[0]) // 4 for place in out.places)
    return out[0], table(behind, torch.int64, device), not any(begin % 4 for begin in behind), list(out)


def views(room: Tensor, lengths: Sequence[int]) -> list[Tensor]:
    """Return the tensors in such a buffer."""
    if not any(n % 4 for n in lengths):
        return list(room.split(list(lengths)))
    parts = room.split([size for n in lengths for size in (n, -n % 4)])
    return list(parts[::2])
