"""The rival of the torchft library: its DiLoCo, each worker a replica group of its own.

torchft needs one lighthouse for all, and a store and a manager for each replica group; they run in the workers' own
processes, at addresses that the other workers can reach.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from laconic.experiments.rivals.base import Rival, RivalContext
from laconic.knobs import knob

if TYPE_CHECKING:
    from torch import nn, optim


@dataclass(frozen=True)
class DiLoCo(Rival):
    """torchft's DiLoCo: local steps, then an outer step of Nesterov momentum along the mean change, every `period`."""

    name: ClassVar[str] = "torchft:diloco"

    period: int = knob(8, low=1, doc="local steps between two outer steps")
    outer_lr: float = knob(0.7, above=0, doc="learning rate of the outer steps")
    outer_momentum: float = knob(0.9, low=0, below=1, doc="momentum of the outer steps")

    def take_over(
        self, model: nn.Module, optimizer: optim.Optimizer, context: RivalContext
    ) -> tuple[nn.Module, optim.Optimizer]:
        from torch import optim

        from laconic.runtime.broadcast import broadcast_tensors
        from laconic.runtime.in_flight import InFlight, complete
        from laconic.runtime.no_sync import NoSync

        os.environ.setdefault("RUST_LOG", "warn")  # else its servers write a page for every exchange
        from torchft.local_sgd import DiLoCo as TorchftDiLoCo

        complete([InFlight(broadcast_tensors([*model.parameters(), *model.buffers()], [context.group]))])
        outer = optim.SGD(
            model.parameters(), lr=self.outer_lr, momentum=self.outer_momentum, nesterov=self.outer_momentum > 0
        )
        diloco = TorchftDiLoCo(
            _manager(context, next(model.parameters()).is_cuda), [model], optimizer, outer, self.period
        )
        diloco.__enter__()  # never left: the end of the user's loop cannot be seen from here
        model.no_sync = NoSync()  # type: ignore[assignment]
        return model, optimizer


def _manager(context: RivalContext, on_cuda: bool) -> Any:
    import atexit
    from datetime import timedelta

    import torch.distributed as dist
    from torchft.coordination import LighthouseServer
    from torchft.manager import Manager
    from torchft.process_group import ProcessGroupGloo, ProcessGroupNCCL

    from laconic.network.interfaces import address_towards
    from laconic.values.process_place import ProcessPlace

    host = address_towards(ProcessPlace.current().host)
    group, patience = context.group, timedelta(minutes=30)  # lost workers are detected by the heartbeat
    lighthouse = [""]
    if group.rank == 0:
        server = LighthouseServer(bind="[::]:0", min_replicas=group.size, join_timeout_ms=60_000)
        atexit.register(server.shutdown)
        lighthouse = [f"http://{host}:{server.address().rpartition(':')[2]}"]  # its own address has the host's name
    dist.broadcast_object_list(lighthouse, group.ranks[0], group.process_group)
    store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupNCCL(patience) if on_cuda else ProcessGroupGloo(patience),
        load_state_dict=None,
        state_dict=None,
        min_replica_size=group.size,
        use_async_quorum=False,  # DiLoCo insists
        timeout=patience,
        quorum_timeout=patience,
        rank=0,
        world_size=1,
        store_addr=host,
        store_port=store.port,
        lighthouse_addr=lighthouse[0],
        replica_id=f"laconic_{group.rank}",
        hostname=host,
        init_sync=False,  # everyone has rank 0's numbers already
        max_retries=0,  # an exchange that fails is an error, not a pause
    )
    manager.laconic_store = store  # it must live as long as the manager
    atexit.register(manager.shutdown, wait=False)
    return manager
