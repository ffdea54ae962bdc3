"""The connection to torch's elastic launcher: the rendezvous of a fixed number of hosts, and a worker's command."""

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
from laconic.launch.launch_context import JOIN_SECONDS, LaunchContext, wait_for_host
from laconic.launch.net import find
from laconic.launch.process_manager import OnStart
from laconic.launch.request import Request
from laconic.network.interfaces import is_own

_RUN_ID = "laconic"
_JOIN = timedelta(seconds=JOIN_SECONDS)
# The shell only opens the log (both streams, appended, so that a restart keeps earlier output) and becomes the worker.
_SHELL = 'exec "$@" >>"$0/rank-$RANK.log" 2>&1'
# On a shaped network it first enters its own network namespace, whose interface is the only one there is.
_PLACED = """
export GLOO_SOCKET_IFNAME="$2$LOCAL_RANK" NCCL_SOCKET_IFNAME="$2$LOCAL_RANK"
place="$1-$LOCAL_RANK"
shift 2
exec ip netns exec "$place" "$@" >>"$0/rank-$RANK.log" 2>&1
"""


class _FixedSize(DynamicRendezvousHandler):
    """A rendezvous of a fixed number of hosts, which join before an attempt and stay for it."""

    def num_nodes_waiting(self) -> int:
        """Return 0: asking a store that is cut off would block the agent, and a loss is announced elsewhere."""
        return 0

    @property
    def use_agent_store(self) -> bool:
        """Return True: the workers' store lives in an agent of ours, see `Agent._rendezvous`."""
        return True


def build_agent(request: Request, folder: Path, print_line: Callable[[str], None], on_start: OnStart) -> Agent:
    """Return an agent that is ready to run: it has joined (or hosts) the rendezvous, and has started nothing yet."""
    context = LaunchContext.of(request, folder)
    # torch would keep one store for all attempts: with the addresses of dead workers in it, so that gloo connects to
    # nobody, and known only to the hosts of the first, so that a host that joins again waits for ever.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    elastic = logging.getLogger("torch.distributed.elastic")
    elastic.propagate = False  # the agent reports the same in sentences
    elastic.addHandler(logging.NullHandler())
    logs, python = str(context.folder / "logs"), (sys.executable, *request.python_arguments())
    command = ("-c", _SHELL, logs, *python)
    if request.net is not None:
        net = find(request.net)
        command = ("-c", _PLACED, logs, net.namespace_prefix, net.interface_prefix, *python)
    spec = WorkerSpec(
        role="laconic",
        local_world_size=request.workers,
        rdzv_handler=_rendezvous(request, context),
        entrypoint="/bin/sh",
        args=tuple(argument.replace("$", "$$") for argument in command),  # torch substitutes $-macros: shield ours
        max_restarts=request.restarts,
        monitor_interval=0.1,
        local_addr=context.address,
        event_log_handler="null",
    )
    return Agent(spec, context, print_line, on_start)


def _rendezvous(request: Request, context: LaunchContext) -> _FixedSize:
    host, port = request.endpoint
    for is_host in (True, False) if is_own(host) else (False,):  # a second agent on that machine is no host
        if not is_host:
            wait_for_host(host, port)
        parameters = RendezvousParameters(
            "c10d", f"[{host}]:{port}" if ":" in host else f"{host}:{port}", _RUN_ID,
            request.nodes, request.nodes, context.address, is_host=str(is_host),
        )  # fmt: skip
        try:
            backend, store = create_backend(parameters)
        except RendezvousConnectionError:
            continue
        handler: _FixedSize = _FixedSize.from_backend(
            _RUN_ID, store, backend, request.nodes, request.nodes, context.address, RendezvousTimeout(join=_JOIN)
        )
        return handler
    raise LaconicError(f"another program uses port {port} of {host}: choose another port for --rendezvous.")
