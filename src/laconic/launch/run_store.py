"""The run's store: a `TCPStore` that listens at one address of this host.

torch's own listens at every address. The store has no authentication, so on one machine it listens on the loopback (or
on the hub of a shaped network), where no other machine can reach it.
"""

from __future__ import annotations

import errno
import socket

from torch.distributed import TCPStore

from laconic.errors import LaconicError
from laconic.network.interfaces import resolve


def open_store(host: str, port: int = 0) -> TCPStore:
    """Return a new store that listens at `host` alone, at any free port unless one is given."""
    family, address = resolve(host)
    with socket.create_server((address, port), family=family, backlog=1024) as listening:
        port = listening.getsockname()[1]
        return TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach())


def open_store_if_free(host: str, port: int) -> TCPStore | None:
    """Return a new store, or None where another launcher on this machine hosts it."""
    try:
        return open_store(host, port)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise LaconicError(f"the run's store cannot listen at {host}:{port}: {error.strerror}.") from error
        return None
