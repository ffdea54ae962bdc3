"""Checks of what this machine can do: each names a part, what it enables, and how to get it.

A check tries the part itself where that is cheap and leaves nothing behind (a network namespace is made and deleted),
because a program that is installed may still not be permitted.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from laconic._version import __version__
from laconic.errors import LaconicError
from laconic.launch.run_folder import installed
from laconic.network.interfaces import address_towards, interface_towards, interfaces

_ANYWHERE = "198.51.100.1"  # reserved for documentation: reached by the default route, if there is one
_SECONDS = 20


@dataclass(frozen=True)
class Finding:
    """The result of one check: the part, whether it is there, and its remedy; nothing trains without `needed` ones."""

    name: str
    ok: bool
    found: str
    enables: str
    remedy: str
    needed: bool = False


def examine() -> Iterator[Finding]:
    """Run all checks, and yield each finding as it is made."""
    for check in (_software, _machine, _network_tools, _compilers, _libraries, _gpus, _interfaces, _data):
        yield from check()


def _software() -> Iterator[Finding]:
    yield Finding("laconic", True, __version__, "this library", "", needed=True)
    yield Finding(
        "python", sys.version_info >= (3, 11), platform.python_version(), "everything", "install Python 3.11 or later",
        needed=True,
    )  # fmt: skip
    version = installed("torch")
    yield _part("torch", version, "everything", "pip install torch", needed=True)
    if version is not None:
        import torch.distributed as dist

        yield Finding(
            "gloo", dist.is_available() and dist.is_gloo_available(), "in torch", "workers on CPUs",
            "install a torch build with distributed support", needed=True,
        )  # fmt: skip


def _machine() -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    advice = "more workers than cores share them: measured times then say little"
    yield Finding("cores", True, str(cores), f"{cores} workers at full speed", advice)
    page = os.sysconf("SC_PAGE_SIZE")
    total, free = (page * os.sysconf(name) / 2**30 for name in ("SC_PHYS_PAGES", "SC_AVPHYS_PAGES"))
    yield Finding("memory", True, f"{total:.1f} GiB, {free:.1f} free", "models and batches of that size", "")


def _network_tools() -> Iterator[Finding]:
    shaped = "networks of a chosen speed on this machine"
    root = os.geteuid() == 0
    yield Finding("root", root, f"user {os.geteuid()}", shaped, "run as root, or use the virtual engine")
    for program in ("ip", "tc"):
        yield _part(program, shutil.which(program), shaped, "install iproute2")
    if root and shutil.which("ip"):
        yield from _namespace(shaped)


def _namespace(shaped: str) -> Iterator[Finding]:
    """Make a namespace, limit its loopback, and remove it again."""
    name = f"laconic-doctor-{os.getpid()}"
    trouble = _try("ip", "netns", "add", name)
    yield Finding(
        "network namespaces",
        trouble is None,
        trouble or "allowed",
        shaped,
        "needs CAP_SYS_ADMIN (not in most containers)",
    )
    if trouble is None:
        try:
            limit = ("qdisc", "add", "dev", "lo", "root", "tbf", "rate", "100mbit", "burst", "32kb", "latency", "50ms")
            trouble = _try("ip", "netns", "exec", name, "tc", *limit)
        finally:
            _try("ip", "netns", "delete", name)
        yield Finding("rate limits (tc tbf)", trouble is None, trouble or "work", shaped, "load the module sch_tbf")


def _compilers() -> Iterator[Finding]:
    yield _part("cc", _version_line("cc"), "Triton and extensions in C", "install gcc or clang")
    yield _part("g++", _version_line("g++"), "`torch.compile` on CPUs", "install g++")
    yield _part("nvcc", _version_line("nvcc"), "extensions in CUDA; Triton does without", "install the CUDA toolkit")


def _libraries() -> Iterator[Finding]:
    yield _part("numba", installed("numba"), "compiled loops on CPUs", "pip install numba")
    yield _part("triton", installed("triton"), "compiled loops on GPUs", "comes with torch for CUDA")
    yield _part("pyzmq", installed("pyzmq"), "parameter servers, federated servers", "pip install pyzmq")


def _gpus() -> Iterator[Finding]:
    if installed("torch") is None:
        return
    import torch
    import torch.distributed as dist

    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    found = ", ".join(sorted(f"{names.count(name)} x {name}" for name in set(names)))
    yield _part("GPUs", found or None, "workers on GPUs", "a CUDA device and a torch build for it")
    nccl_version: Callable[[], tuple[int, ...]] = torch.cuda.nccl.version
    nccl = ".".join(map(str, nccl_version())) if names and dist.is_nccl_available() else None
    yield _part("NCCL", nccl, "collectives between GPUs", "a torch build for CUDA")


def _interfaces() -> Iterator[Finding]:
    for interface in interfaces():
        if interface.address is not None:
            state = f"{interface.address}, {'up' if interface.is_up else 'down'}"
            yield Finding(f"interface {interface.name}", interface.is_up, state, "", f"ip link set {interface.name} up")
    yield Finding("chosen on one machine", True, interface_towards("127.0.0.1"), "all workers here", "")
    try:
        chosen = f"{interface_towards(_ANYWHERE)} ({address_towards(_ANYWHERE)})"
    except LaconicError:
        chosen = None
    yield _part(
        "chosen towards others", chosen, "--nodes; the rendezvous' address decides", "connect this machine to a network"
    )


def _data() -> Iterator[Finding]:
    here = Path.cwd()
    folders = [folder / "shared" / "data" for folder in (here, *here.parents)]
    found = next((str(folder) for folder in folders if folder.is_dir()), None)
    yield _part("shared data", found, "checks against published results", "keep a `shared/data` folder beside this one")


def _part(name: str, found: str | None, enables: str, remedy: str, needed: bool = False) -> Finding:
    return Finding(name, found is not None, found or "", enables, remedy, needed)


def _version_line(program: str) -> str | None:
    """Return the line in which a program prints its version: nvcc's has 'release' in it, compilers' is the first."""
    if shutil.which(program) is None:
        return None
    done = _run([program, "--version"])
    lines = done.stdout.splitlines() if done is not None and done.returncode == 0 else []
    return next((line for line in lines if "release" in line), lines[0] if lines else None)


def _try(*command: str) -> str | None:
    """Run a command; return None when it worked, otherwise its error message."""
    done = _run(list(command))
    if done is None:
        return f"`{command[0]}` did not answer"
    return None if done.returncode == 0 else done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "refused"


def _run(command: list[str]) -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
