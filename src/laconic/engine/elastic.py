"""The wiring to torch's elastic launcher: rendezvous of a fixed number of machines, and the command of a worker."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from datetime import timedelta

from torch.distributed.elastic.agent.server.api import WorkerGroup, WorkerSpec
from torch.distributed.elastic.rendezvous import RendezvousConnectionError, RendezvousParameters
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler, RendezvousTimeout

from laconic.engine.agent import Agent, Site
from laconic.engine.interfaces import is_own
from laconic.engine.request import Request
from laconic.errors import LaconicError

_RUN_ID = "laconic"
_JOIN = timedelta(minutes=15)
# The shell only opens the log (both streams, appended, so that a restart keeps the past) and becomes the worker.
_SHELL = 'exec "$@" >>"$0/rank-$RANK.log" 2>&1'


class _FixedSize(DynamicRendezvousHandler):
    """Machines neither join nor leave in the middle of an attempt, so there is no need to ask the store all the time:
    a question to a store that is cut off would block the agent."""

    def num_nodes_waiting(self) -> int:
        return 0


def build_agent(
    request: Request, site: Site, say: Callable[[str], None], on_start: Callable[[WorkerGroup], None]
) -> Agent:
    """An agent ready to run: connected to (or hosting) the rendezvous, nothing started yet."""
    elastic = logging.getLogger("torch.distributed.elastic")
    elastic.propagate = False  # what it has to say, the agent says in sentences
    elastic.addHandler(logging.NullHandler())
    command = ("-c", _SHELL, str(site.folder / "logs"), sys.executable, *request.python_arguments())
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
    error: Exception | None = None
    for hosts in (True, False) if is_own(host) else (False,):  # a second agent on the host's machine is a guest too
        parameters = RendezvousParameters(
            "c10d", f"[{host}]:{port}" if ":" in host else f"{host}:{port}", _RUN_ID,
            request.nodes, request.nodes, site.address, is_host=str(hosts),
        )  # fmt: skip
        try:
            backend, store = create_backend(parameters)
        except RendezvousConnectionError as failure:
            error = failure
            continue
        handler: _FixedSize = _FixedSize.from_backend(
            _RUN_ID, store, backend, request.nodes, request.nodes, site.address, RendezvousTimeout(join=_JOIN)
        )
        return handler
    raise LaconicError(
        f"nothing answers at the rendezvous {host}:{port}. Start the same command on {host} too (it hosts the "
        f"meeting), and check that no firewall closes port {port}."
    ) from error
