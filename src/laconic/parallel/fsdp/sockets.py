"""Coded gradients and weights for models that PyTorch's `fully_shard` has sharded (FSDP2)."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ReduceOp

from laconic.compression.error_feedback import Remembering
from laconic.errors import ContractError
from laconic.parallel.fsdp.mesh import (
    MeshWorker,
    average_replicas_here,
    parameter_group,
    shard_process_group,
    sharded_modules,
    sharded_part,
)
from laconic.parallel.fsdp.one_stream import step_in_one_stream
from laconic.parallel.fsdp.used import UsedParameters
from laconic.runtime.in_flight import InFlight, complete
from laconic.runtime.sharded.error_memory import gathered, spread
from laconic.runtime.sharded.gather import ShardGather, WeightsTier
from laconic.runtime.sharded.layout import ShardLayout
from laconic.runtime.sharded.scatter import OwnersTier, ShardScatter
from laconic.strategy import Sentence
from laconic.virtual.worker import VirtualWorker
from laconic.worker import Group

Levels = Sequence[tuple[Sentence, Group]]
"""Sentences with the groups they span, inner to outer."""


class Sockets:
    """What carries the gradients and weights of one model's shards, with its memory; `remove` undoes it.

    Every module that `fully_shard` was called on has a gradient and a weight socket of its own, since what a compressor
    remembers belongs to the tensors of one module. Gradients arrive as one flat tensor a module.
    """

    def __init__(
        self,
        worker: MeshWorker,
        model: nn.Module,
        gradients: Levels,
        weights: Sentence,
        seed: int,
        averages_replicas: bool = True,
    ) -> None:
        self._worker, self._weights, self._averages_replicas = worker, weights, averages_replicas
        self._tiers = [OwnersTier(sentence, group, seed, worker) for sentence, group in gradients]
        self.scatter = ShardScatter(self._tiers)
        self._groups: dict[int, Group] = {}
        owners = self.adopted(shard_process_group(model))
        self.gather = ShardGather(WeightsTier(weights, owners, seed, worker))
        self._undo: list[Callable[[], None]] = []
        self._late: list[tuple[InFlight, Tensor]] = []
        self._used: dict[str, UsedParameters] = {}
        self._last_names: dict[str, str] = {}
        if isinstance(worker, VirtualWorker):
            step_in_one_stream(sharded_part(model))
        modules = sharded_modules(model)
        self.clock = ModuleClock(worker, modules)
        for name, module in modules.items():
            self._connect(name, module)

    def _connect(self, name: str, module: Any) -> None:
        group = parameter_group(module)
        before = group._reduce_scatter_comm, group._all_gather_comm
        restored = average_replicas_here(module) if self._averages_replicas else None
        used = self._used[name] = UsedParameters(name, module)

        def undo() -> None:
            used.remove()
            module.set_custom_reduce_scatter(before[0])
            module.set_custom_all_gather(before[1])
            if restored is not None:
                restored()

        self._undo.append(undo)
        module.set_custom_reduce_scatter(GradientSocket(self, name, group))
        module.set_custom_all_gather(WeightSocket(self, name))

    def adopted(self, process_group: dist.ProcessGroup) -> Group:
        """Return a process group as a group that counts bytes, the same one each time."""
        return self._groups.setdefault(id(process_group), self._worker.adopt(process_group))

    def fill_late(self, exchange: InFlight, output: Tensor) -> None:
        """Let an exchange go on beside the rest of the backward pass, and write its result when the pass has ended."""
        if not self._late:
            self._worker.at_end_of_backward(self._fill)
        self._late.append((exchange, output))

    def _fill(self) -> None:
        late, self._late = self._late, []
        complete([exchange for exchange, _ in late])
        for exchange, output in late:
            output.copy_(exchange.result)

    def name_of(self, module: str, flat: Tensor) -> str:
        """Return the name of a module's flat gradients, by which memory is kept."""
        name = self._last_names[module] = self._used[module].take(flat.numel(), self.scatter.size)
        return name

    def last_name(self, module: str) -> str:
        """Return the name of the flat gradients that a module has scattered last."""
        return self._last_names[module]

    def remove(self) -> None:
        """Let PyTorch carry gradients and weights again."""
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()

    @property
    def _words(self) -> list[str]:
        return [str(tier.sentence) for tier in self._tiers]

    @property
    def sizes(self) -> list[int]:
        """The number of members of each tier of owners, inner to outer."""
        return [tier.group.size for tier in self._tiers]

    def state_dict(self) -> dict[str, Any]:
        """Return what this rank remembers, as numbers, text and tensors."""
        return {
            "gradients": self._words,
            "weights": str(self._weights),
            "sizes": self.sizes,
            "rank": self.gather.tier.group.rank,
            "steps": [dict(self.scatter.steps), dict(self.gather.steps)],
            "memory": [dict(tier.memory) for tier in self._tiers],
            "copies": dict(self.gather.copies),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned on the same rank of as many. Memory of other words than this run's
        is dropped, which the first rank says.

        - `state`: the dictionary to read.
        """
        if state["sizes"] != self.sizes:
            raise ContractError(
                f"this state is of shards over {' x '.join(map(str, state['sizes']))} ranks, the model is sharded over "
                f"{' x '.join(map(str, self.sizes))}: save with laconic.checkpoint, from which any number resumes"
            )
        self._begin_at(state)
        if not self._dropped("gradients", state["gradients"], self._words):
            for tier, memory in zip(self._tiers, state["memory"], strict=True):
                tier.memory.update({name: dict(entries) for name, entries in memory.items()})
        if not self._dropped("weights", state["weights"], str(self._weights)):
            self.gather.copies = dict(state["copies"])

    def redistribute(self, states: Sequence[Mapping[str, Any]], rank: int, owners: Sequence[int]) -> None:
        """Take over what another number of ranks remembered: the sum of error memories is kept, dealt out in turn.

        What was left out between hosts counts with what was left out at the first hop. Copies of weights are made anew
        from exact ones; LoCo's memory begins afresh, as it says, and so does one of fewer bits.

        - `states`: the `state_dict()` of every earlier rank.
        - `rank`: this rank, among all that train the model.
        - `owners`: for each of these, whose shards it owns.
        """
        self._begin_at(states[0])
        hop = next((i for i, tier in enumerate(self._tiers) if isinstance(tier.compressor, Remembering)), None)
        if self._dropped("gradients", states[0]["gradients"], self._words) or hop is None:
            return
        inside = math.prod(self.sizes[:hop])
        alike = [i for i, owner in enumerate(owners) if owner % inside == owners[rank] % inside]
        mine = states[alike.index(rank) :: len(alike)]
        for key, used in self._flat_tensors(states):
            here, suffix = used.layout(key, self.scatter.size), f"@{hop}" if hop else ""
            before = [used.layout(key, math.prod(state["sizes"])) for state in mine]
            errors = [_whole_error(state, key, there) for state, there in zip(mine, before, strict=True)]
            found = [error for error in errors if error is not None]
            if here is not None and found:
                flat = here.flat([torch.stack(values).sum(0) for values in zip(*found, strict=True)])
                self._tiers[hop].memory[key + suffix] = {"error": gathered(flat, self.sizes, hop, owners[rank])}

    def _begin_at(self, state: Mapping[str, Any]) -> None:
        """Count steps from where a state ends, with no memory yet."""
        self.scatter.steps, self.gather.steps = (dict(steps) for steps in state["steps"])
        self.gather.copies.clear()
        for tier in self._tiers:
            tier.memory.clear()

    def _dropped(self, what: str, before: object, now: object) -> bool:
        """Return whether memory of other words must be dropped, and say so."""
        if before != now and self._worker.rank == 0:
            print(f"laconic: {what} were sent as {before}, now as {now}: that memory is dropped", file=sys.stderr)
        return before != now

    def _flat_tensors(self, states: Sequence[Mapping[str, Any]]) -> list[tuple[str, UsedParameters]]:
        """Return the names of the flat tensors that states remember something of, with the parameters in them."""
        names = sorted({name.split("@")[0] for state in states for memory in state["memory"] for name in memory})
        return [(name, self._used[module]) for name in names if (module := name.split("[")[0]) in self._used]


def _whole_error(state: Mapping[str, Any], key: str, layout: ShardLayout | None) -> list[Tensor] | None:
    """Return what a rank's error memories of a flat tensor hold of each whole tensor, or None where it has none."""
    found = [
        spread(memory[name]["error"], state["sizes"], hop, state["rank"])
        for hop, memory in enumerate(state["memory"])
        if "error" in memory.get(name := f"{key}@{hop}" if hop else key, {})
    ]
    return layout.whole(torch.stack(found).sum(0)) if found and layout is not None else None


class ModuleClock:
    """Reports to a worker's clock how far a pass has come, module by module, since gathers and scatters lie between."""

    def __init__(self, worker: MeshWorker, modules: Mapping[str, Any]) -> None:
        sizes = {n: sum(p.sharded_param.numel() for p in parameter_group(m).fsdp_params) for n, m in modules.items()}
        total = sum(sizes.values())
        self._worker = worker
        self._shares = {name: size / total for name, size in sizes.items()}
        self._computing = 0.0  # the share of the module whose weights were gathered last
        self._passed = 0.0

    def forward(self, name: str) -> None:
        """Note that a module's weights are gathered: the one before has computed."""
        self._pass("forward", self._computing)
        self._passed += self._computing
        self._computing = self._shares[name]

    def forward_left(self) -> float:
        """Return the share of the forward pass that has not been reported; the next pass begins."""
        left, self._computing, self._passed = 1 - self._passed, 0.0, 0.0
        return max(left, 0.0)

    def backward(self, name: str) -> None:
        """Note that a module's gradients are computed."""
        self._pass("backward", self._shares[name])

    def _pass(self, part: Literal["forward", "backward"], share: float) -> None:
        if share and self._worker.times_gradients:
            self._worker.computed(part, share)


class GradientSocket:
    """The reduce-scatter of one module: `fully_shard` calls it with the flat gradients of all its parameters."""

    def __init__(self, sockets: Sockets, name: str, parameters: Any) -> None:
        self._sockets, self._name, self._parameters = sockets, name, parameters

    allocate = staticmethod(lambda size, *, dtype, device: torch.empty(*size, dtype=dtype, device=device))

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: ReduceOp,
        async_op: bool = False,
    ) -> None:
        scatter = self._sockets.scatter
        if group.size() != scatter.size:
            raise ContractError(
                f"module {self._name!r} is sharded over {group.size()} ranks and the strategy over {scatter.size}: "
                "name a tier for each dimension that the model is sharded on, and shard all modules alike"
            )
        self._sockets.clock.backward(self._name)
        exchange = InFlight(scatter.mean(self._sockets.name_of(self._name, input_tensor), input_tensor))
        factor = factor_of(op, scatter.size)
        if factor == 1 and self._nobody_reads(output_tensor):
            self._sockets.fill_late(exchange, output_tensor)
            return
        complete([exchange])
        output_tensor.copy_(exchange.result if factor == 1 else exchange.result * factor)

    def _nobody_reads(self, output: Tensor) -> bool:
        """Return whether the gradients will be views of the output that nobody reads before backward has ended. On a
        GPU the exchange is in a stream of its own already."""
        own = self._parameters
        return (
            _on_cpu(output)
            and output.dtype == own._orig_dtype
            and own._all_reduce_hook is None
            and getattr(own.mesh_info, "replicate_mesh_dim", None) is None
            and not any(
                p.offload_to_cpu or p.sharded_param.grad is not None or p.sharded_param._post_accumulate_grad_hooks
                for p in own.fsdp_params
            )
        )


