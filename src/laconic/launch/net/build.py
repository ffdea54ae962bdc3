"""Create a shaped network's kernel objects, limit the rate of its links, and remove all of it again."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from laconic.launch.net import cables
from laconic.launch.net.kernel import batch, entered, ip, try_ip
from laconic.launch.net.state import NETWORK_BITS, NetworkState

_QUEUE_SECONDS = 0.05
_BURST_SECONDS = 0.001
_LARGEST_BYTES = 72 * 1024  # a segment of the kernel's offloading, and the headers it will have on the wire


def build(state: NetworkState) -> None:
    """Create the namespaces, cables, bridges, addresses and token buckets that the state describes."""
    hub, places = state.hub, state.places
    for place in (hub, *places):
        ip("netns", "add", place.namespace)
        _configure(place.namespace, state)
    cables.create_cables(state)
    bridges = [hub.interface, *map(state.site_bridge, state.sites)]
    plugs = [(state.port(n), state.bridge(n)) for n in range(state.workers)]
    for site in state.sites:
        plugs += zip(state.uplink(site), (state.site_bridge(site), hub.interface), strict=True)
    batch(
        "ip",
        hub.namespace,
        [
            *(f"link add {bridge} type bridge mcast_snooping 0" for bridge in bridges),
            f"address add {hub.address}/{NETWORK_BITS} dev {hub.interface}",
            *(f"link set {port} master {bridge} up" for port, bridge in plugs),
            *(f"link set {bridge} up" for bridge in bridges),
            "link set lo up",
        ],
    )
    for place in places:
        address = f"address add {place.address}/{NETWORK_BITS} dev {place.interface}"
        batch("ip", place.namespace, [address, f"link set {place.interface} up", "link set lo up"])
    for worker in range(state.workers):
        limit(state, worker)
    for site in state.sites:
        _limit(state, state.uplink_bits_per_second, [(hub.namespace, end) for end in state.uplink(site)])


def limit(state: NetworkState, worker: int) -> None:
    """Put a token bucket on both directions of a worker's link: on what it sends and on what the bridge sends to it."""
    place = state.places[worker]
    ends = [(place.namespace, place.interface), (state.hub.namespace, state.port(worker))]
    _limit(state, state.bits_per_second[worker], ends)


def _limit(state: NetworkState, rate: float | None, ends: list[tuple[str, str]]) -> None:
    for namespace, device in ends:
        if rate is None:
            try_ip("netns", "exec", namespace, "tc", "qdisc", "delete", "dev", device, "root")  # there may be none
        else:
            batch("tc", namespace, [f"qdisc replace dev {device} root {_bucket(rate, state.delay_seconds)}"])


def switch(state: NetworkState, worker: int, is_up: bool) -> None:
    """Set the hub's end of a worker's cable up or down; while it is down, packets of both directions are lost."""
    ip("-n", state.hub.namespace, "link", "set", state.port(worker), "up" if is_up else "down")


def demolish(state: NetworkState) -> None:
    """Remove whatever exists of the network, which may be only half made, and its state file last."""
    cables.stop_delay_line(state.token)
    for worker in range(state.workers):  # at once, even where a process still lives in the namespace
        try_ip("-n", state.hub.namespace, "link", "delete", state.port(worker))
    for place in (*state.places, state.hub):
        try_ip("netns", "delete", place.namespace)
    state.forget()


def _bucket(bits_per_second: float, delay_seconds: float) -> str:
    """Return `tc`'s arguments for a token bucket.

    A bucket smaller than an offloaded segment would cut the segment up, which costs CPU time. The queue holds what a
    round trip can hold.
    """
    burst_bytes = max(_LARGEST_BYTES, int(bits_per_second / 8 * _BURST_SECONDS))
    queue_seconds = _QUEUE_SECONDS + 2 * delay_seconds
    return f"tbf rate {bits_per_second:.0f}bit burst {burst_bytes}b latency {1e3 * queue_seconds:.3f}ms"


def _configure(namespace: str, state: NetworkState) -> None:
    """Disable IPv6, whose own packets would be counted, and allow TCP windows that fill a fast link of long delay."""
    settings = {"ipv6/conf/all/disable_ipv6": "1", "ipv6/conf/default/disable_ipv6": "1"}
    if state.delay_seconds:
        settings |= {"ipv4/tcp_wmem": "4096 131072 67108864", "ipv4/tcp_rmem": "4096 131072 67108864"}
    with entered(namespace):
        for name, value in settings.items():
            with suppress(FileNotFoundError):  # a kernel without IPv6
                (Path("/proc/sys/net") / name).write_text(value)
