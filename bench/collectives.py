"""Programs between real processes on shaped networks: the time measured beside the time priced.

    python bench/collectives.py                       # three networks, 8 MB, all programs; needs root, `ip` and `tc`
    python bench/collectives.py --networks hosts --programs ring hierarchical leader --repeats 9

Four workers in network namespaces sum vectors. Programs take turns in one run of the processes; the median of the
repeats is shown, of the slowest rank each time. Beside them: gloo's own all-reduce, and the composition that one would
write by hand with torch's calls (reduce-scatter inside a host as an all-to-all, all-reduce between hosts, all-gather
inside). Prices come from the rates of the links alone, less what TCP and IP add to each packet. `choice` is the
program with the lowest price.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

from workers import STORE_PORT, end, report, reports_of, start  # noqa: E402

WORKERS, INSIDE = 4, 2
RATE, FAST = 1e8, 1e9
PAYLOAD_SHARE = 1448 / 1514
"""The share of a full packet that is payload, headers of Ethernet, IP and TCP (with time stamps) taken off."""

NETWORKS = {
    "equal": "4 workers at 100 Mb/s",
    "hosts": "2 hosts of 2 at 1 Gb/s, 100 Mb/s between them",
    "scattered": "the same hosts, ranks 0 and 2 on the first",
    "slow": "4 workers at 100 Mb/s, one of them at 25 Mb/s",
}


@contextmanager
def network_of(name: str) -> Iterator[tuple[list[Any], Any]]:
    """Provide the places of the ranks on a shaped network, and the same network as the planner describes it."""
    from laconic.launch.net import shaped
    from laconic.network.network_tree import Level, Network

    if name in ("hosts", "scattered"):
        with shaped(WORKERS, FAST, site_workers=INSIDE, uplink_bits_per_second=RATE) as net:
            levels = (Level(1, FAST * PAYLOAD_SHARE), Level(INSIDE, RATE * PAYLOAD_SHARE))
            order = [0, 2, 1, 3] if name == "scattered" else [0, 1, 2, 3]
            yield [net.places[k] for k in order], Placed(Network(WORKERS, levels), order)
        return
    with shaped(WORKERS, RATE) as net:
        rates = [RATE * PAYLOAD_SHARE] * WORKERS
        if name == "slow":
            net.limit(RATE / 4, 2)
            rates[2] /= 4
        yield list(net.places), Network.flat(WORKERS, rates)


class Placed:
    """A network on which rank k is at place `order[k]`."""

    def __init__(self, network: Any, order: list[int]) -> None:
        self._network, self._order = network, order
        self.size, self.capacities = network.size, network.capacities

    def routes(self, sources: Any, destinations: Any) -> Any:
        """Return the ways between the places of ranks."""
        import numpy as np

        order = np.asarray(self._order)
        return self._network.routes(order[np.asarray(sources)], order[np.asarray(destinations)])


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

    from laconic.real.connect import connect
    from laconic.runtime.in_flight import InFlight, complete

    worker = connect()
    group: Any = worker.world
    hosts = [dist.new_group(pair) for pair in ([0, 1], [2, 3])]
    across = [dist.new_group(pair) for pair in ([0, 2], [1, 3])]
    x = torch.ones(todo["nbytes"] // 4)

    def composed() -> None:
        mine, other = hosts[worker.rank // INSIDE], across[worker.rank % INSIDE]
        received = torch.empty_like(x)
        dist.all_to_all_single(received, x, group=mine)
        shard = received.view(INSIDE, -1).sum(0)
        dist.all_reduce(shard, group=other)
        dist.all_gather_into_tensor(x, shard, group=mine)

    def run(program: Any) -> None:
        exchange: Any = InFlight(group.run(program, x))
        complete([exchange])

    ways: dict[str, Any] = {"gloo": lambda: dist.all_reduce(x), "composed": composed}
    ways |= {name: (lambda p=p: run(p)) for name, p in programs(todo["programs"]).items()}
    for turn in range(todo["repeats"] + 1):
        for name, way in ways.items():
            dist.barrier()
            begin = time.perf_counter()
            way()
            spent = torch.tensor([time.perf_counter() - begin])
            dist.all_reduce(spent, op=dist.ReduceOp.MAX)
            if turn:
                report(name=name, seconds=float(spent))
    report(end=True)
    dist.barrier()


# ------------------------------------------------------------------------------------------------ measurement


def measure(network: str, args: argparse.Namespace, console: Console) -> Table:
    from laconic.collective.price import price

    todo = {"nbytes": args.nbytes, "repeats": args.repeats, "programs": args.programs}
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder, network_of(network) as (places, links):
        store, started = (places[0].address, STORE_PORT), []
        try:
            for rank, home in enumerate(places):
                started.append(start(__file__, todo, rank, WORKERS, store, home, Path(folder)))
            for facts in reports_of(started, Path(folder)):
                if facts.get("end"):
                    break
                seconds.setdefault(facts["name"], []).append(facts["seconds"])
        finally:
            end(started)
        priced = {n: price(p, args.nbytes, links).seconds for n, p in programs(args.programs).items()}
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
        f"of the best measured, gloo {medians['gloo'] / medians[choice]:.2f} and the composition "
        f"{medians['composed'] / medians[choice]:.2f} times as long as the choice"
    )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--programs", nargs="+", help="these alone; default: all")
    parser.add_argument("--nbytes", type=int, default=8_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--as-worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.as_worker is not None:
        os.environ.setdefault("LOCAL_WORLD_SIZE", str(INSIDE))
        work(json.loads(args.as_worker))
        return
    console = Console(width=None if sys.stdout.isatty() else 120)
    for network in args.networks:
        console.print(measure(network, args, console))


if __name__ == "__main__":
    main()
