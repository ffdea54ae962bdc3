"""Among which devices each parameter of a model is cut: a tier over these has nothing to average there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, get_args

from torch import nn

from laconic.compression.optional import takes_factors_of
from laconic.errors import ContractError, StrategyError
from laconic.runtime.sharded.local_shard import is_sharded
from laconic.strategy import Sentence, Strategy
from laconic.sync.base import Sync
from laconic.sync.contexts import SteeringContext
from laconic.worker import Group

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_MARK = "_laconic_cut_along"


class Adopts(Protocol):
    """A worker that knows the groups of a device mesh."""

    def adopt(self, process_group: Any) -> Group: ...


def cut_along(parameters: Iterable[nn.Parameter], mesh: DeviceMesh) -> None:
    """Declare that plain parameters belong to one device of this mesh each, and differ along all of its dimensions, as
    the experts of a layer do of which every device has its own. A `DTensor` says so by itself, where it is sharded."""
    for parameter in parameters:
        setattr(parameter, _MARK, mesh)


@dataclass(frozen=True)
class Cuts:
    """The groups of devices, with this one, among which parameters are cut, by the names of the parameters; those that
    are whole everywhere have no entry."""

    among: Mapping[str, tuple[Group, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, worker: Adopts, model: nn.Module) -> Cuts:
        """Read a model's cuts from the placements of its `DTensor`s and from what `cut_along` has declared."""
        known: dict[tuple[int, ...], Group] = {}
        found: dict[str, tuple[Group, ...]] = {}
        for name, parameter in model.named_parameters():
            adopted = [worker.adopt(mesh.get_group(dim)) for mesh, dim in _dimensions(parameter)]
            groups = [known.setdefault(group.ranks, group) for group in adopted if group.size > 1]
            if groups:
                found[name] = tuple(dict.fromkeys(groups))
        return cls(found)

    def __bool__(self) -> bool:
        return bool(self.among)

    @property
    def groups(self) -> list[Group]:
        """All groups among which something is cut."""
        return list(dict.fromkeys(group for groups in self.among.values() for group in groups))

    def ranks(self, name: str) -> tuple[tuple[int, ...], ...]:
        """Return the ranks among which a parameter is cut; parameters that are cut alike share messages, others do not,
        so that all who have a parameter whole compute the same of it."""
        return tuple(group.ranks for group in self.among.get(name, ()))

    def is_whole(self, name: str, group: Group) -> bool:
        """Return whether all members of a group have this parameter, rather than parts of it."""
        members = set(group.ranks)
        for along in self.among.get(name, ()):
            common = members.intersection(along.ranks)
            if len(common) > 1 and common != members:
                raise ContractError(
                    f"{name!r} is cut among ranks {_listed(along)}, and the strategy averages it over ranks "
                    f"{_listed(group)}: name the mesh's dimensions as tiers, as in [bsp]@tp > [int8+ef]@dp with "
                    'mesh=mesh, or average over those that hold the same part, with mesh=mesh["dp"]'
                )
            if len(common) > 1:
                return False
        return True

    def agreeing(self, spanned: Iterable[Group]) -> list[Group]:
        """Return the groups in which all that train the model agree: those that the strategy spans, inner to outer, and
        before them those among which something is cut beside them."""
        within = list(spanned)
        covered = [set(group.ranks) for group in within]
        return [*(g for g in self.groups if not any(c.issuperset(g.ranks) for c in covered)), *within]

    def refuse(self, strategy: Strategy) -> None:
        """Refuse what devices with parts of a model could not all decide alike, or what looks at whole layers."""
        for part in strategy.parts_within:
            self.refuse(part)
        if not isinstance(strategy, Sentence):
            return
        sync, schedule = strategy.sync.make(), strategy.schedule.make()
        if not strategy.architecture.make().collective:
            raise StrategyError(
                f"`{strategy}` has a server, which holds whole parameters, and this model is cut among devices: write "
                "an architecture such as allreduce"
            )
        if sync.reads_optimizer_state or takes_factors_of(strategy.compressor):
            raise StrategyError(
                f"`{strategy}` works on what the optimizer or the layers know of whole parameters, and this device has "
                "parts of them; write bsp, local(8) or diloco, with a compression such as int8 or topk(0.01)+ef"
            )
        if sync.races or sync.steers or sync.replaces_step or sync.skips or _asks_for_a_clock(sync):
            raise StrategyError(
                f"`{strategy}`: {strategy.sync.name} decides by times, by single layers or for the whole model, and "
                "the devices among which this model is cut would decide differently; write bsp, local(8) or diloco"
            )
        if schedule.measures or schedule.finishes_late:
            raise StrategyError(
                f"`{strategy}`: {strategy.schedule.name} plans by times or steps layer by layer, which the devices "
                "among which this model is cut would do differently; write wfbp"
            )


def _dimensions(parameter: Any) -> list[tuple[DeviceMesh, int]]:
    """Return the dimensions of meshes along which a parameter is cut."""
    marked = getattr(parameter, _MARK, None)
    found = [] if marked is None else [(marked, dim) for dim in range(marked.ndim)]
    if is_sharded(parameter):
        cut = [dim for dim, placement in enumerate(parameter.placements) if not placement.is_replicate()]
        found += [(parameter.device_mesh, dim) for dim in cut]
    return found


def _asks_for_a_clock(sync: Sync[Any]) -> bool:
    """Return whether a rule's context has a clock and what the script logs."""
    bases = [base for kind in type(sync).__mro__ for base in getattr(kind, "__orig_bases__", ())]
    contexts = [argument for base in bases for argument in get_args(base)]
    return any(SteeringContext in getattr(context, "__mro__", ()) for context in contexts)


def _listed(group: Group) -> str:
    return ", ".join(map(str, group.ranks))
