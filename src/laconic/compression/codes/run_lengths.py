"""Places as lengths of runs: how many are left out, how many follow each other, and so on, in Elias codes."""

from __future__ import annotations

import torch
from torch import Tensor

from laconic.compression.codes import elias


def write(places: Tensor) -> Tensor:
    """Encode places, which are in ascending order: the number of runs and of bytes behind it, then gap and length of
    each."""
    begins = torch.diff(places, prepend=places.new_full((1,), -2)) != 1
    first = places[begins]
    lengths = torch.diff(torch.nonzero(begins).view(-1), append=begins.new_tensor([len(places)], dtype=torch.int64))
    gaps = first - torch.cat([first.new_zeros(1), (first + lengths)[:-1]])[: len(first)]
    runs = torch.stack([gaps + 1, lengths], dim=1)
    written = elias.encode(runs)
    return torch.cat([runs.new_tensor([len(runs), len(written)], dtype=torch.int32).view(torch.uint8), written])


def most(count: int, numel: int) -> int:
    """Return a number of bytes that so many places never exceed: each is a run of its own at most."""
    return 8 + -(-count * (elias.length(numel + 1) + elias.length(count + 1)) // 8)


def read(written: Tensor) -> tuple[Tensor, Tensor]:
    """Return the places, and the bytes behind them."""
    count, length = written[:8].clone().view(torch.int32).tolist()
    coded, rest = written[8:].tensor_split([length])
    if not count:
        return torch.zeros(0, dtype=torch.int64, device=written.device), rest
    gaps, lengths = elias.decode(coded, 2 * count).view(-1, 2).unbind(1)
    begins = torch.cumsum(gaps - 1 + lengths, 0) - lengths
    before = torch.cumsum(lengths, 0) - lengths
    within = torch.arange(int(lengths.sum()), device=written.device)
    return within + torch.repeat_interleave(begins - before, lengths), rest
