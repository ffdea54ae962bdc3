"""The machines of a run with servers: the first hosts the run's store and the servers, the others come and go.

Each launcher looks after its own workers. The first stays until the last machine has ended or fallen silent; the others
cannot go on without it.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from torch.distributed import TCPStore

from laconic.errors import LaconicError
from laconic.launch.request import Request
from laconic.launch.site import JOIN_SECONDS, Site, await_host
from laconic.liveness.beats import Judge, Lost, interval
from laconic.liveness.watch import StoreAddress, Watch
from laconic.network.interfaces import is_own
from laconic.rpc.keys import Keys

_PREFIX = "laconic/machines"
_TELL_SECONDS = 2.0


class Hosts:
    """The others, as this launcher sees them; `node` is its own number among them."""

    def __init__(self, request: Request, site: Site, store: TCPStore, node: int) -> None:
        self.node, self._store = node, store  # the store lives as long as somebody holds it
        self._request, self._site = request, site
        self._silent: set[int] = set()
        self._watch: Watch | None = None
        if request.nodes > 1:
            step = interval(site.heartbeat_seconds)
            self._judge = Judge(
                request.nodes, node, site.heartbeat_seconds, step, time.monotonic(), start_seconds=JOIN_SECONDS
            )
            place = StoreAddress(store.host, store.port, _PREFIX, request.nodes)
            self._watch = Watch(place, step, node, site.machine)
            self._watch.start()

    @property
    def port(self) -> int:
        return int(self._store.port)

    def lost(self) -> Lost | None:
        """Whose workers are lost because their machine has fallen silent, if the first machine has not heard of it."""
        if self._watch is None or self.node != 0:
            return None
        found = self._judge.look(self._watch.beats, time.monotonic())
        new = set() if found is None else set(found.ranks) - self._silent
        if found is None or not new:
            return None
        self._silent |= new
        workers = self._request.workers
        ranks = [rank for node in sorted(new) for rank in range(node * workers, (node + 1) * workers)]
        return replace(found, ranks=tuple(ranks))

    def trouble(self) -> str | None:
        """Why this machine cannot go on, if so: the first one is gone."""
        if self._watch is None or self.node == 0:
            return None
        silent_seconds = time.monotonic() - self._watch.answered
        if not self._watch.gone and not (self._watch.connected and silent_seconds > self._site.heartbeat_seconds):
            return None
        host, port = self._request.endpoint
        why = "has ended" if self._watch.gone else f"has not answered for {silent_seconds:.1f} s"
        return f"the launcher of the servers, at {host}:{port}, {why}. Look at its console, and at the link to it."

    def may_end(self) -> bool:
        """Whether nobody needs this machine any more, once its own workers have ended."""
        if self._watch is None or self.node != 0:
            return True
        return all(beat.done or n in self._silent for n, beat in enumerate(self._watch.beats) if n)

    def leave(self) -> None:
        """Tell the others that this machine's workers have ended."""
        if self._watch is not None and not self._watch.gone:
            self._watch.done(_TELL_SECONDS)
            self._watch.stop()


def join_hosts(request: Request, site: Site) -> Hosts:
    """Host the run's store, or find the machine that does; the keys are there afterwards, on this machine too."""
    host, port = request.endpoint
    keys = keys_file(request, site.folder)
    if request.nodes == 1:
        Keys.make().write(keys)
        return Hosts(request, site, TCPStore(site.address, 0, is_master=True, wait_for_workers=False), 0)
    if is_own(host) and (store := _host(host, port)) is not None:
        if not keys.exists():
            Keys.make().write(keys)
        return Hosts(request, site, store, 0)
    await_host(host, port)
    store = TCPStore(host, port, is_master=False, wait_for_workers=False)
    if not keys.exists():
        raise LaconicError(f"there are no keys at {keys}: copy the first machine's --keys file there, over ssh, say.")
    node = int(store.add(f"{_PREFIX}/count", 1))
    if node >= request.nodes:
        raise LaconicError(f"all {request.nodes} machines are there already: a run's machines come once each.")
    return Hosts(request, site, store, node)


def keys_file(request: Request, folder: Path) -> Path:
    """Where the run's keys are on this machine."""
    return folder / "keys.json" if request.keys is None else Path(request.keys).absolute()


def _host(host: str, port: int) -> TCPStore | None:
    """The store, unless another launcher on this machine hosts it."""
    try:
        return TCPStore(host, port, is_master=True, wait_for_workers=False)
    except RuntimeError:  # torch's DistNetworkError: the port is taken
        return None
