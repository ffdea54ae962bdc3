"""`laconic.distribute`: the one line that a user adds to a training script."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn, optim

from laconic.architecture.sharded import sharded_method
from laconic.errors import ContractError, StrategyError
from laconic.experiments.rivals.base import Rival
from laconic.experiments.rivals.dispatch import hand_over
from laconic.experiments.rivals.text import read
from laconic.language.auto import START, begins_as, budget_of
from laconic.real.connect import connect
from laconic.real.slowdown import slow_down
from laconic.real.worker import RealWorker
from laconic.runtime.agreement import agree, describe
from laconic.runtime.broadcast import broadcast_tensors
from laconic.runtime.cuts import Cuts
from laconic.runtime.handed_over import refuse_rivals, rival_of
from laconic.runtime.in_flight import InFlight, complete
from laconic.runtime.no_sync import NoSync
from laconic.runtime.optimizer import DistributedOptimizer, refuse_strangers
from laconic.runtime.own_device import refuse_first_device
from laconic.runtime.session import Options, Session, has_session
from laconic.runtime.step_recorder import recorded
from laconic.runtime.tiers import is_collective, level_names
from laconic.runtime.undistributed import note_distributed
from laconic.runtime.wrapped_later import allow_wrapping, refuse_wrapping
from laconic.strategy import Strategy
from laconic.values.run_config import RunConfig
from laconic.virtual.worker import VirtualWorker
from laconic.worker import Group, Worker

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

_WRAPPERS = {
    "DistributedDataParallel": "pass the module inside it (model.module), or keep DDP and give it a compressor with "
    "model.register_comm_hook(None, laconic.ddp_hook('…'))",
    "DataParallel": "pass the module inside it (model.module) and start one process per device with `laconic run`",
    "FullyShardedDataParallel": "use its successor, torch.distributed.fsdp.fully_shard, which is supported",
}


def distribute(
    model: nn.Module,
    optimizer: optim.Optimizer,
    strategy: str | Strategy | None = None,
    mesh: DeviceMesh | None = None,
    *,
    process_group: ProcessGroup | None = None,
    nonfinite: Literal["pass", "raise"] = "pass",
    sparse: Literal["gather", "dense"] = "gather",
    weights: str | None = None,
    seed: int = 0,
) -> tuple[nn.Module, optim.Optimizer]:
    """Train this model on all workers, the way the strategy says.

    Return the same module (with `no_sync()` added) and an optimizer that shares the given one's groups and state; the
    training loop does not change. Parameters and buffers start from rank 0's. Without a launcher the script runs as one
    worker. A `--strategy` of `laconic run` takes precedence over the argument.

    In two kinds of processes this does not return but ends the script with `SystemExit(0)`, and says so: in that of
    `laconic run --dry-run`, after its report, and in the processes that `--servers` starts, when all workers are done.

    - `model`: the module to train, on its device already (see `laconic.device`); it may be sharded by `fully_shard`
      before, or cut along other dimensions of the mesh than that of its copies (by `shard_tensors`, or torch's
      `parallelize_module`), and is not one that DDP has wrapped.
    - `optimizer`: any `torch.optim.Optimizer` of the model's parameters.
    - `strategy`: text or value; default `bsp`. Where the model is sharded, also a method of sharded training such as
      `zero_plus_plus` or `sdp4bit`. `auto` measures and decides, `auto(loss_budget=0.5%)` may also change
      the mathematics. `library:method`, as in `torch:ddp`, hands the model to that library.
    - `mesh`: a DeviceMesh whose dimension names are the strategy's tiers, or one dimension of it. A parameter that is
      cut along a dimension is left alone by the tier over it; compressors see this device's part.
    - `process_group`: distribute over these processes only.
    - `nonfinite`: `"raise"` ends all ranks alike at a NaN or infinite gradient; `"pass"` hands it on, as DDP does.
    - `sparse`: `"gather"` sends gradients of sparse embeddings as (index, value), `"dense"` makes them dense.
    - `weights`: how the weights of a sharded model are gathered, such as `int8(256)`, or `strided_bits(4, 128)+ef21`
      for differences from the last ones; default: as they are.
    - `seed`: the seed of the random draws that compressors make.
    """
    if nonfinite not in ("pass", "raise"):
        raise ContractError(f'nonfinite is "pass" or "raise", not {nonfinite!r}')
    if sparse not in ("gather", "dense"):
        raise ContractError(f'sparse is "gather" or "dense", not {sparse!r}')
    _refuse(model, optimizer)
    sharded = _is_fully_sharded(model)
    if weights is not None and not sharded:
        raise ContractError(
            "weights= says how the weights of a sharded model are gathered, and this model is whole on every worker: "
            "call fully_shard(model) before, or leave it out"
        )
    refuse_strangers([p for g in optimizer.param_groups for p in g["params"]], model)
    note_distributed()
    config = RunConfig.current()
    asked = config.strategy or strategy or "bsp"
    if sharded and (method := sharded_method(str(asked))) is not None:
        from laconic.parallel.fsdp.methods import advise_slices, with_replicas

        asked, weights = with_replicas(method, model, connect(), mesh), weights or method.weights
        advise_slices(method, model, connect())
    budget = budget_of(asked)
    chosen = read(asked if budget is None else START)
    if isinstance(chosen, Rival):
        chosen.check(dry_run=config.dry_run)
    elif config.dry_run:
        from laconic.api.dry_run import report  # brings rich, which training does not need

        report(model, optimizer, chosen, config.workers or 1, sparse == "gather")
        sys.exit(0)
    settings = {"nonfinite": nonfinite, "sparse": sparse, "seed": seed, "weights": weights}
    if config.role == "server":
        if isinstance(chosen, Rival):
            raise ContractError(f"`{chosen}` has no server: leave --servers out")
        from laconic.real.serve import serve  # a process that only computes needs no sockets

        serve(model, optimizer, chosen, describe(model, optimizer, str(chosen), settings), config)
    worker = connect()
    if config.servers and isinstance(worker, RealWorker) and has_session(worker):
        raise ContractError(
            "a run with --servers has one model, and this script calls distribute() again: its servers serve the first "
            "model alone. Leave --servers out (workers then host the servers), or put all parts into one nn.Module and "
            "their parameters into one optimizer"
        )
    if isinstance(worker, RealWorker):
        refuse_first_device(next(model.parameters()).device, torch.cuda.device_count())
    slow_down(worker, model, optimizer, counts=config.alone or isinstance(chosen, Rival))
    if config.profile_to is not None:
        from laconic.real.profiling.worker import profile_training  # measuring is no part of training

        return profile_training(model, optimizer, worker, config, sparse == "gather")
    if config.alone and isinstance(worker, RealWorker):
        model.no_sync = NoSync()  # type: ignore[assignment]
        return model, recorded(optimizer, worker, config)
    if worker.rank == 0 and config.strategy and strategy and read(begins_as(strategy)) != chosen:
        print(f"laconic: the launcher's strategy `{asked}` replaces the script's `{strategy}`", file=sys.stderr)
    if isinstance(chosen, Rival):
        model, optimizer = hand_over(chosen, worker, model, optimizer, mesh, process_group, settings)
        return model, recorded(optimizer, worker, config)
    group, levels = _groups(worker, chosen, mesh, process_group)
    description = describe(model, optimizer, str(chosen), settings)
    options = Options(refuse_nonfinite=nonfinite == "raise", gather_sparse=sparse == "gather", seed=seed)
    if sharded:
        session = _sharded_session(worker, model, chosen, group, levels, options, optimizer, description, weights)
        model.no_sync = NoSync(session)  # type: ignore[assignment]
        return model, recorded(DistributedOptimizer(optimizer, session), worker, config)
    cuts = Cuts.of(worker, model) if isinstance(worker, RealWorker | VirtualWorker) else Cuts()
    if cuts:
        _refuse_parts(model, cuts, chosen, [*levels.values()] or [group], chooses=budget is not None)
    if is_collective(chosen):  # otherwise the server compares, and sends every worker the first values
        _begin_alike(model, cuts, description, cuts.agreeing([*levels.values()] if cuts and levels else [group]))
    elif nonfinite == "raise":
        raise ContractError('nonfinite="raise" ends all ranks alike, which workers of a server cannot: leave it out')
    session = Session(worker, model, chosen, group, levels, options, optimizer, description, cuts=cuts)
    if budget is not None:
        from laconic.planner.autotune import Autotuning  # the planner takes time to load, and only `auto` needs it

        session.autotuner = Autotuning(session, budget)
    model.no_sync = NoSync(session)  # type: ignore[assignment]
    refuse_wrapping(model)
    return model, recorded(DistributedOptimizer(optimizer, session), worker, config)


def undistribute(model: nn.Module, optimizer: optim.Optimizer) -> tuple[nn.Module, optim.Optimizer]:
    """Undo `distribute`: remove every hook and give back the optimizer that was passed in.

    - `model`, `optimizer`: what one `distribute` returned.
    """
    refuse_rivals(optimizer, "undistribute")
    if not isinstance(optimizer, DistributedOptimizer) or optimizer.session.model is not model:
        raise ContractError("undistribute() takes the model and the optimizer that one distribute() returned")
    optimizer.session.close()
    allow_wrapping(model)
    del model.no_sync
    return model, optimizer.base


def _refuse(model: nn.Module, optimizer: Any) -> None:
    for parent in type(model).__mro__:
        if parent.__name__ in _WRAPPERS:
            raise ContractError(f"this model is already a {parent.__name__}: {_WRAPPERS[parent.__name__]}")
    for name, parameter in model.named_parameters():
        if isinstance(parameter, nn.UninitializedParameter):
            raise ContractError(f"{name!r} has no shape yet: run one batch through the model before distribute()")
    if any(map(_is_fully_sharded, model.modules())) and not _is_fully_sharded(model):
        raise ContractError("a part of this model is sharded: pass the module that fully_shard() was called on")
    if next(model.parameters(), None) is None:
        raise ContractError("this model has no parameters: there is nothing to distribute")
    attached = getattr(model, "no_sync", None)
    if isinstance(attached, NoSync) and attached.session is not None:
        raise ContractError("this model is distributed already: call laconic.undistribute(model, optimizer) first")
    if isinstance(optimizer, DistributedOptimizer) or rival_of(optimizer) is not None:
        raise ContractError("this optimizer is distributed already: pass the optimizer that was given to distribute()")
    if not isinstance(optimizer, optim.Optimizer):
        raise ContractError(f"distribute() needs a torch.optim.Optimizer, not {type(optimizer).__name__}")


def _is_fully_sharded(model: nn.Module) -> bool:
    """Return whether `fully_shard` was called on this module; its code is not loaded where nobody has."""
    return any(parent.__name__ == "FSDPModule" for parent in type(model).__mro__)


def _sharded_session(
    worker: Worker,
    model: nn.Module,
    strategy: Strategy,
    group: Group,
    levels: dict[str, Group],
    options: Options,
    optimizer: optim.Optimizer,
    description: dict[str, Any],
    weights: str | None,
) -> Session:
    from laconic.parallel.fsdp.session import ShardedSession, gathered_weights

    assert isinstance(worker, RealWorker | VirtualWorker)
    if not is_collective(strategy):
        raise StrategyError(f"a sharded model has no parameter server, as `{strategy}` asks for: write bf16+ef")
    words = gathered_weights(weights)
    agree(description, group, next(model.parameters()).device)
    return ShardedSession(worker, model, strategy, group, levels, options, optimizer, description, words)


def _refuse_parts(model: nn.Module, cuts: Cuts, strategy: Strategy, groups: list[Group], chooses: bool) -> None:
    """Refuse, for a model that is cut among devices, what does not fit the strategy."""
    if chooses:
        raise StrategyError("`auto` measures whole models, and this one is cut among devices: write a strategy")
    cuts.refuse(strategy)
    if not any(cuts.is_whole(name, group) for name, _ in model.named_parameters() for group in groups):
        raise ContractError(
            "every parameter of this model is cut among the workers that would average it, as those of a module inside "
            "one that fully_shard() was called on are: pass that module, or the mesh's dimension of the copies"
        )


def _begin_alike(model: nn.Module, cuts: Cuts, description: dict[str, Any], groups: list[Group]) -> None:
    """Compare the workers of each group, inner to outer, and let parameters and buffers start from the first ones
    that have them; what is cut among a group is neither compared nor copied there."""
    tensors: dict[str, Tensor] = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    device = next(model.parameters()).device
    alike: dict[tuple[Group, ...], list[Tensor]] = {}
    for name, tensor in tensors.items():
        alike.setdefault(tuple(g for g in groups if cuts.is_whole(name, g)), []).append(tensor)
    for group in groups:
        kinds = {name: kind for name, kind in description["parameters"].items() if cuts.is_whole(name, group)}
        agree({**description, "parameters": kinds}, group, device)
    complete([InFlight(broadcast_tensors(copied, where)) for where, copied in alike.items()])


def _groups(
    worker: Worker, strategy: Strategy, mesh: DeviceMesh | None, process_group: ProcessGroup | None
) -> tuple[Group, dict[str, Group]]:
    """Return the group of all workers that train this model, and one group per tier."""
    names = level_names(strategy)
    if mesh is None and process_group is None:
        return worker.world, _default_levels(worker, names)
    assert isinstance(worker, RealWorker | VirtualWorker)
    if process_group is not None:
        if not isinstance(worker, RealWorker):
            raise ContractError("process_group= belongs to real processes: leave it out on virtual workers")
        if mesh is not None:
            raise ContractError("give mesh= or process_group=, not both: a mesh brings its own groups")
        if names:
            raise ContractError(f"the tiers {', '.join(names)} need mesh=, not process_group=")
        return worker.adopt(process_group), {}
    assert mesh is not None
    known = mesh.mesh_dim_names or ()
    missing = [name for name in names if name not in known]
    if missing:
        raise StrategyError(
            f"the strategy names {', '.join(missing)}, the mesh has {', '.join(known) or 'no names'}: name its "
            f"dimensions, init_device_mesh(..., mesh_dim_names={tuple(reversed(names))})"
        )
    unnamed = [d for d, n in zip(known, mesh.shape, strict=False) if names and d not in names and n > 1]
    if unnamed:
        raise StrategyError(
            f"no tier spans the mesh's {', '.join(unnamed)}, so replicas would differ along it: add [...]@{unnamed[0]}"
        )
    if mesh.ndim == 1:
        everyone: Group = worker.adopt(mesh.get_group())
    elif mesh.size() == worker.size:
        everyone = worker.world
    else:
        raise ContractError("a mesh of several dimensions must span all workers; pass a one-dimensional slice of it")
    return everyone, {name: worker.adopt(mesh.get_group(name)) for name in names}


def _default_levels(worker: Worker, names: list[str]) -> dict[str, Group]:
    """Without a mesh, let the inner tier span each host and the outer one join the hosts."""
    if len(names) > 2:
        raise ContractError(f"{len(names)} tiers need a mesh: distribute(..., mesh=init_device_mesh(…))")
    if len(names) < 2:
        return dict.fromkeys(names, worker.world)
    size, local = worker.size, worker.host_size
    if size % local:
        raise ContractError(f"{size} workers, {local} on this machine: unequal machines need an explicit mesh=")
    hosts = [range(first, first + local) for first in range(0, size, local)]
    across = [range(place, size, local) for place in range(local)]
    levels: dict[str, Group] = {}
    for name, sets in zip(names, (hosts, across), strict=True):
        groups = [worker.group(tuple(ranks)) for ranks in sets]  # everyone asks for all of them, in the same order
        levels[name] = next(g for g, ranks in zip(groups, sets, strict=True) if worker.rank in ranks)
    return levels
