"""Programs between real processes on shaped networks: the time measured beside the time priced.

    python bench/collectives.py                       # all networks, 8 MB, all programs; needs root, `ip` and `tc`
    python bench/collectives.py --networks hosts --programs ring hierarchical leader --repeats 9
    python bench/collectives.py --curves curves.json  # bus bandwidth from 1 KB to 100 MB, as data for a page

Four workers in network namespaces sum vectors. Programs take turns in one run of the processes; the median of the
repeats is shown, of the slowest rank each time. Beside them: gloo's own all-reduce, and the composition that one would
write by hand with torch's calls (reduce-scatter inside a host as an all-to-all, all-reduce between hosts, all-gather
inside), and what `collective(auto)` takes, which knows nothing but what it has probed. Prices come from the rates of
the links alone, less what TCP and IP add to each packet. `choice` is the program with the lowest price. Bus bandwidth
is 2(N-1)/N of a vector's bits over its time: what each link of a perfect ring would carry.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

from workers import PAYLOAD_SHARE, STORE_PORT, end, report, reports_of, start  # noqa: E402

WORKERS, INSIDE = 4, 2
RATE, FAST = 1e8, 1e9

NETWORKS = {
    "equal": "4 workers at 100 Mb/s",
    "hosts": "2 hosts of 2 at 1 Gb/s, 100 Mb/s between them",
    "scattered": "the same hosts, ranks 0 and 2 on the first",
    "slow": "4 workers at 100 Mb/s, one of them at 25 Mb/s",
    "ring": "4 workers in a ring of 4 links of 100 Mb/s, without a switch",
}
CURVE_BYTES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000)


@contextmanager
def network_of(name: str) -> Iterator[tuple[list[Any], Any]]:
    """Provide the places of the ranks on a shaped network, and the same network as the planner describes it."""
    from laconic.launch.net import shaped
    from laconic.network.network_tree import Level, Network
    from laconic.network.placed import Placed

    if name in ("hosts", "scattered"):
        with shaped(WORKERS, FAST, site_workers=INSIDE, uplink_bits_per_second=RATE) as net:
            levels = (Level(1, FAST * PAYLOAD_SHARE), Level(INSIDE, RATE * PAYLOAD_SHARE))
            order = [0, 2, 1, 3] if name == "scattered" else [0, 1, 2, 3]
            yield [net.places[k] for k in order], Placed(Network(WORKERS, levels), tuple(order))
        return
    if name == "ring":
        with shaped(WORKERS, None) as net:
            yield list(net.places), joined_in_a_ring(net.places, RATE)
        return
    with shaped(WORKERS, RATE) as net:
        rates = [RATE * PAYLOAD_SHARE] * WORKERS
        if name == "slow":
            net.limit(RATE / 4, 2)
            rates[2] /= 4
        yield list(net.places), Network.flat(WORKERS, rates)


def joined_in_a_ring(places: Any, rate: float) -> Any:
    """Join neighbouring workers by links of this rate, over which all their packets go, and return that graph.

    Packets for others are forwarded by the workers between, on the ways that prices assume.
    """
    from laconic.launch.net.kernel import batch, entered, ip
    from laconic.network.graph import Graph

    count = len(places)
    for k, here in enumerate(places):
        there = places[(k + 1) % count]
        pair = ["name", f"next{k}", "netns", here.namespace, "type", "veth"]
        ip("link", "add", *pair, "peer", "name", f"prev{k}", "netns", there.namespace)
        for place, device, own in ((here, f"next{k}", 1), (there, f"prev{k}", 2)):
            address = f"address add 10.99.{k}.{own}/30 dev {device}"
            batch("ip", place.namespace, [address, f"link set {device} up"])
            batch(
                "tc",
                place.namespace,
                [f"qdisc replace dev {device} root tbf rate {rate:.0f}bit burst 73728b latency 50ms"],
            )
            with entered(place.namespace):
                for setting in ("ip_forward", "conf/all/rp_filter", f"conf/{device}/rp_filter"):
                    Path("/proc/sys/net/ipv4", setting).write_text("1" if setting == "ip_forward" else "0")
    graph = Graph.of(count, [(k, (k + 1) % count, rate * PAYLOAD_SHARE) for k in range(count)])
    for k, here in enumerate(places):
        ways = []
        for other in {*range(count)} - {k}:
            first = int(graph.ends[graph.routes([k], [other]).links[0, 0], 1])
            link, end, device = (k, 2, f"next{k}") if first == (k + 1) % count else (first, 1, f"prev{first}")
            ways.append(f"route add {places[other].address}/32 via 10.99.{link}.{end} dev {device} src {here.address}")
        batch("ip", here.namespace, ways)
    return graph


# ------------------------------------------------------------------------------------------------ programs


def programs(names: list[str] | None) -> dict[str, Any]:
    """Return the programs to try: every generator, those for hosts also with the hosts' ranks in other orders."""
    from laconic.collective.compose import relabel
    from laconic.collective.generators import generators, make_program
    from laconic.errors import ProgramError

    found: dict[str, Any] = {}
    for one in generators("all_reduce"):
        try:
            found[one.name] = make_program(one.name, WORKERS, INSIDE)
        except ProgramError:
            continue
        if "inside" in one.knobs:
            found[f"{one.name} 0213"] = relabel(found[one.name], [0, 2, 1, 3])
    found["ring 0213"] = relabel(found["ring"], [0, 2, 1, 3])
    return {name: program for name, program in found.items() if names is None or name in names}


