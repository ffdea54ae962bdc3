"""The wiring to torch's elastic launcher: rendezvous of a fixed number of machines, and the command of a worker."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.rendezvous import RendezvousConnectionError, RendezvousParameters
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler, RendezvousTimeout

from laconic.errors import LaconicError
from laconic.launch.elastic_agent import Agent
from laconic.launch.net import find
from laconic.launch.process_manager import OnStart
from laconic.launch.request import Request
from laconic.launch.site import JOIN_SECONDS, Site, await_host
from laconic.network.interfaces import is_own

_RUN_ID = "laconic"
_JOIN = timedelta(seconds=JOIN_SECONDS)
# The shell only opens the log (both streams, appended, so that a restart keeps the past) and becomes the worker.
_SHELL = 'exec "$@" >>"$0/rank-$RANK.log" 2>&1'
# On a shaped network it first goes to its own place, whose interface is the only one there is.
_PLACED = """
export GLOO_SOCKET_IFNAME="$2$LOCAL_RANK" NCCL_SOCKET_IFNAME="$2$LOCAL_RANK"
place="$1-$LOCAL_RANK"
shift 2
exec ip netns exec "$place" "$@" >>"$0/rank-$RANK.log" 2>&1
"""


class _FixedSize(DynamicRendezvousHandler):
    """Machines come together before an attempt and stay for it."""

    def num_nodes_waiting(self) -> int:
        """Nobody: asking a store that is cut off would block the agent, and a loss is announced elsewhere."""
        return 0

    @property
    def use_agent_store(self) -> bool:
        """The workers' store lives in an agent, ours: see `Agent._rendezvous`."""
        return True


def build_agent(request: Request, folder: Path, say: Callable[[str], None], on_start: OnStart) -> Agent:
    """An agent ready to run: connected to (or hosting) the rendezvous, nothing started yet."""
    site = Site.of(request, folder)
    # torch would keep one store for all attempts: with the addresses of dead workers in it, so that gloo connects to
    # nobody, and known only to the machines of the first, so that one that comes back waits for ever.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    elastic = logging.getLogger("torch.distributed.elastic")
    elastic.propagate = False  # what it has to say, the agent says in sentences
    elastic.addHandler(logging.NullHandler())
    logs, python = str(site.folder / "logs"), (sys.executable, *request.python_arguments())
    command = ("-c", _SHELL, logs, *python)
    if request.net is not None:
        net = find(request.net)
        command = ("-c", _PLACED, logs, net.namespace_prefix, net.interface_prefix, *python)
    spec = WorkerSpec(
        role="laconic",
        local_world_size=request.workers,
        rdzv_handler=_rendezvous(request, site),
        entrypoint="/bin/sh",
        args=tuple(argument.replace("$", "$$") for argument in command),  # torch substitutes $-macros: shield ours
        max_restarts=request.restarts,
        monitor_interval=0.1,
        local_addr=site.address,
        event_log_handler="null",
    )
    return Agent(spec, site, say, on_start)


def _rendezvous(request: Request, site: Site) -> _FixedSize:
    host, port = request.endpoint
    for hosts in (True, False) if is_own(host) else (False,):  # a second agent on the host's machine is a guest too
        if not hosts:
            await_host(host, port)
        parameters = RendezvousParameters(
            "c10d", f"[{host}]:{port}" if ":" in host else f"{host}:{port}", _RUN_ID,
            request.nodes, request.nodes, site.address, is_host=str(hosts),
        )  # fmt: skip
        try:
            backend, store = create_backend(parameters)
        except RendezvousConnectionError:
            continue
        handler: _FixedSize = _FixedSize.from_backend(
            _RUN_ID, store, backend, request.nodes, request.nodes, site.address, RendezvousTimeout(join=_JOIN)
        )
        return handler
    raise LaconicError(f"another program uses port {port} of {host}: choose another port for --rendezvous.")
