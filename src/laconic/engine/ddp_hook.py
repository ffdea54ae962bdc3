"""Any compressor for existing DDP, Lightning or Accelerate code, as a communication hook."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future, collect_all

from laconic.compression.base import State, TensorSpec
from laconic.compression.chain import chain
from laconic.compression.none import Identity
from laconic.engine.connect import connect
from laconic.engine.exchange import confer
from laconic.engine.meeting import Meeting
from laconic.engine.real import RealGroup, RealWorker
from laconic.errors import StrategyError
from laconic.strategy import Sentence, Strategy

Hook = Callable[[Any, dist.GradBucket], Future[Tensor]]


def ddp_hook(strategy: str | Strategy, seed: int = 0) -> Hook:
    """`model.register_comm_hook(None, laconic.ddp_hook("bf16+ef"))`.

    DDP keeps its buckets and its overlap; the sentence's compression and architecture carry each bucket. The first
    argument of `register_comm_hook` may be a process group, as for PyTorch's own hooks.
    """
    sentence = Strategy.parse(strategy)
    if not isinstance(sentence, Sentence) or sentence.sync.name != "bsp":
        raise StrategyError(
            f"DDP itself says when workers talk, so a hook takes a compression and an architecture, such as `bf16+ef`, "
            f"not `{strategy}`; use laconic.distribute for the rest"
        )
    made = DDPHook(sentence, seed)

    def laconic_hook(state, bucket):  # type: ignore[no-untyped-def]
        return made(state, bucket)

    laconic_hook.__annotations__["bucket"] = dist.GradBucket  # DDP compares the annotation itself
    return laconic_hook


class DDPHook:
    """Error memories live here, per parameter; one hook serves one model.

    First rounds leave in DDP's own order. Later rounds wait until the last bucket's first round has left and then go
    bucket by bucket, so that they meet their counterparts on the other ranks whatever the timing was.
    """

    def __init__(self, sentence: Sentence, seed: int) -> None:
        self._compressor = chain([word.make() for word in sentence.compression])
        self._architecture = sentence.architecture.make()
        self._seed = seed
        self._memory: dict[int, State] = {}
        self._group: RealGroup | None = None
        self._step = 0
        self._all_left: Future[None] = Future()
        self._last: Future[None] = self._all_left

    def __call__(self, process_group: Any, bucket: dist.GradBucket) -> Future[Tensor]:
        if self._group is None:
            worker = connect()
            assert isinstance(worker, RealWorker)
            self._group = worker.world if process_group is None else worker.adopt(process_group)
        if bucket.index() == 0:
            self._step += 1
            self._last = self._all_left = Future()
        previous, self._last = self._last, Future()
        result = _pump(self._travel(bucket, self._group), bucket.buffer(), previous, self._last)
        if bucket.is_last():
            self._all_left.set_result(None)
        return result

    def _travel(self, bucket: dist.GradBucket, group: RealGroup) -> Generator[Any, Any, None]:
        gradients, parameters, plain = bucket.gradients(), bucket.parameters(), Identity()
        specs = [
            TensorSpec(f"{bucket.index()}.{k}", tuple(p.shape), g.dtype, "vector" if p.dim() < 2 else "matrix")
            for k, (g, p) in enumerate(zip(gradients, parameters, strict=True))
        ]
        taken = [self._compressor.accepts(spec) for spec in specs]
        if not any(taken):
            yield from confer(
                [plain.exchange(bucket.buffer(), {}, self._meet(specs[0], group, bucket.buffer().device))],
                self._carry(group),
            )
            return
        exchanges = []
        for spec, gradient, parameter, compress in zip(specs, gradients, parameters, taken, strict=True):
            compressor, memory = (self._compressor, self._remembered(parameter, spec)) if compress else (plain, {})
            exchanges.append(compressor.exchange(gradient, memory, self._meet(spec, group, gradient.device)))
        outcomes = yield from confer(exchanges, self._carry(group))
        for gradient, parameter, outcome in zip(gradients, parameters, outcomes, strict=True):
            gradient.copy_(outcome.result.view_as(gradient))
            self._memory[id(parameter)] = outcome.state

    def _remembered(self, parameter: Tensor, spec: TensorSpec) -> State:
        if id(parameter) not in self._memory:
            self._memory[id(parameter)] = {k: v.to(parameter.device) for k, v in self._compressor.init(spec).items()}
        return self._memory[id(parameter)]

    def _carry(self, group: RealGroup) -> Callable[[Any], Any]:
        return lambda request: self._architecture.carry(request, group)

    def _meet(self, spec: TensorSpec, group: RealGroup, device: torch.device) -> Meeting:
        return Meeting(group.rank, group.size, self._step, spec.name, self._seed, device)


def _pump(
    journey: Generator[Any, Any, None], buffer: Tensor, turn: Future[None], finished: Future[None]
) -> Future[Tensor]:
    """Advance a journey by callbacks, its later rounds when it is its turn: nothing waits inside DDP's hook."""
    outcome: Future[Tensor] = Future()

    def resume(answers: list[Any] | None, waits: list[Future[None]]) -> None:
        try:
            with torch.no_grad():
                handles = next(journey) if answers is None else journey.send(answers)
            under_way = [handle.work.get_future() for handle in handles]
            collect_all([*under_way, *waits]).then(lambda done: arrived(done, handles))
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

    resume(None, [turn])
    return outcome