# ------------------------------------------------------------------------------------------------ in a worker


def work(todo: dict[str, Any]) -> None:
    import torch
    import torch.distributed as dist

    from laconic.collective.adaptive import Adaptive
    from laconic.real.connect import connect
    from laconic.runtime.in_flight import InFlight, complete

    worker = connect()
    group: Any = worker.world
    hosts = [dist.new_group(pair) for pair in ([0, 1], [2, 3])]
    across = [dist.new_group(pair) for pair in ([0, 2], [1, 3])]
    auto = Adaptive.of(group, "auto")

    def composed(x: Any) -> None:
        mine, other = hosts[worker.rank // INSIDE], across[worker.rank % INSIDE]
        received = torch.empty_like(x)
        dist.all_to_all_single(received, x, group=mine)
        shard = received.view(INSIDE, -1).sum(0)
        dist.all_reduce(shard, group=other)
        dist.all_gather_into_tensor(x, shard, group=mine)

    def run(communication: Any) -> None:
        exchange: Any = InFlight(communication)
        complete([exchange])

    ways: dict[str, Any] = {"gloo": dist.all_reduce, "composed": composed, "auto": lambda x: run(auto.sum(x))}
    ways |= {name: (lambda x, p=p: run(group.run(p, x))) for name, p in programs(todo["programs"]).items()}
    for nbytes in todo["sizes"]:
        x = torch.zeros(nbytes // 4)
        for turn in range(todo["repeats"] + 1):
            for name, way in ways.items():
                dist.barrier()
                begin = time.perf_counter()
                way(x)
                spent = torch.tensor([time.perf_counter() - begin])
                dist.all_reduce(spent, op=dist.ReduceOp.MAX)
                if turn:
                    report(name=name, nbytes=nbytes, seconds=float(spent))
        report(taken=getattr(auto.choice(nbytes).program, "name", "gloo"), nbytes=nbytes)
    report(end=True)
    dist.barrier()


# ------------------------------------------------------------------------------------------------ measurement


@dataclass(frozen=True)
class Measurements:
    """Times by program and size, what auto took by size, and the network as prices see it."""

    seconds: dict[tuple[str, int], list[float]]
    taken: dict[int, str]
    links: Any


def measurements(network: str, sizes: Sequence[int], args: argparse.Namespace) -> Measurements:
    """Run all programs with vectors of these sizes on a network."""
    todo = {"sizes": list(sizes), "repeats": args.repeats, "programs": args.programs}
    seconds: dict[tuple[str, int], list[float]] = {}
    taken: dict[int, str] = {}
    with tempfile.TemporaryDirectory() as folder, network_of(network) as (places, links):
        store, started = (places[0].address, STORE_PORT), []
        try:
            for rank, home in enumerate(places):
                started.append(start(__file__, todo, rank, WORKERS, store, home, Path(folder)))
            for facts in reports_of(started, Path(folder)):
                if facts.get("end"):
                    break
                if "taken" in facts:
                    taken[facts["nbytes"]] = facts["taken"]
                else:
                    seconds.setdefault((facts["name"], facts["nbytes"]), []).append(facts["seconds"])
        finally:
            end(started)
        return Measurements(seconds, taken, links)


def curves(network: str, args: argparse.Namespace) -> dict[str, Any]:
    """Return the bus bandwidth of every program by size, as plain data."""
    found = measurements(network, args.sizes, args)
    bits = 2 * (WORKERS - 1) / WORKERS * 8
    rows: dict[str, list[dict[str, float]]] = {}
    for (name, nbytes), times in found.seconds.items():
        median = statistics.median(times)
        row = {"bytes": nbytes, "seconds": median, "bus_bits_per_second": bits * nbytes / median}
        rows.setdefault(name, []).append(row)
    taken = {str(nbytes): name for nbytes, name in found.taken.items()}
    return {"network": NETWORKS[network], "workers": WORKERS, "repeats": args.repeats, "auto": taken, "curves": rows}


def measure(network: str, args: argparse.Namespace) -> Table:
    """Return the table of one network: every program's time beside its price."""
    from laconic.collective.price import price

    found = measurements(network, [args.nbytes], args)
    seconds = {name: times for (name, _), times in found.seconds.items()}
    priced = {n: price(p, args.nbytes, found.links).seconds for n, p in programs(args.programs).items()}
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    choice = min(priced, key=lambda name: priced[name])
    best = min(priced, key=lambda name: medians[name])
    table = Table("program", "ms", "spread", "priced", "measured over priced")
    table.title = f"{NETWORKS[network]}, {args.nbytes / 1e6:g} MB"
    for name, median in sorted(medians.items(), key=lambda item: item[1]):
        times = seconds[name]
        ratio = f"{median / priced[name]:.2f}" if name in priced else ""
        known = f"{1e3 * priced[name]:.0f}" if name in priced else ""
        mark = " (choice)" if name == choice else ""
        spread = f"{1e3 * min(times):.0f}-{1e3 * max(times):.0f}"
        table.add_row(name + mark, f"{1e3 * median:.0f}", spread, known, ratio)
    within = sum(abs(medians[name] / seconds_priced - 1) <= 0.2 for name, seconds_priced in priced.items())
    table.caption = (
        f"{within} of {len(priced)} within 20 % of their price; the choice takes {medians[choice] / medians[best]:.2f} "
        f"of the best measured, auto (which took {found.taken[args.nbytes]}) "
        f"{medians['auto'] / medians[best]:.2f}; gloo {medians['gloo'] / medians[choice]:.2f} and the composition "
        f"{medians['composed'] / medians[choice]:.2f} times as long as the choice"
    )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--programs", nargs="+", help="these alone; default: all")
    parser.add_argument("--nbytes", type=int, default=8_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--curves", type=Path, metavar="FILE", help="write bus bandwidths by size to this JSON file")
    parser.add_argument("--sizes", nargs="+", type=int, default=CURVE_BYTES, help="bytes of a vector, for --curves")
    parser.add_argument("--as-worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.as_worker is not None:
        os.environ.setdefault("LOCAL_WORLD_SIZE", str(INSIDE))
        work(json.loads(args.as_worker))
        return
    console = Console(width=None if sys.stdout.isatty() else 120)
    if args.curves:
        args.curves.write_text(json.dumps([curves(network, args) for network in args.networks], indent=1) + "\n")
        return
    for network in args.networks:
        console.print(measure(network, args))


if __name__ == "__main__":
    main()
