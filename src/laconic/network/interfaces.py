"""Choice of the network interface: the one whose address the kernel itself would use to reach the other hosts.

gloo picks the interface the host's name resolves to, which is the loopback on many distributions and nothing at all
inside a network namespace. Asking the kernel's routing table needs no packet, no name service and no library.
"""

from __future__ import annotations

import array
import fcntl
import ipaddress
import os
import socket
import struct
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path

from laconic.errors import LaconicError

_SIOCGIFCONF, _SIOCGIFFLAGS = 0x8912, 0x8913
_IFREQ_BYTES = 40 if struct.calcsize("P") == 8 else 32  # struct ifreq: a name of 16 bytes, and a union
_IFF_UP = 0x1
_IPV6_TABLE = Path("/proc/net/if_inet6")


@dataclass(frozen=True)
class Interface:
    """A network interface of this machine; `address` is its first IPv4 address, if it has one."""

    name: str
    address: str | None
    is_up: bool


def interfaces() -> list[Interface]:
    """Return all interfaces of this machine (or network namespace), in the kernel's order."""
    addresses = dict(reversed(_ipv4()))  # the first of each interface stays
    return [Interface(name, addresses.get(name), _is_up(name)) for _, name in socket.if_nameindex()]


def address_towards(host: str) -> str:
    """Return this machine's own address on the route to `host`, by the routing table (no packet is sent)."""
    family, target = resolve(host)
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((target, 9))  # any port: connecting a datagram socket only looks up the route
        except OSError as error:
            raise LaconicError(
                f"no network interface leads to {host!r} ({target}): {error.strerror or error}. Check the address, and "
                f"`ip route get {target}`."
            ) from error
        return str(probe.getsockname()[0])


def interface_towards(host: str) -> str:
    """Return the name of the interface through which this machine reaches `host`: the loopback if `host` is itself."""
    own = address_towards(host)
    for name, address in (*_ipv4(), *_ipv6()):
        if address == own:
            return name
    names = ", ".join(name for _, name in socket.if_nameindex())
    raise LaconicError(
        f"this machine would reach {host!r} from {own}, but no interface has that address. Set GLOO_SOCKET_IFNAME to "
        f"one of: {names}."
    )


def is_own(host: str) -> bool:
    """Return whether `host` is this machine: only addresses of one's own can be bound to."""
    family, target = resolve(host)
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((target, 0))
        except OSError:
            return False
    return True


def resolves_to_loopback(host: str) -> bool:
    """Return whether `host` resolves to the loopback here, which no other machine can reach."""
    return ipaddress.ip_address(resolve(host)[1]).is_loopback


def host_towards(host: str) -> str:
    """Return this machine's name for people, with its address where other machines are involved."""
    name, address = socket.gethostname(), address_towards(host)
    return name if ipaddress.ip_address(address).is_loopback else f"{name} ({address})"


def prepare_environment(master_host: str, environment: MutableMapping[str, str] = os.environ) -> None:
    """Point gloo and NCCL at the interface that leads to the run's store, unless the user has chosen one."""
    wanted = [v for v in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if v not in environment]
    if wanted:
        name = interface_towards(master_host)
        environment.update(dict.fromkeys(wanted, name))


def resolve(host: str) -> tuple[socket.AddressFamily, str]:
    """Return the family and the address of a host, IPv4 where it has both."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)
    except socket.gaierror as error:
        raise LaconicError(
            f"the host name {host!r} is not known here: {error.strerror}. Give an address, or add it to /etc/hosts."
        ) from error
    family, *_, target = min(found, key=lambda entry: entry[0] != socket.AF_INET)  # IPv4 where both exist
    return family, str(target[0])


def _ipv4() -> list[tuple[str, str]]:
    """Return (interface, address) for every IPv4 address, of which an interface may have several."""
    buffer = array.array("B", bytes(1024 * _IFREQ_BYTES))
    request = struct.pack("iP", len(buffer), buffer.buffer_info()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        used = struct.unpack("iP", fcntl.ioctl(probe.fileno(), _SIOCGIFCONF, request))[0]
    entries = [buffer[start : start + _IFREQ_BYTES].tobytes() for start in range(0, used, _IFREQ_BYTES)]
    # A name may carry a label, as in eth0:1.
    return [(e[:16].split(b"\0")[0].decode().split(":")[0], socket.inet_ntoa(e[20:24])) for e in entries]


def _ipv6() -> list[tuple[str, str]]:
    if not _IPV6_TABLE.exists():
        return []
    rows = (line.split() for line in _IPV6_TABLE.read_text().splitlines())
    return [(row[-1], str(ipaddress.IPv6Address(int(row[0], 16)))) for row in rows]


def _is_up(name: str) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFFLAGS, struct.pack("256s", name.encode()[:15]))
        except OSError:  # it went away meanwhile
            return False
    return bool(struct.unpack("H", answer[16:18])[0] & _IFF_UP)
