"""Requests to the kernel: `ip` and `tc` commands, and entering a network namespace.

The two programs are called in batches. A plain version on pyroute2 0.9, with a netlink socket per change, had 292 lines
instead of 295 and took three to six times as long to set up four workers; it has no rates above 34 Gbit/s.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from laconic.errors import LaconicError

NAMESPACES = Path("/run/netns")  # where `ip netns` keeps their names
_CLONE_NEWNET = 0x40000000
_WAY_OUT = (
    "or use virtual workers, which need neither root nor tools: `laconic run --engine virtual --network 100Mbit …`"
)

_lock_descriptor: int | None = None


class ShapedNetworkError(LaconicError, RuntimeError):
    """A shaped network cannot be made, found or changed as asked; the message says why and what to do instead."""


def require_means() -> None:
    """Raise a ShapedNetworkError where no shaped network can be made: not Linux, not root, or without iproute2."""
    if sys.platform != "linux":
        raise ShapedNetworkError(
            f"a shaped network needs Linux, this is {sys.platform}: go to a Linux machine, {_WAY_OUT}."
        )
    if os.geteuid() != 0:
        raise ShapedNetworkError(f"a shaped network needs root, this is user {os.geteuid()}: become root, {_WAY_OUT}.")
    missing = " and ".join(f"`{program}`" for program in ("ip", "tc") if shutil.which(program) is None)
    if missing:
        raise ShapedNetworkError(f"a shaped network needs {missing}, not found here: install iproute2, {_WAY_OUT}.")


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold a lock that one process at a time can have.

    The commands run inside inherit the lock, so that a command that outlives its killed parent ends before the next
    process gets the lock.
    """
    global _lock_descriptor
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        _lock_descriptor = descriptor
        yield
    finally:
        _lock_descriptor = None
        os.close(descriptor)


def ip(*arguments: str) -> None:
    """Run one `ip` command, and raise a ShapedNetworkError where it fails."""
    _run(["ip", *arguments])


def batch(program: str, namespace: str, lines: Sequence[str]) -> None:
    """Run several commands of `ip` or `tc` in a namespace, in one process."""
    _run([program, "-n", namespace, "-batch", "-"], "".join(f"{line}\n" for line in lines))


def try_ip(*arguments: str) -> None:
    """Run one `ip` command and ignore its failure, since its object may be gone already."""
    subprocess.run(["ip", *arguments], check=False, capture_output=True, pass_fds=_inherited())


@contextmanager
def entered(namespace: str) -> Iterator[None]:
    """Move this thread, and those it starts inside, into the namespace; sockets made inside stay there."""
    try:
        inside = os.open(NAMESPACES / namespace, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise ShapedNetworkError(
            f"the network namespace {namespace!r} cannot be entered: {error.strerror}. Look at `laconic net status`."
        ) from error
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _set_namespace(inside)
        yield
    finally:
        _set_namespace(home)
        os.close(inside)
        os.close(home)


def _set_namespace(descriptor: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.setns(descriptor, _CLONE_NEWNET):
        code = ctypes.get_errno()
        raise ShapedNetworkError(f"this process may not change its network namespace: {os.strerror(code)}; {_WAY_OUT}.")


def _run(command: list[str], text: str | None = None) -> None:
    done = subprocess.run(command, input=text, check=False, capture_output=True, text=True, pass_fds=_inherited())
    if done.returncode:
        complaint = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise ShapedNetworkError(
            f"`{' '.join(command)}` failed: {complaint}. If this machine does not allow it: {_WAY_OUT[3:]}."
        )


def _inherited() -> tuple[int, ...]:
    return () if _lock_descriptor is None else (_lock_descriptor,)
