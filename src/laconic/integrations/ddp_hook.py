"""Any compressor for existing DDP, Lightning or Accelerate code, as a DDP communication hook."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future, collect_all

from laconic.errors import StrategyError
from laconic.real.connect import connect
from laconic.real.worker import RealWorker
from laconic.runtime.tiers import Tier
from laconic.strategy import Sentence, Strategy
from laconic.values.tensor_spec import TensorSpec

Hook = Callable[[Any, dist.GradBucket], Future[Tensor]]


def ddp_hook(strategy: str | Strategy, seed: int = 0) -> Hook:
    """Return a hook for DDP: `model.register_comm_hook(None, laconic.ddp_hook("bf16+ef"))`.

    DDP keeps its buckets and its overlap; the sentence's compression and architecture carry each bucket. The first
    argument of `register_comm_hook` may be a process group, as for PyTorch's own hooks.

    - `strategy`: the sentence, as text or value.
    - `seed`: the seed of the random draws that compressors make.
    """
    sentence = Strategy.parse(strategy)
    if not isinstance(sentence, Sentence) or sentence.sync.name != "bsp":
        raise StrategyError(
            f"DDP itself decides when workers communicate, so a hook takes a compression and an architecture, "
            f"such as `bf16+ef`, not `{strategy}`; use laconic.distribute for the rest"
        )
    hook = DDPHook(sentence, seed)

    def laconic_hook(state, bucket):  # type: ignore[no-untyped-def]
        return hook(state, bucket)

    laconic_hook.__annotations__["bucket"] = dist.GradBucket  # DDP compares the annotation itself
    return laconic_hook


class DDPHook:
    """The communication hook of one model, with its compressor's memory for each parameter.

    First rounds start in DDP's own order. Later rounds wait until the last bucket's first round has started and then
    run bucket by bucket, so that they meet their counterparts on the other ranks whatever the timing was.
    """

    def __init__(self, sentence: Sentence, seed: int) -> None:
        self._sentence, self._seed = sentence, seed
        self._tier: Tier | None = None
        self._names: dict[int, str] = {}
        self._step = 0
        self._all_started: Future[None] = Future()
        self._last: Future[None] = self._all_started

    def __call__(self, process_group: Any, bucket: dist.GradBucket) -> Future[Tensor]:
        if self._tier is None:
            worker = connect()
            assert isinstance(worker, RealWorker)
            group = worker.world if process_group is None else worker.adopt(process_group)
            self._tier = Tier(self._sentence, group, self._seed)
        if bucket.index() == 0:
            self._step += 1
            self._last = self._all_started = Future()
        previous, self._last = self._last, Future()
        result = _drive(self._average_bucket(bucket, self._tier), bucket.buffer(), previous, self._last)
        if bucket.is_last():
            self._all_started.set_result(None)
        return result

    def _average_bucket(self, bucket: dist.GradBucket, tier: Tier) -> Generator[Any, Any, None]:
        gradients = bucket.gradients()
        specs = [self._spec(p, g) for g, p in zip(gradients, bucket.parameters(), strict=True)]
        if not any(tier.compressor.accepts(spec) for spec in specs):  # send the bucket's buffer as it is
            gradients = [bucket.buffer()]
            specs = [TensorSpec("bucket", tuple(gradients[0].shape), gradients[0].dtype)]
            yield from tier.average(specs, gradients, self._step, exact=True)
            return
        means = yield from tier.average(specs, gradients, self._step)
        for gradient, mean in zip(gradients, means, strict=True):
            gradient.copy_(mean.view_as(gradient))

    def _spec(self, parameter: Tensor, gradient: Tensor) -> TensorSpec:
        """Name a parameter by the order in which DDP first showed it, the same on all ranks; DDP itself gives no
        names."""
        name = self._names.setdefault(id(parameter), str(len(self._names)))
        return TensorSpec(name, tuple(parameter.shape), gradient.dtype, "vector" if parameter.dim() < 2 else "matrix")


def _drive(
    communication: Generator[Any, Any, None], buffer: Tensor, previous: Future[None], finished: Future[None]
) -> Future[Tensor]:
    """Advance a communication by callbacks, its later rounds after those of the `previous` bucket: nothing waits inside
    DDP's hook."""
    outcome: Future[Tensor] = Future()

    def resume(answers: list[Any] | None, waits: list[Future[None]]) -> None:
        try:
            with torch.no_grad():
                handles = communication.send(answers)
            futures = [handle.work.get_future() for handle in handles]
            collect_all([*futures, *waits]).then(lambda done: arrived(done, handles))
        except StopIteration:
            outcome.set_result(buffer)
            finished.set_result(None)
        except Exception as error:
            fail(error)

    def arrived(done: Future[Any], handles: list[Any]) -> None:
        try:
            done.wait()
        except Exception as error:
            fail(error)
            return
        resume([handle.result for handle in handles], [])

    def fail(error: Exception) -> None:
        outcome.set_exception(error)  # type: ignore[arg-type]
        finished.set_result(None)

    resume(None, [previous])
    return outcome
