"""The hosts of a run with servers: the first has the run's store and the servers, the others may join and leave.

Each host's launcher manages its own workers. The first stays until the last host has ended or fallen silent; the others
cannot go on without it.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from torch.distributed import TCPStore

from laconic.errors import LaconicError
from laconic.launch.launch_context import JOIN_SECONDS, LaunchContext, wait_for_host
from laconic.launch.request import Request
from laconic.launch.run_store import open_store, open_store_if_free
from laconic.liveness.detection import Judge, Lost, interval
from laconic.liveness.store_thread import StoreAddress, Watch
from laconic.network.interfaces import is_own
from laconic.rpc.keys import Keys

_PREFIX = "laconic/machines"
_ANNOUNCE_SECONDS = 2.0


class Hosts:
    """The hosts of a run, as this host's launcher sees them; `node` is its own number among them."""

    def __init__(self, request: Request, context: LaunchContext, store: TCPStore, node: int) -> None:
        self.node, self._store = node, store  # the store lives as long as it is referenced
        self._request, self._context = request, context
        self._silent: set[int] = set()
        self._watch: Watch | None = None
        if request.nodes > 1:
            step = interval(context.heartbeat_seconds)
            self._judge = Judge(
                request.nodes, node, context.heartbeat_seconds, step, time.monotonic(), start_seconds=JOIN_SECONDS
            )
            place = StoreAddress(store.host, store.port, _PREFIX, request.nodes)
            self._watch = Watch(place, step, node, context.host_name)
            self._watch.start()

    @property
    def port(self) -> int:
        return int(self._store.port)

    def lost(self) -> Lost | None:
        """Return the workers lost on hosts that have fallen silent since the last call; only the first host checks."""
        if self._watch is None or self.node != 0:
            return None
        loss = self._judge.look(self._watch.beats, time.monotonic())
        newly_silent = set() if loss is None else set(loss.ranks) - self._silent
        if loss is None or not newly_silent:
            return None
        self._silent |= newly_silent
        workers = self._request.workers
        ranks = [rank for node in sorted(newly_silent) for rank in range(node * workers, (node + 1) * workers)]
        return replace(loss, ranks=tuple(ranks))

    def failure(self) -> str | None:
        """Return why this host cannot go on, if so: the first host is gone."""
        if self._watch is None or self.node == 0:
            return None
        silent_seconds = time.monotonic() - self._watch.answered
        if not self._watch.gone and not (self._watch.connected and silent_seconds > self._context.heartbeat_seconds):
            return None
        host, port = self._request.endpoint
        why = "has ended" if self._watch.gone else f"has not answered for {silent_seconds:.1f} s"
        return f"the launcher of the servers, at {host}:{port}, {why}. Look at its console, and at the link to it."

    def can_end(self) -> bool:
        """Return whether no other host needs this one any more, once its own workers have ended."""
        if self._watch is None or self.node != 0:
            return True
        return all(beat.done or n in self._silent for n, beat in enumerate(self._watch.beats) if n)

    def leave(self) -> None:
        """Announce to the other hosts that this one's workers have ended."""
        if self._watch is not None and not self._watch.gone:
            self._watch.done(_ANNOUNCE_SECONDS)
            self._watch.stop()


def join_hosts(request: Request, context: LaunchContext) -> Hosts:
    """Host the run's store, or connect to the host that does; make the run's keys where they are missing."""
    host, port = request.endpoint
    keys = keys_file(request, context.folder)
    if request.nodes == 1:
        Keys.make().write(keys)
        return Hosts(request, context, open_store(context.address), 0)
    if is_own(host) and (store := open_store_if_free(host, port)) is not None:
        if not keys.exists():
            Keys.make().write(keys)
        return Hosts(request, context, store, 0)
    wait_for_host(host, port)
    store = TCPStore(host, port, is_master=False, wait_for_workers=False)
    if not keys.exists():
        raise LaconicError(
            f"there are no keys at {keys}: copy the --keys file of the first machine there, for example over ssh."
        )
    node = int(store.add(f"{_PREFIX}/count", 1))
    if node >= request.nodes:
        raise LaconicError(
            f"all {request.nodes} machines of this run have joined already: start it once on each machine."
        )
    return Hosts(request, context, store, node)


def keys_file(request: Request, folder: Path) -> Path:
    """Return the path of the run's keys on this host."""
    return folder / "keys.json" if request.keys is None else Path(request.keys).absolute()
