"""Any compressor for existing DDP, Lightning or Accelerate code, as a DDP communication hook."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future, collect_all

from laconic.compression.base import State
from laconic.errors import ContractError, StrategyError
from laconic.real.connect import connect
from laconic.real.worker import RealWorker
from laconic.runtime.in_flight import answer_to, handles_of
from laconic.runtime.tiers import Tier
from laconic.strategy import Sentence, Strategy
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Awaited, Communication


def ddp_hook(strategy: str | Strategy, seed: int = 0) -> DDPHook:
    """Return a hook for DDP: `model.register_comm_hook(None, laconic.ddp_hook("bf16+ef"))`.

    DDP keeps its buckets and its overlap; the sentence's compression and architecture carry each bucket. The first
    argument of `register_comm_hook` may be a process group, as for PyTorch's own hooks. What the compressor remembers
    is in the hook's `state_dict()`, which belongs into a checkpoint, each rank's own.

    - `strategy`: a compression and an architecture, as text or value.
    - `seed`: the seed of the random draws that the compressor makes.
    """
    sentence = Strategy.parse(strategy)
    if not isinstance(sentence, Sentence) or sentence.sync.name != "bsp":
        raise StrategyError(
            f"DDP itself decides when workers communicate, so a hook takes a compression and an architecture, "
            f"such as `bf16+ef`, not `{strategy}`; use laconic.distribute for the rest"
        )
    return DDPHook(sentence, seed)


class DDPHook:
    """The communication hook of one model, with its compressor's memory for each parameter.

    First rounds start in DDP's own order. Later rounds wait until the last bucket's first round has started and then
    run bucket by bucket, so that they meet their counterparts on the other ranks whatever the timing was.
    """

    __name__ = "laconic_hook"  # DDP asks for it

    def __init__(self, sentence: Sentence, seed: int) -> None:
        self.__qualname__ = self.__name__
        self.sentence, self._seed = sentence, seed
        self._tier: Tier | None = None
        self._memory: dict[str, State] = {}
        self._names: dict[int, str] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._step = 0
        self._all_started: Future[None] = Future()
        self._last: Future[None] = self._all_started

    def __call__(self, process_group: Any, bucket: dist.GradBucket) -> Future[Tensor]:
        if self._tier is None:
            worker = connect()
            assert isinstance(worker, RealWorker)
            group = worker.world if process_group is None else worker.adopt(process_group)
            self._tier = Tier(self.sentence, group, self._seed, memory=self._memory)
        if bucket.index() == 0:
            self._step += 1
            self._last = self._all_started = Future()
        previous, self._last = self._last, Future()
        result = _drive(self._average_bucket(bucket, self._tier), bucket.buffer(), previous, self._last)
        if bucket.is_last():
            self._all_started.set_result(None)
        return result

    def state_dict(self) -> dict[str, Any]:
        """Return what this rank's compressor remembers, as numbers, text and tensors."""
        return {
            "strategy": str(self.sentence),
            "step": self._step,
            "shapes": {name: list(shape) for name, shape in self._shapes.items()},
            "memory": self._memory,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned on the same rank. Call this before the first backward pass.

        - `state_dict`: the dictionary to read.
        """
        if state_dict["strategy"] != str(self.sentence):
            raise ContractError(
                f"this state of a DDP hook is of `{state_dict['strategy']}`, the hook is `{self.sentence}`: its "
                "memory means nothing here. Make the hook with the same strategy, or leave its state out"
            )
        if self._tier is not None:
            raise ContractError("a DDP hook loads its state before the first backward pass, which this one has seen")
        self._step = state_dict["step"]
        self._shapes = {name: tuple(shape) for name, shape in state_dict["shapes"].items()}
        self._memory = {name: dict(state) for name, state in state_dict["memory"].items()}

    def _average_bucket(self, bucket: dist.GradBucket, tier: Tier) -> Communication[None]:
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
        """Name a parameter by the order in which DDP first showed it, the same on all ranks and after a restart; DDP
        itself gives no names."""
        name = self._names.setdefault(id(parameter), str(len(self._names)))
        shape = tuple(parameter.shape)
        if self._shapes.setdefault(name, shape) != shape:
            raise ContractError(
                f"the DDP hook's state is of another model: its parameter {name} has shape {list(self._shapes[name])}, "
                f"this model's {list(shape)}. Load the state of this model, with DDP's buckets of the same size"
            )
        return TensorSpec(name, shape, gradient.dtype, "vector" if parameter.dim() < 2 else "matrix")


# DDP compares the annotations themselves.
DDPHook.__call__.__annotations__.update({"bucket": dist.GradBucket, "return": Future[Tensor]})


def _drive(
    communication: Communication[None], buffer: Tensor, previous: Future[None], finished: Future[None]
) -> Future[Tensor]:
    """Advance a communication by callbacks, its later rounds after those of the `previous` bucket: nothing waits inside
    DDP's hook."""
    outcome: Future[Tensor] = Future()

    def resume(answer: Any, waits: list[Future[None]]) -> None:
        try:
            with torch.no_grad():
                awaited = communication.send(answer)
            handles: list[Any] = list(handles_of(awaited))
            futures = [handle.work.get_future() for handle in handles]
            collect_all([*futures, *waits]).then(lambda done: arrived(done, awaited, handles))
        except StopIteration:
            outcome.set_result(buffer)
            finished.set_result(None)
        except Exception as error:
            fail(error)

    def arrived(done: Future[Any], awaited: Awaited, handles: list[Any]) -> None:
        try:
            done.wait()
        except Exception as error:
            fail(error)
            return
        resume(answer_to(awaited, [handle.result for handle in handles]), [])

    def fail(error: Exception) -> None:
        outcome.set_exception(error)  # type: ignore[arg-type]
        finished.set_result(None)

    resume(None, [previous])
    return outcome
