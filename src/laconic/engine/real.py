"""The real engine's worker: `torch.distributed` behind the interface of `worker.py`.

gloo carries CPU tensors, NCCL carries CUDA tensors. Bytes of a backend's collective are what was handed over times the
factor of the algorithm it uses; the factors are checked against a network interface's own counter in `bench/`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Literal

import torch.distributed as dist
from torch import Tensor
from torch.autograd import Variable

from laconic.engine.ledger import Ledger
from laconic.engine.liveness.heartbeat import Heartbeat

_OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}


class RealHandle:
    """A `dist.Work` and the tensor it leaves behind. A failure is explained by the heartbeat, not by the backend."""

    def __init__(self, work: Any, result: Any, worker: RealWorker) -> None:
        self.work, self.result, self._worker = work, result, worker

    def done(self) -> bool:
        return bool(self.work.is_completed())

    def wait(self) -> Any:
        try:
            self.work.wait()
        except RuntimeError as error:
            raise self._worker.explain(error) from error
        return self.result


class SummedHandle:
    """A reduce-scatter made of an all-to-all: what arrives is added in rank order."""

    def __init__(self, arriving: RealHandle, size: int) -> None:
        self._arriving, self._size = arriving, size

    def done(self) -> bool:
        return self._arriving.done()

    def wait(self) -> Tensor:
        first, *rest = self._arriving.wait().view(self._size, -1)
        total: Tensor = first.clone()
        for block in rest:
            total += block
        return total


class RealGroup:
    """Collectives of one process group, counted."""

    def __init__(self, worker: RealWorker, process_group: dist.ProcessGroup) -> None:
        self._worker, self.process_group = worker, process_group
        self.rank: int = dist.get_rank(process_group)
        self.size: int = dist.get_world_size(process_group)
        self.ranks: tuple[int, ...] = tuple(dist.get_process_group_ranks(process_group))

    def all_reduce(
        self,
        tensor: Tensor,
        op: Literal["sum", "max"] = "sum",
        control: float = 0.0,
    ) -> RealHandle:
        self._count("all_reduce", 2 * (self.size - 1) / self.size * tensor.nbytes, control)
        return self._handle(dist.all_reduce(tensor, _OPS[op], group=self.process_group, async_op=True), tensor)

    def all_gather(self, tensor: Tensor, control: float = 0.0) -> RealHandle:
        flat = tensor.contiguous().view(-1)
        out = flat.new_empty(self.size * flat.numel())
        self._count("all_gather", (self.size - 1) * tensor.nbytes, control)
        work = _all_gather(out, flat, group=self.process_group, async_op=True)
        return self._handle(work, out.view(self.size, *tensor.shape))

    def all_to_all(
        self,
        tensor: Tensor,
        send_lengths: Sequence[int] | None = None,
        receive_lengths: Sequence[int] | None = None,
        control: float = 0.0,
    ) -> RealHandle:
        block = tensor.numel() // self.size
        sends = [block] * self.size if send_lengths is None else list(send_lengths)
        receives = [block] * self.size if receive_lengths is None else list(receive_lengths)
        item = tensor.element_size()
        sent, received = (item * (sum(n) - n[self.rank]) for n in (sends, receives))
        self._worker.ledger.record("all_to_all", sent, received, control)
        out = tensor.new_empty(sum(receives))
        work = dist.all_to_all_single(out, tensor, receives, sends, group=self.process_group, async_op=True)
        return self._handle(work, out)

    def reduce_scatter(self, tensor: Tensor, control: float = 0.0) -> RealHandle | SummedHandle:
        flat = tensor.contiguous().view(-1)
        if flat.device.type == "cpu":  # gloo's own sends twice what it should (bench/ledger.py)
            return SummedHandle(self.all_to_all(flat, control=control), self.size)
        out = flat.new_empty(flat.numel() // self.size)
        self._count("reduce_scatter", (self.size - 1) / self.size * tensor.nbytes, control)
        return self._handle(_reduce_scatter(out, flat, group=self.process_group, async_op=True), out)

    def broadcast(self, tensor: Tensor, root: int = 0, control: float = 0.0) -> RealHandle:
        place = (self.rank - root) % self.size  # gloo's binomial tree: in round i the first 2^i pass it on
        children = sum(place < 2**i and place + 2**i < self.size for i in range(self.size.bit_length()))
        received = tensor.nbytes if place else 0
        self._worker.ledger.record("broadcast", tensor.nbytes * children, received, control)
        work = dist.broadcast(tensor, self.ranks[root], group=self.process_group, async_op=True)
        return self._handle(work, tensor)

    def send(self, tensor: Tensor, to: int, tag: int = 0, control: float = 0.0) -> RealHandle:
        self._worker.ledger.record("send", tensor.nbytes, 0, control)
        return self._handle(dist.isend(tensor, self.ranks[to], self.process_group, tag), tensor)

    def receive(self, tensor: Tensor, source: int, tag: int = 0, control: float = 0.0) -> RealHandle:
        self._worker.ledger.record("receive", 0, tensor.nbytes, control)
        return self._handle(dist.irecv(tensor, self.ranks[source], self.process_group, tag), tensor)

    def barrier(self) -> RealHandle:
        return self._handle(dist.barrier(self.process_group, async_op=True), None)

    def _count(self, operation: str, each_way_bytes: float, control: float) -> None:
        self._worker.ledger.record(operation, each_way_bytes, each_way_bytes, control)

    def _handle(self, work: Any, result: Any) -> RealHandle:
        return RealHandle(work, result, self._worker)


class RealWorker:
    """One process of a `torch.distributed` job."""

    def __init__(self, heartbeat: Heartbeat | None = None) -> None:
        self.ledger = Ledger()
        self.heartbeat = heartbeat
        self.world = RealGroup(self, dist.group.WORLD)  # type: ignore[arg-type]
        self._groups: dict[tuple[int, ...], RealGroup] = {self.world.ranks: self.world}

    @property
    def rank(self) -> int:
        return self.world.rank

    @property
    def size(self) -> int:
        return self.world.size

    def clock_seconds(self) -> float:
        return time.perf_counter()

    def group(self, ranks: Sequence[int]) -> RealGroup:
        """Collective: every worker of the world asks for the same groups in the same order."""
        key = tuple(ranks)
        if key not in self._groups:
            made = dist.new_group(list(key), timeout=timedelta(minutes=30))
            self._groups[key] = RealGroup(self, made)
        return self._groups[key]

    def adopt(self, process_group: dist.ProcessGroup) -> RealGroup:
        """A group the user made (`process_group=`, a mesh's dimension)."""
        return RealGroup(self, process_group)

    def at_end_of_backward(self, finish: Callable[[], None]) -> None:
        Variable._execution_engine.queue_callback(finish)

    def explain(self, error: RuntimeError) -> Exception:
        """Who was lost, by the heartbeat's verdict; the backend's own error when nobody was."""
        lost = self.heartbeat.explain(error) if self.heartbeat is not None else None
        return lost if lost is not None else error


# torch 2.13 renamed these; the old names warn there and the new ones are missing before.
_all_gather: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter: Callable[..., Any] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