class WeightSocket:
    """The all-gather of one module: `fully_shard` calls it with the flat shard of all its parameters."""

    def __init__(self, sockets: Sockets, name: str) -> None:
        self._sockets, self._name = sockets, name

    allocate = staticmethod(lambda size, *, dtype, device: torch.empty(*size, dtype=dtype, device=device))

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        sockets = self._sockets
        if group.size() != sockets.scatter.size or not input_tensor.is_floating_point():
            # inside a host, from the slices kept there (`reshard_after_forward=k`), or in bytes of several types
            return _done_by(output_tensor, self._as_it_is(input_tensor, output_tensor, sockets.adopted(group)))
        backward = torch._C._current_graph_task_id() != -1
        if not backward:
            sockets.clock.forward(self._name)
        exchange = InFlight(sockets.gather.gather(self._name, input_tensor, output_tensor, again=backward))
        return _done_by(output_tensor, lambda: complete([exchange]))

    @staticmethod
    def _as_it_is(shard: Tensor, out: Tensor, group: Group) -> Callable[[], None]:
        """Begin to gather shards without a code, and return what ends it."""
        rows = out.view(group.size, -1)
        handle = group.all_gather(shard, out=rows)

        def finish() -> None:
            gathered = handle.wait()
            if gathered.data_ptr() != rows.data_ptr():
                rows.copy_(gathered)

        return finish


class _Later(dist.Work):
    """What `fully_shard` waits for before it uses the gathered weights."""

    def __init__(self, finish: Callable[[], None]) -> None:
        super().__init__()
        self._finish = finish

    def wait(self, timeout: Any = None) -> bool:
        self._finish()
        return True


def _done_by(output: Tensor, finish: Callable[[], None]) -> _Later | None:
    """End a gather now; on a CPU, where what is prefetched is waited for when it is used, return that as a handle."""
    if _on_cpu(output):
        return _Later(finish)
    finish()
    return None


def _on_cpu(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu"


def factor_of(op: Any, size: int) -> float:
    """Return by what the mean of a reduce-scatter over so many ranks is to be multiplied, for PyTorch's operations."""
    if op == ReduceOp.AVG:
        return 1.0
    if op == ReduceOp.SUM:
        return float(size)
    if op == ReduceOp.PREMUL_SUM:
        return size * float(op.__getstate__()[1])
    raise ContractError(f"a reduce-scatter of gradients is a sum or an average, not {op}")
