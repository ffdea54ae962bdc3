"""The rivals of torch itself: DistributedDataParallel and the hooks and averagers that come with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from laconic.errors import ContractError
from laconic.experiments.rivals.base import Rival, RivalContext
from laconic.knobs import knob

if TYPE_CHECKING:
    from torch import nn, optim
    from torch.distributed import GradBucket
    from torch.nn.parallel import DistributedDataParallel


def _bucket() -> Any:
    return knob(None, above=0, doc="size of gradient buckets in MiB; none: torch's own, 25 after a first one of 1")


@dataclass(frozen=True)
class _OnDDP(Rival):
    """A rival that is built on DistributedDataParallel."""

    def _wrap(self, model: nn.Module, context: RivalContext) -> DistributedDataParallel:
        from torch.nn.parallel import DistributedDataParallel

        cap: Any = getattr(self, "bucket_cap_mb", None)
        return DistributedDataParallel(model, process_group=context.group.process_group, bucket_cap_mb=cap)


@dataclass(frozen=True)
class DDP(_OnDDP):
    """torch's DistributedDataParallel."""

    name: ClassVar[str] = "torch:ddp"

    bucket_cap_mb: float | None = _bucket()

    @property
    def sentence(self) -> str:
        return "bsp"

    def take_over(
        self, model: nn.Module, optimizer: optim.Optimizer, context: RivalContext
    ) -> tuple[nn.Module, optim.Optimizer]:
        return self._wrap(model, context), optimizer


@dataclass(frozen=True)
class DDP16(_OnDDP):
    """DistributedDataParallel whose gradients are sent as 16-bit floats: torch's compress hooks."""

    name: ClassVar[str] = "torch:ddp16"

    bucket_cap_mb: float | None = _bucket()
    dtype: str = knob("fp16", choices=("fp16", "bf16"), doc="what gradients are cast to; bf16 needs NCCL")

    @property
    def sentence(self) -> str:
        return f"bsp / cast_{self.dtype}"

    def take_over(
        self, model: nn.Module, optimizer: optim.Optimizer, context: RivalContext
    ) -> tuple[nn.Module, optim.Optimizer]:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        if self.dtype == "bf16" and not next(model.parameters()).is_cuda:
            raise ContractError(f"torch's bf16 hook runs on NCCL only, this model is on the CPU: write {self.name}")
        ddp = self._wrap(model, context)
        hooks = {"bf16": default_hooks.bf16_compress_hook, "fp16": default_hooks.fp16_compress_hook}
        ddp.register_comm_hook(context.group.process_group, hooks[self.dtype])
        return ddp, optimizer


@dataclass(frozen=True)
class Accumulate(_OnDDP):
    """Gradient accumulation on DistributedDataParallel: one exchange and one step of a batch `steps` times as large."""

    name: ClassVar[str] = "torch:accumulate"

    steps: int = knob(4, low=1, doc="calls of step() that make one step")
    bucket_cap_mb: float | None = _bucket()

    @property
    def period(self) -> int:
        return self.steps

    def take_over(
        self, model: nn.Module, optimizer: optim.Optimizer, context: RivalContext
    ) -> tuple[nn.Module, optim.Optimizer]:
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        from laconic.experiments.rivals.accumulating import AccumulatingOptimizer

        group = context.group.process_group
        ddp = self._wrap(model, context)
        ddp.register_comm_hook(None, lambda _, bucket: allreduce_hook(group, _divided(bucket, self.steps)))
        return ddp, AccumulatingOptimizer(optimizer, ddp, self.steps)


def _divided(bucket: GradBucket, steps: int) -> GradBucket:
    bucket.buffer().div_(steps)  # it holds the sum of the micro-steps
    return bucket


@dataclass(frozen=True)
class PowerSGD(_OnDDP):
    """torch's PowerSGD hook for DistributedDataParallel, with error feedback and warm start."""

    name: ClassVar[str] = "torch:powersgd"

    rank: int = knob(1, low=1, doc="columns of the two factors")
    start: int = knob(10, low=2, doc="steps of plain DDP before; torch needs two")
    bucket_cap_mb: float | None = _bucket()

    def take_over(
        self, model: nn.Module, optimizer: optim.Optimizer, context: RivalContext
    ) -> tuple[nn.Module, optim.Optimizer]:
        from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

        state = PowerSGDState(
            context.group.process_group,
            matrix_approximation_rank=self.rank,
            start_powerSGD_iter=self.start,
            use_error_feedback=True,
            warm_start=True,
            random_seed=context.seed,
        )
        ddp = self._wrap(model, context)
        ddp.register_comm_hook(state, powerSGD_hook)
        return ddp, optimizer


@dataclass(frozen=True)
class PostLocal(_OnDDP):
    """torch's post-local SGD: plain DDP for `start` steps, then local ones, parameters averaged every `period`."""

    name: ClassVar[str] = "torch:postlocal"

    period: int = knob(8, low=1, doc="local steps between two averages")
    start: int = knob(0, low=0, doc="steps of plain DDP before; torch averages after the first local step, too")

    def take_over(
        self, model: nn.Module, optimizer: optim.Optimizer, context: RivalContext
    ) -> tuple[nn.Module, optim.Optimizer]:
        from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
        from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

        group = context.group.process_group
        ddp = self._wrap(model, context)
        state = PostLocalSGDState(group, None, self.start, post_local_gradient_allreduce=False)
        ddp.register_comm_hook(state, post_localSGD_hook)
        averager = PeriodicModelAverager(self.period, self.start, group)
        optimizer.register_step_post_hook(lambda *_: averager.average_parameters(ddp.parameters()))
        return ddp, optimizer
