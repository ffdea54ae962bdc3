"""Wait-free backpropagation: messages are sent while backward still computes other gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from laconic.claims import CoversOnce
from laconic.registry import knob, named_sentence, technique
from laconic.schedule.base import Schedule
from laconic.values.comm_plan import CommPlan, Groups, whole
from laconic.values.tensor_spec import TensorSpec
from laconic.values.timing import Timing

_USUAL_BYTES, _COMPRESSED_BYTES = 25 * 2**20, 64 * 2**20


@technique(
    "wfbp",
    aliases=["wait_free_backpropagation"],
    paper="Zhang et al., USENIX ATC 2017 (wait-free); Li et al., VLDB 2020 (merging by size)",
    claims=[CoversOnce()],
    worth_trying=["wfbp", "wfbp(5MiB)", "wfbp(1MiB)", "wfbp(0)"],
)
@dataclass(frozen=True)
class WFBP(Schedule):
    """Send gradients during backward, in the order in which they become ready, merged up to a size.

    A message closes with the tensor that fills it. The first may be smaller, so that communication starts early;
    tensors of one dtype share messages. Messages are sent in plan order on every worker, even when a later one is full
    sooner, so that collectives match. `bucket_bytes=0` sends every tensor alone. Where no size is given, messages of
    compressed gradients are longer: each costs a GPU's host the launches of coding, and sends a fraction of its bytes.
    """

    bucket_bytes: int | None = knob(
        None,
        low=0,
        doc="a message closes when it holds at least this many bytes; 25 MiB where nothing is said, or 64 MiB of "
        "gradients that are compressed",
    )
    first_bytes: int = knob(2**20, low=0, doc="the same for the first message of each dtype (at most bucket_bytes)")

    def for_compressed(self) -> WFBP:
        return replace(self, bucket_bytes=_COMPRESSED_BYTES) if self.bucket_bytes is None else self

    def plan(self, tensors: Sequence[TensorSpec], arrival: Sequence[int], timing: Timing | None = None) -> CommPlan:
        buckets = self.buckets(tensors, arrival)
        return CommPlan(tuple(tensors), buckets, whole(buckets, tensors, arrival))

    def buckets(self, tensors: Sequence[TensorSpec], arrival: Sequence[int]) -> Groups:
        """Return the tensors that share each message, in the order in which messages are sent."""
        closed: list[list[int]] = []
        growing: dict[torch.dtype, list[int]] = {}
        held: dict[torch.dtype, int] = {}
        caps: dict[torch.dtype, int] = {}
        usual = _USUAL_BYTES if self.bucket_bytes is None else self.bucket_bytes
        for i in arrival:
            dtype = tensors[i].dtype
            message = growing.setdefault(dtype, [])
            message.append(i)
            cap = caps.setdefault(dtype, min(self.first_bytes, usual))
            held[dtype] = held.get(dtype, 0) + tensors[i].nbytes
            if held[dtype] >= cap:
                closed.append(growing.pop(dtype))
                caps[dtype], held[dtype] = usual, 0
        position = {i: k for k, i in enumerate(arrival)}
        ordered = sorted([*closed, *growing.values()], key=lambda message: position[message[0]])
        return tuple(map(tuple, ordered))


named_sentence(
    "wfbp_a2a",
    "bsp / none / allreduce / wfbp(0)",
    axis="schedule",
    paper="Zhang et al., USENIX ATC 2017; Shi et al., arXiv 2005.13247",
    doc="One all-reduce per tensor, launched as soon as its gradient exists.",
)

named_sentence(
    "pytorch_ddp",
    "bsp / none / allreduce / wfbp(25MiB, first_bytes=1MiB)",
    axis="schedule",
    paper="Li et al., PyTorch Distributed, VLDB 2020",
    aliases=["ddp"],
    doc="What PyTorch's DDP does: static merging by size in reverse registration order, rebuilt once from arrival.",
)

named_sentence(
    "wfbp_ps",
    "bsp / none / ps / wfbp(0)",
    axis="schedule",
    paper="Zhang et al., USENIX ATC 2017; Shi et al., arXiv 2005.13247",
    doc="Every tensor is pushed as soon as its gradient exists, and pulled when all workers have pushed it.",
)
