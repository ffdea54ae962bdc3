"""Which network interface to talk through: the one whose address the kernel itself would use to reach the others.

gloo picks the interface the host's name resolves to, which is the loopback on many distributions and nothing at all
inside a network namespace. Asking the kernel's routing table needs no packet, no name service and no library.
"""

from __future__ import annotations

import fcntl
import ipaddress
import os
import socket
import struct
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path

from laconic.errors import LaconicError

_SIOCGIFFLAGS, _SIOCGIFADDR, _SIOCGIFNETMASK = 0x8913, 0x8915, 0x891B
_IFF_UP = 0x1
_IPV6_TABLE = Path("/proc/net/if_inet6")


@dataclass(frozen=True)
class Interface:
    """A network interface of this machine; `address` is its IPv4 address, if it has one."""

    name: str
    address: str | None
    is_up: bool


def interfaces() -> list[Interface]:
    """All interfaces of this machine (or network namespace), in the kernel's order."""
    return [Interface(name, _ipv4(name), _is_up(name)) for _, name in socket.if_nameindex()]


def address_towards(host: str) -> str:
    """This machine's own address on the way to `host`, as the routing table gives it (no packet is sent)."""
    family, target = _resolve(host)
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
    """The name of the interface through which this machine reaches `host`; the loopback where it is one's own."""
    address = ipaddress.ip_address(address_towards(host))
    names = [name for _, name in socket.if_nameindex()]
    for name in names:
        if str(address) in (_ipv4(name), *_ipv6(name)):
            return name
    for name in names:  # a second address of an interface: the ioctl only tells the first
        if isinstance(address, ipaddress.IPv4Address) and _same_network(name, address):
            return name
    raise LaconicError(
        f"this machine would reach {host!r} from {address}, but no interface has that address. Set GLOO_SOCKET_IFNAME "
        f"to one of: {', '.join(names)}."
    )


def is_own(host: str) -> bool:
    """Whether `host` is this machine: the kernel reaches one's own addresses from themselves."""
    target = ipaddress.ip_address(_resolve(host)[1])
    return target.is_loopback or str(target) == address_towards(host)


def resolves_to_loopback(host: str) -> bool:
    """Whether `host` means the loopback here, where no other machine can follow."""
    return ipaddress.ip_address(_resolve(host)[1]).is_loopback


def machine_towards(host: str) -> str:
    """What to call this machine in messages: its name, with its address where other machines are involved."""
    name, address = socket.gethostname(), address_towards(host)
    return name if ipaddress.ip_address(address).is_loopback else f"{name} ({address})"


def prepare_environment(master_host: str, environment: MutableMapping[str, str] = os.environ) -> None:
    """Point gloo and NCCL at the interface that leads to the run's store, unless the user has chosen one."""
    wanted = [v for v in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if v not in environment]
    if wanted:
        name = interface_towards(master_host)
        environment.update(dict.fromkeys(wanted, name))


def _resolve(host: str) -> tuple[socket.AddressFamily, str]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)
    except socket.gaierror as error:
        raise LaconicError(
            f"the host name {host!r} is not known here: {error.strerror}. Give an address, or add it to /etc/hosts."
        ) from error
    family, *_, target = min(found, key=lambda entry: entry[0] != socket.AF_INET)  # IPv4 where both exist
    return family, str(target[0])


def _ioctl(request: int, name: str) -> bytes | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            return fcntl.ioctl(probe.fileno(), request, struct.pack("256s", name.encode()[:15]))
        except OSError:  # no such address on this interface
            return None


def _ipv4(name: str, request: int = _SIOCGIFADDR) -> str | None:
    answer = _ioctl(request, name)
    return None if answer is None else socket.inet_ntoa(answer[20:24])


def _is_up(name: str) -> bool:
    answer = _ioctl(_SIOCGIFFLAGS, name)
    return answer is not None and bool(struct.unpack("H", answer[16:18])[0] & _IFF_UP)


def _ipv6(name: str) -> list[str]:
    if not _IPV6_TABLE.exists():
        return []
    rows = (line.split() for line in _IPV6_TABLE.read_text().splitlines())
    return [str(ipaddress.IPv6Address(int(row[0], 16))) for row in rows if row[-1] == name]


def _same_network(name: str, address: ipaddress.IPv4Address) -> bool:
    own, mask = _ipv4(name), _ipv4(name, _SIOCGIFNETMASK)
    return own is not None and address in ipaddress.ip_network(f"{own}/{mask}", strict=False)
