"""The collectives and messages of a `torch.distributed` process group, as the real engine's worker starts them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import AllgatherOptions, AllreduceOptions, AllToAllOptions

from laconic.real.recording import RecordedOperation, Recording
from laconic.runtime.counted_group import CountedGroup, sum_in_order
from laconic.runtime.ledger import Ledger
from laconic.worker import Handle


class GroupOwner(Protocol):
    """What a group needs of the worker whose it is."""

    ledger: Ledger
    recording: Recording | None

    @property
    def host_size(self) -> int: ...
    def waited(self, begin_seconds: float, operation: RecordedOperation | None) -> None: ...
    def explain(self, error: RuntimeError) -> Exception: ...
    def hold(self, handle: RealHandle) -> RealHandle: ...


def _asynchronous(options: Any, **settings: Any) -> Any:
    """Return options of a process group's own method, whose wait is left to the caller. The functions of
    `torch.distributed` around these methods take several times as long on the host."""
    for name, value in {"asyncOp": True, **settings}.items():
        setattr(options, name, value)
    return options


_REDUCTIONS = {
    name: _asynchronous(AllreduceOptions(), reduceOp=op)
    for name, op in (("sum", dist.ReduceOp.SUM), ("max", dist.ReduceOp.MAX))
}
_GATHERING, _SCATTERING = _asynchronous(AllgatherOptions()), _asynchronous(AllToAllOptions())


class RealHandle:
    """A handle of a `dist.Work` and its result. An error names the lost rank, as the heartbeat knows it."""

    def __init__(self, work: Any, result: Any, worker: GroupOwner, operation: RecordedOperation | None) -> None:
        self.work, self.result, self._worker, self._operation = work, result, worker, operation
        self.stream_ordered = isinstance(result, Tensor) and result.is_cuda

    def done(self) -> bool:
        return bool(self.work.is_completed())

    def wait(self) -> Any:
        begin = time.perf_counter()
        try:
            self.work.wait()
        except RuntimeError as error:
            raise self._worker.explain(error) from error
        finally:
            self._worker.waited(begin, self._operation)
        return self.result


class SummedHandle:
    """A handle of a reduce-scatter that is an all-to-all: the blocks that arrive are added in rank order."""

    def __init__(self, blocks: Handle, size: int) -> None:
        self._blocks, self._size = blocks, size

    def done(self) -> bool:
        return self._blocks.done()

    def wait(self) -> Tensor:
        return sum_in_order(self._blocks.wait().view(self._size, -1).unbind())


class RealGroup(CountedGroup):
    """The collectives and messages of one `torch.distributed` process group."""

    def __init__(self, worker: GroupOwner, process_group: dist.ProcessGroup) -> None:
        ranks = tuple(dist.get_process_group_ranks(process_group))
        super().__init__(dist.get_rank(process_group), ranks, worker.ledger, worker.host_size)
        self._worker, self.process_group = worker, process_group

    def barrier(self) -> RealHandle:
        return self._start("barrier", None, None, lambda: dist.barrier(self.process_group, async_op=True))

    def _all_reduce(self, tensor: Tensor, op: str) -> RealHandle:
        return self._start(
            "all_reduce", tensor, tensor, lambda: self.process_group.allreduce([tensor], _REDUCTIONS[op])
        )

    def _all_gather(self, tensor: Tensor, out: Tensor | None) -> RealHandle:
        flat, group = tensor.contiguous().view(-1), self.process_group
        result = tensor.new_empty(self.size, *tensor.shape) if out is None else out
        rows = result.view(-1)
        return self._start("all_gather", tensor, result, lambda: group._allgather_base(rows, flat, _GATHERING))

    def _all_to_all(
        self, tensor: Tensor, sends: list[int], receives: list[int], out: Tensor | None, name: str = "all_to_all"
    ) -> RealHandle:
        into, group = tensor.new_empty(sum(receives)) if out is None else out.view(-1), self.process_group
        return self._start(name, tensor, into, lambda: group.alltoall_base(into, tensor, receives, sends, _SCATTERING))

    def _reduce_scatter(self, flat: Tensor) -> RealHandle | SummedHandle:
        if flat.device.type == "cpu":  # gloo's own sends twice what it should (bench/ledger.py)
            return self._summed_blocks(flat)
        out = flat.new_empty(flat.numel() // self.size)
        return self._start(
            "reduce_scatter", flat, out, lambda: _reduce_scatter(out, flat, group=self.process_group, async_op=True)
        )

    def _summed_blocks(self, flat: Tensor) -> SummedHandle:
        lengths = [flat.numel() // self.size] * self.size
        return SummedHandle(self._all_to_all(flat, lengths, lengths, None, "reduce_scatter"), self.size)

    def _broadcast(self, tensor: Tensor, root: int) -> RealHandle:
        source, group = self.ranks[root], self.process_group
        return self._start("broadcast", tensor, tensor, lambda: dist.broadcast(tensor, source, group, async_op=True))

    def _send(self, tensor: Tensor, to: int, tag: int) -> RealHandle:
        peer = self.ranks[to]
        handle = self._start("send", tensor, tensor, lambda: dist.isend(tensor, peer, self.process_group, tag))
        return self._worker.hold(handle)

    def _receive(self, tensor: Tensor, source: int, tag: int) -> RealHandle:
        peer = self.ranks[source]
        handle = self._start("receive", tensor, tensor, lambda: dist.irecv(tensor, peer, self.process_group, tag))
        return self._worker.hold(handle)

    def _swap(self, sends: Sequence[tuple[Tensor, int]], receives: Sequence[tuple[Tensor, int]]) -> Sequence[Handle]:
        if not any(x.is_cuda for x, _ in (*sends, *receives)):
            return super()._swap(sends, receives)
        operations = [dist.P2POp(dist.isend, x, self.ranks[to], self.process_group) for x, to in sends]
        operations += [dist.P2POp(dist.irecv, x, self.ranks[source], self.process_group) for x, source in receives]
        # One after another, two neighbours that both send first would wait for each other for ever: NCCL's sends wait.
        works = dist.batch_isend_irecv(operations)
        return [self._start("swap", None, None, partial(_itself, work)) for work in works]

    def _start(self, name: str, tensor: Tensor | None, result: Any, begin: Callable[[], Any]) -> RealHandle:
        recording = self._worker.recording
        if recording is None:
            return RealHandle(begin(), result, self._worker, None)
        operation = recording.start_operation(name, tensor)
        work = begin()
        if tensor is None or tensor.device.type == "cpu":  # a CUDA future is ready as soon as the kernel is queued
            operation.follow(work)
        return RealHandle(work, result, self._worker, operation)


def _itself(work: Any) -> Any:
    return work


# torch 2.13 renamed this; the old name warns there and the new one is missing before.
_reduce_scatter: Callable[..., Any] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
