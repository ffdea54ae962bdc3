"""The state file of each network, written before its first kernel object is made and removed after the last.

The files live beside the namespaces' own names in /run, so a reboot ends both. A network has an owner while it is being
made, and a throwaway one for all its life: when the owner is dead, the next process that uses networks removes it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from laconic.files import replacing
from laconic.launch.net.kernel import ShapedNetworkError, exclusive
from laconic.launch.net.place import Namespace

FOLDER = Path("/run/laconic/net")
MOST_WORKERS = 250
HUB_ADDRESS = "10.77.0.254"
NETWORK_BITS = 24
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,30}")


@dataclass(frozen=True)
class Owner:
    """A process, distinguished from a later one with the same id by when it started (in ticks since boot)."""

    pid: int
    started: int

    @classmethod
    def me(cls) -> Owner:
        started = _started(os.getpid())
        assert started is not None
        return cls(os.getpid(), started)

    @property
    def lives(self) -> bool:
        return _started(self.pid) == self.started


@dataclass(frozen=True)
class NetworkState:
    """The state of one network, from which all names follow, so that a half-made network can be removed."""

    name: str
    token: str  # in the interfaces' names: the kernel frees those of deleted namespaces late
    workers: int
    delay_seconds: float  # one way, between two workers, or two sites where there are any
    bits_per_second: tuple[float | None, ...]  # of each worker's link; None: no limit
    cut: tuple[int, ...] = ()
    site_workers: int | None = None  # so many neighbours share an uplink; None: all are at one place
    uplink_bits_per_second: float | None = None
    owner: Owner | None = None  # None: it stays until it is removed by name

    def __post_init__(self) -> None:
        if _NAME.fullmatch(self.name) is None:
            raise ShapedNetworkError(
                f"{self.name!r} is no name for a network: use small letters, digits and dashes, at most 31 of them."
            )
        if not 1 <= self.workers <= MOST_WORKERS:
            raise ShapedNetworkError(
                f"a network of {self.workers} workers cannot be made: ask for 1 to {MOST_WORKERS}."
            )
        if not 0 <= self.delay_seconds <= 10:
            raise ShapedNetworkError(f"a delay of {self.delay_seconds:g} s makes no sense here: give 0 to 10 s.")
        for rate in (*self.bits_per_second, self.uplink_bits_per_second):
            check_rate(rate)
        if self.site_workers is not None and not 1 <= self.site_workers < self.workers:
            raise ShapedNetworkError(
                f"sites of {self.site_workers} are no parts of {self.workers} workers: give 1 to {self.workers - 1}."
            )

    @property
    def places(self) -> tuple[Namespace, ...]:
        return tuple(
            Namespace(f"laconic-{self.name}-{n}", f"lac{self.token}w{n}", f"10.77.0.{n + 1}")
            for n in range(self.workers)
        )

    @property
    def hub(self) -> Namespace:
        return Namespace(f"laconic-{self.name}-hub", f"lac{self.token}hub", HUB_ADDRESS)

    def port(self, worker: int) -> str:
        """The hub's end of a worker's cable."""
        return f"lac{self.token}p{worker}"

    @property
    def sites(self) -> range:
        """Numbers of the sites; none where all workers are at one place."""
        return range(0 if self.site_workers is None else -(-self.workers // self.site_workers))

    def bridge(self, worker: int) -> str:
        """The bridge a worker's port is attached to: its site's, or the hub's where there are no sites."""
        return self.hub.interface if self.site_workers is None else self.site_bridge(worker // self.site_workers)

    def site_bridge(self, site: int) -> str:
        return f"lac{self.token}b{site}"

    def uplink(self, site: int) -> tuple[str, str]:
        """The site's and the hub's end of the cable between their bridges, both in the hub's namespace."""
        return f"lac{self.token}s{site}", f"lac{self.token}u{site}"

    @property
    def is_abandoned(self) -> bool:
        return self.owner is not None and not self.owner.lives

    def save(self) -> None:
        with replacing(_path(self.name)) as beside:
            beside.write_bytes(msgspec.json.encode(self) + b"\n")

    def forget(self) -> None:
        _path(self.name).unlink(missing_ok=True)


def load(name: str) -> NetworkState | None:
    """Return the network of this name, or None where there is none."""
    if not _NAME.fullmatch(name):
        return None
    path = _path(name)
    try:
        return msgspec.json.decode(path.read_bytes(), type=NetworkState)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ShapedNetworkError(
            f"{path} does not describe a network ({error!r}): remove it, and `ip netns delete` what is left."
        ) from error


def load_all() -> list[NetworkState]:
    """Return all networks in the order of their names."""
    loaded = (load(path.stem) for path in sorted(FOLDER.glob("*.json")))
    return [state for state in loaded if state is not None]


@contextmanager
def locked() -> Iterator[None]:
    """Hold the lock under which networks are changed, one process at a time."""
    FOLDER.mkdir(mode=0o755, parents=True, exist_ok=True)
    with exclusive(FOLDER / "lock"):
        for stale in FOLDER.glob("*.tmp"):  # of a writer killed while it held the lock
            stale.unlink()
        yield


def check_rate(bits_per_second: float | None) -> None:
    """Raise a ShapedNetworkError for a rate that a token bucket cannot keep."""
    if bits_per_second is not None and not 1e5 <= bits_per_second <= 1e11:
        raise ShapedNetworkError(f"a rate of {bits_per_second:g} bit/s cannot be kept: give 100kbit to 100Gbit.")


def _path(name: str) -> Path:
    return FOLDER / f"{name}.json"


def _started(pid: int) -> int | None:
    """Return when a process started; None where there is none or only a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])
