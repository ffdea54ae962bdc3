"""The connection to torch's elastic launcher: the rendezvous of a fixed number of hosts, and a worker's command."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from torch.distributed import TCPStore
from torch.distributed.elastic.agent.server.api import WorkerSpec

from laconic.errors import LaconicError
from laconic.launch.elastic_agent import Agent
from laconic.launch.launch_context import JOIN_SECONDS, LaunchContext, wait_for_host
from laconic.launch.net import find
from laconic.launch.process_manager import OnStart
from laconic.launch.rendezvous import FixedRendezvous
from laconic.launch.request import Request
from laconic.launch.run_store import open_store_if_free
from laconic.network.interfaces import is_own

_ANSWER = timedelta(seconds=60)
# The shell only opens the log (both streams, appended, so that a restart keeps earlier output) and becomes the worker.
_SHELL = 'exec "$@" >>"$0/rank-$RANK.log" 2>&1'
# On a shaped network it first enters its own network namespace, whose interface is the only one there is.
_PLACED = """
export GLOO_SOCKET_IFNAME="$2$LOCAL_RANK" NCCL_SOCKET_IFNAME="$2$LOCAL_RANK"
place="$1-$LOCAL_RANK"
shift 2
exec ip netns exec "$place" "$@" >>"$0/rank-$RANK.log" 2>&1
"""


def build_agent(request: Request, folder: Path, print_line: Callable[[str], None], on_start: OnStart) -> Agent:
    """Return an agent that is ready to run: it has joined (or hosts) the rendezvous, and has started nothing yet."""
    context = LaunchContext.of(request, folder)
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


def _rendezvous(request: Request, context: LaunchContext) -> FixedRendezvous:
    """Host the rendezvous of several hosts, or connect to it; a second agent on the host's machine is no host."""
    host, port = request.endpoint
    if request.nodes == 1:
        return FixedRendezvous(None, True, 1, context.address, JOIN_SECONDS)
    own = open_store_if_free(host, port) if is_own(host) else None
    store = _connect(host, port) if own is None else own
    return FixedRendezvous(store, own is not None, request.nodes, context.address, JOIN_SECONDS)


def _connect(host: str, port: int) -> TCPStore:
    wait_for_host(host, port)
    try:
        return TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=_ANSWER)
    except RuntimeError as error:  # torch's DistError
        raise LaconicError(
            f"another program uses port {port} of {host}: choose another port for --rendezvous."
        ) from error
