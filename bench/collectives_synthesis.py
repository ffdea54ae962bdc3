"""How long greedy schedules take to make on one core, and how near their bounds they are.

    python bench/collectives_synthesis.py [--small]

The bound is twice the time of an all-gather that the narrowest cut allows.
"""

from __future__ import annotations

import argparse
import itertools
import time

from laconic.collective.greedy import greedy_all_reduce
from laconic.collective.packing.capacities import integer_rates
from laconic.collective.packing.rate import best_rate
from laconic.collective.price import price
from laconic.network.datacenter_graphs import torus
from laconic.network.graph import Graph

BYTES = 1e9


def hosts() -> Graph:
    """Return 16 hosts of eight ranks, joined fast inside and ten times slower to the next host."""
    links = [(h * 8 + a, h * 8 + b, 100e9) for h in range(16) for a, b in itertools.combinations(range(8), 2)]
    return Graph.of(128, links + [(r, (r + 8) % 128, 10e9) for r in range(128)])


def least_seconds(graph: Graph) -> float:
    """Return the bound of an all-reduce: of a torus what a rank's own links allow, which is its narrowest cut."""
    if graph.size > 256:
        rate = float(graph.bits_per_second[graph.ends[:, 1] == 0].sum()) / (graph.size - 1)
    else:
        capacity, unit = integer_rates(graph)
        rate = float(best_rate(capacity, graph.size)[0]) * unit
    return 2 * BYTES / graph.size * 8 / rate


def main() -> None:
    """Print a table of graphs, seconds and ratios to bounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="leave out the torus of 1,024 ranks")
    graphs = {
        "16 hosts x 8, links 10:1": hosts(),
        "the same, four links failed": hosts().without([(0, 8), (1, 9), (0, 1), (20, 28)]),
        "torus 4 x 4 x 8, rates 4:2:1": torus((4, 4, 8), (200e9, 100e9, 50e9)),
    }
    if not parser.parse_args().small:
        graphs["torus 32 x 32"] = torus((32, 32), 100e9)
    print(f"{'graph':30} {'ranks':>6} {'seconds':>8} {'CPU s':>8} {'time over bound':>16}")
    for name, graph in graphs.items():
        wall, cpu = time.perf_counter(), time.process_time()
        program = greedy_all_reduce(graph)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        ratio = price(program, BYTES, graph).seconds / least_seconds(graph)
        print(f"{name:30} {graph.size:6} {wall:8.1f} {cpu:8.1f} {ratio:16.3f}", flush=True)


if __name__ == "__main__":
    main()
