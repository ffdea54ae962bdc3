"""How each bucket of a tier is exchanged: as a whole or tensor by tensor, as CUDA graphs or not, and which hot loops
plain torch computed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch

from laconic.kernels.fallbacks import Calls, counted_within
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Communication, Worker


@dataclass(frozen=True)
class BucketReport:
    """How one bucket of a sentence has been exchanged so far.

    - `sentence`, `tensors`, `elements`, `dtype`, `device`: what it is.
    - `one_by_one`: why its tensors are exchanged one by one; None: they are exchanged as a whole.
    - `graphed`: whether what it computes is replayed as CUDA graphs.
    - `refusal`: why it is not, on a GPU.
    - `exchanges`: how many exchanges Python has run; replays of graphs are not counted.
    - `fallbacks`: by name, how many calls of hot loops plain torch computed in them, since no faster body took the
      tensors.
    """

    sentence: str
    tensors: tuple[str, ...]
    elements: int
    dtype: str
    device: str
    one_by_one: str | None
    graphed: bool
    refusal: str | None
    exchanges: int
    fallbacks: Mapping[str, int]


@dataclass(eq=False)
class BucketUse:
    """What is noted of one bucket while it is exchanged."""

    specs: Sequence[TensorSpec]
    device: torch.device
    one_by_one: str | None = None
    exchanges: int = 0
    calls: Calls = field(default_factory=Counter)

    def counted(self, communication: Communication[Any]) -> Communication[Any]:
        """Count a communication as an exchange of this bucket, and what plain torch computes in it."""
        self.exchanges += 1
        return counted_within(communication, self.calls)


class BucketUses:
    """The buckets of one tier, by the names of their tensors."""

    def __init__(self, worker: Worker | None) -> None:
        self._worker = worker
        self._uses: dict[tuple[str, ...], BucketUse] = {}

    def of(self, specs: Sequence[TensorSpec], device: torch.device) -> BucketUse:
        """Return the notes on this bucket."""
        names = tuple(spec.name for spec in specs)
        if names not in self._uses:
            use = self._uses[names] = BucketUse(specs, device)
            if self._worker is not None:
                _by_worker.setdefault(self._worker, []).append(use.calls)
        self._uses[names].specs = specs
        return self._uses[names]

    def reports(self, sentence: str, graphs: Mapping[int, str | None]) -> list[BucketReport]:
        """Return the notes on all buckets; `graphs` has those that may be recorded, by the identity of their
        specifications, each with the reason why it is not."""
        return [
            BucketReport(
                sentence,
                names,
                sum(spec.numel for spec in use.specs),
                str(use.specs[0].dtype).removeprefix("torch."),
                str(use.device),
                use.one_by_one,
                id(use.specs) in graphs and graphs[id(use.specs)] is None,
                graphs.get(id(use.specs)) or _no_graph(use, id(use.specs) in graphs),
                use.exchanges,
                dict(sorted(use.calls.items())),
            )
            for names, use in self._uses.items()
        ]


def _no_graph(use: BucketUse, recorded: bool) -> str | None:
    if use.device.type != "cuda" or recorded:
        return None
    return "its tensors are exchanged one by one" if use.one_by_one else "it is not exchanged on a stream of its own"


_by_worker: WeakKeyDictionary[Worker, list[Calls]] = WeakKeyDictionary()


def fallbacks_of(worker: Worker) -> dict[str, int]:
    """Return by name how many calls of hot loops plain torch has computed for a worker, in all of its buckets."""
    return dict(sorted(sum(_by_worker.get(worker, ()), Counter[str]()).items()))
