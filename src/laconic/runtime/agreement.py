"""A check before the first step that all ranks are about to do the same thing.

A difference found here is an error message; found later it is a hang. Each rank describes itself as JSON; digests are
compared first, and only where they differ are the descriptions exchanged and the first difference named, the same on
every rank.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Generator
from typing import Any

import torch
from torch import nn, optim

from laconic._version import __version__
from laconic.errors import Disagreement
from laconic.worker import Group

Description = dict[str, Any]


def describe(model: nn.Module, optimizer: optim.Optimizer, strategy: str, options: Description) -> Description:
    """Return everything that must be equal on all ranks, from the most to the least informative."""
    return {
        "laconic version": __version__,
        "torch version": torch.__version__,
        "python version": ".".join(platform.python_version_tuple()[:2]),
        "strategy": strategy,
        **{f"option {key}": value for key, value in options.items()},
        "parameters": {name: _kind(p) for name, p in model.named_parameters()},
        "buffers": {name: _kind(b) for name, b in model.named_buffers()},
        "optimizer": type(optimizer).__name__,
    }


def agree(mine: Description, group: Group, device: torch.device) -> None:
    """Raise `Disagreement` on every rank, naming ranks and difference, unless all descriptions are equal."""
    text = json.dumps(mine)
    digest = _bytes(hashlib.sha256(text.encode()).digest(), device)
    digests = group.all_gather(digest, control=1.0).wait().cpu()
    different = (digests != digests[0]).any(dim=1).nonzero()
    if not len(different):
        return
    odd = int(different[0])
    theirs = _read_all(_bytes(text.encode(), device), group)
    raise Disagreement(_difference(theirs[0], theirs[odd], group.ranks[0], group.ranks[odd]))


def _bytes(raw: bytes, device: torch.device) -> torch.Tensor:
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8).to(device)


def _read_all(raw: torch.Tensor, group: Group) -> list[Description]:
    length = torch.tensor([raw.numel()], device=raw.device)
    lengths = group.all_gather(length, control=1.0).wait().view(-1).tolist()
    padded = raw.new_zeros(max(lengths))
    padded[: raw.numel()] = raw
    rows = group.all_gather(padded, control=1.0).wait()
    return [json.loads(bytes(row[:n].tolist())) for row, n in zip(rows, lengths, strict=True)]


def _difference(a: Description, b: Description, rank_a: int, rank_b: int) -> str:
    for key in [*a, *(k for k in b if k not in a)]:
        if a.get(key) != b.get(key):
            what, left, right = next(_innermost(key, a.get(key), b.get(key)))
            return (
                f"ranks {rank_a} and {rank_b} do not run the same thing: {what} is {left} on rank {rank_a} and {right} "
                f"on rank {rank_b}. Start all ranks with the same script, versions and arguments."
            )
    return f"ranks {rank_a} and {rank_b} do not run the same thing: they name the same parameters in another order"


def _innermost(key: str, a: Any, b: Any) -> Generator[tuple[str, str, str], None, None]:
    if isinstance(a, dict) and isinstance(b, dict):
        for name in [*a, *(k for k in b if k not in a)]:
            if a.get(name) != b.get(name):
                yield f"{key.removesuffix('s')} {name!r}", str(a.get(name, "absent")), str(b.get(name, "absent"))
    yield key, repr(a), repr(b)


def _kind(tensor: torch.Tensor) -> str:
    trainable = ", trainable" if tensor.requires_grad else ""
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)} strides {list(tensor.stride())}{trainable}"
