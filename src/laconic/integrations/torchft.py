"""torchft: `LaconicDDP(manager, model, "int8(256)+ef")` in the place of torchft's `DistributedDataParallel`.

torchft decides in every step which replicas take part, heals those that come back, and drops a step that failed. What
the replicas of a step send each other is coded here; what a replica remembers follows torchft's decisions.
"""

from __future__ import annotations

import sys
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import AllgatherOptions
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torchft.manager import Manager
from torchft.process_group import ManagedProcessGroup, ProcessGroupDummy, ProcessGroupWrapper

from laconic.compression.base import State
from laconic.compression.optional import conserved_of
from laconic.errors import ContractError, StrategyError
from laconic.integrations.ddp_hook import DDPHook, ddp_hook
from laconic.real.connect import connect
from laconic.real.group import RealGroup, RealHandle, SummedHandle
from laconic.real.worker import RealWorker
from laconic.runtime.counted_group import CountedGroup
from laconic.runtime.in_flight import InFlight, complete
from laconic.runtime.tiers import Tier
from laconic.strategy import Sentence, Strategy


class LaconicDDP(DistributedDataParallel):
    """torchft's DDP with a compressor: gradients are averaged over the replicas that take part in a step.

    `hook` is the communication hook, whose `state_dict()` holds what this replica remembers: save it where you save the
    model, each replica its own. It is none of what a healed replica is sent.

    - `manager`: torchft's, with a `ProcessGroupGloo` or `ProcessGroupNCCL`.
    - `module`: the model; torchft's manager brings replicas to one state.
    - `strategy`: a compression, such as `int8(256)+ef`, with the architecture `allreduce`.
    - `seed`: the seed of the random draws that the compressor makes, the same on all replicas.
    - `named`: arguments of PyTorch's DDP.
    """

    def __init__(
        self, manager: Manager, module: nn.Module, strategy: str | Strategy, seed: int = 0, **named: Any
    ) -> None:
        hook = ManagedHook(manager, ddp_hook(strategy, seed).sentence, seed)
        # As in torchft's own: a group of one for what DDP itself sends, and buckets that are never formed anew, since
        # those of a replica that comes back would differ.
        super().__init__(module, process_group=ProcessGroupDummy(0, 1), find_unused_parameters=True, **named)
        self.hook = hook
        self.register_comm_hook(None, hook)


class ManagedHook(DDPHook):
    """The communication hook of a replica that torchft manages.

    An exchange that fails is reported to the manager, which drops the step: then the memory is that of before, as if
    the step had not been. In a new quorum errors of one's own are kept; memory that all replicas must share begins
    afresh on all of them, since one that has just joined does not have it.
    """

    def __init__(self, manager: Manager, sentence: Sentence, seed: int) -> None:
        super().__init__(sentence, seed)
        if sentence.architecture.name != "allreduce":
            raise StrategyError(
                f"replicas of torchft come and go, which `{sentence.architecture}` cannot follow: leave it out"
            )
        self._manager, self._group = manager, ManagedProcessGroup(manager).parent
        if not isinstance(self._group, ProcessGroupWrapper):
            raise ContractError(
                f"{type(self._group).__name__} runs in a process of its own, which these messages do not reach: give "
                "the manager a ProcessGroupGloo or a ProcessGroupNCCL"
            )
        self._quorum: Any = None
        self._attempted = -1
        self._failed = False
        self._before: dict[str, State] = {}

    def __call__(self, process_group: Any, bucket: dist.GradBucket) -> Future[Tensor]:
        manager = self._manager
        if manager.errored() is None:
            manager.wait_quorum()
        if bucket.index() == 0:
            self._begin_step()
        if manager.errored() is None:
            try:
                self._average(bucket)
            except RuntimeError as error:  # a replica was lost, or did not answer in time
                print(f"laconic: torchft drops step {self._step}, whose exchange failed: {error}", file=sys.stderr)
                manager.report_error(error)
        self._failed |= manager.errored() is not None
        result: Future[Tensor] = Future()
        result.set_result(bucket.buffer())
        return result

    def _begin_step(self) -> None:
        """Take the memory of before, where the last step was dropped."""
        step = self._manager.current_step()
        if self._failed or step == self._attempted:
            self._memory, self._tier = self._before, None
        self._attempted = self._step = step
        self._failed = False
        self._before = {name: {key: x.clone() for key, x in state.items()} for name, state in self._memory.items()}

    def _average(self, bucket: dist.GradBucket) -> None:
        tier = self._tier = self._tier_of_quorum()
        if not self._manager.is_participating():  # it is being healed: what it computed is of an old model
            bucket.buffer().zero_()
        complete([InFlight(self._average_bucket(bucket, tier))])
        if (participants := self._manager.num_participants()) != tier.group.size:
            bucket.buffer().mul_(tier.group.size / participants)

    def _tier_of_quorum(self) -> Tier:
        """Return the tier of those that take part in this step, with the memory that is this replica's own."""
        quorum, before = self._group.parent, self._quorum
        if self._tier is not None and quorum is before:
            return self._tier
        worker = connect()
        assert isinstance(worker, RealWorker)
        self._quorum = quorum
        if quorum is not before:
            own = set(conserved_of(self.sentence.compressor))
            self._memory = {name: state for name, state in self._memory.items() if state.keys() <= own}
        return Tier(self.sentence, ReplicaGroup(worker, self._group), self._seed, memory=self._memory)


# DDP compares the annotations themselves.
ManagedHook.__call__.__annotations__.update({"bucket": dist.GradBucket, "return": Future[Tensor]})


_GATHERING = AllgatherOptions()
_GATHERING.asyncOp = True


class ReplicaGroup(RealGroup):
    """The replicas of a quorum, through torchft's process group, which has fewer operations than PyTorch's."""

    def __init__(self, worker: RealWorker, process_group: ProcessGroupWrapper) -> None:
        quorum = process_group.parent
        CountedGroup.__init__(self, quorum.rank(), tuple(range(quorum.size())), worker.ledger)
        self._worker, self.process_group = worker, process_group

    def _all_gather(self, tensor: Tensor, out: Tensor | None) -> RealHandle:
        flat, group = tensor.contiguous().view(-1), self.process_group
        result = tensor.new_empty(self.size, *tensor.shape) if out is None else out
        rows = result.view(-1)
        return self._start(
            "all_gather", tensor, result, lambda: group.allgather_into_tensor_coalesced([rows], [flat], _GATHERING)
        )

    def _reduce_scatter(self, flat: Tensor) -> SummedHandle:
        lengths = [flat.numel() // self.size] * self.size
        return SummedHandle(self._all_to_all(flat, lengths, lengths, None, "reduce_scatter"), self.size)
