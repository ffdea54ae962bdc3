"""What is asked of the kernel: `ip` and `tc` commands, and to be in another namespace for a moment."""

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

_held: int | None = None


class ShapedNetworkError(LaconicError, RuntimeError):
    """A shaped network that cannot be made, found or changed as asked."""


def require_means() -> None:
    """Refuse, in one sentence, where shaped networks cannot be made at all."""
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
    """One process at a time. The commands it runs share the lock: what a killed process began, ends before the next."""
    global _held
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        _held = descriptor
        yield
    finally:
        _held = None
        os.close(descriptor)


def ip(*arguments: str) -> None:
    """One `ip` command."""
    _run(["ip", *arguments])


def batch(program: str, namespace: str, lines: Sequence[str]) -> None:
    """Several commands of `ip` or `tc` in one process, in a namespace."""
    _run([program, "-n", namespace, "-batch", "-"], "".join(f"{line}\n" for line in lines))


def attempt(*arguments: str) -> None:
    """One `ip` command whose object may be gone already."""
    subprocess.run(["ip", *arguments], check=False, capture_output=True, pass_fds=_shared())


@contextmanager
def entered(namespace: str) -> Iterator[None]:
    """This thread, and those it starts inside, in the namespace; sockets made inside stay there."""
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
    done = subprocess.run(command, input=text, check=False, capture_output=True, text=True, pass_fds=_shared())
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise ShapedNetworkError(
            f"`{' '.join(command)}` failed: {said}. If this machine does not allow it: {_WAY_OUT[3:]}."
        )


def _shared() -> tuple[int, ...]:
    return () if _held is None else (_held,)
