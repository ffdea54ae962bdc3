"""The byte ledger against the interface counter: every operation of the real engine, each worker in its own namespace.

    python bench/ledger.py            # needs root; about a minute

A backend's collective counts as what was handed over times the factor of the algorithm it uses. Whether the factors are
right is not a matter of documentation: the kernel counts what a namespace's interface really sent. TCP and Ethernet
headers are not in the ledger; with segments of 64 KiB they are well below 1 %.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from laconic.launch.net import interface_bytes, shaped
from workers import STORE_PORT, environment

WORKERS = 4
ELEMENTS = 4_000_000
REPEATS = 3


def work() -> None:
    import torch

    from laconic.real.connect import connect

    worker = connect()
    group, rank, size = worker.world, worker.rank, worker.size
    x = torch.ones(ELEMENTS)
    lengths = [ELEMENTS // 20 * (k + 1) for k in range(size)]

    def ring() -> Any:
        handles = [group.send(x, (rank + 1) % size), group.receive(torch.empty_like(x), (rank - 1) % size)]
        return [handle.wait() for handle in handles]

    operations: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: group.all_reduce(x.clone()).wait(),
        "all_gather": lambda: group.all_gather(x).wait(),
        "all_to_all": lambda: group.all_to_all(x).wait(),
        "all_to_all, unequal": lambda: group.all_to_all(
            x[: sum(lengths)].clone(), lengths, [lengths[rank]] * size
        ).wait(),
        "reduce_scatter": lambda: group.reduce_scatter(x).wait(),
        "broadcast": lambda: group.broadcast(x).wait(),
        "send and receive": ring,
    }

    def wire_bytes() -> int:
        return interface_bytes(os.environ["GLOO_SOCKET_IFNAME"])[0]

    rows = {}
    for name, operation in operations.items():
        operation()
        group.barrier().wait()
        before = worker.ledger.sent_bytes(), wire_bytes()
        for _ in range(REPEATS):
            operation()
        group.barrier().wait()  # a send may return before its last bytes have left
        mine = torch.tensor([worker.ledger.sent_bytes() - before[0], float(wire_bytes() - before[1])]).double()
        rows[name] = group.all_gather(mine).wait().tolist()
    if rank == 0:
        print(json.dumps(rows), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Ledger against interface counter.")
    parser.add_argument("--as-worker", action="store_true", help=argparse.SUPPRESS)
    if parser.parse_args().as_worker:
        work()
        return
    with shaped(WORKERS, bits_per_second=None) as net:
        workers = []
        store = (net.places[0].address, STORE_PORT)
        for rank, place in enumerate(net.places):
            command = place.command([sys.executable, __file__, "--as-worker"])
            its = environment(rank, WORKERS, store, place)
            workers.append(subprocess.Popen(command, env=its, stdout=subprocess.PIPE))
        outputs = [worker.communicate(timeout=180)[0] for worker in workers]
    rows: dict[str, list[list[float]]] = json.loads(outputs[0].splitlines()[-1])
    table = Table("operation", "sent by ranks 0–3, MB (ledger)", "wire / ledger, all ranks", "worst rank")
    for name, ranks in rows.items():
        ledger, wire = (sum(row[k] for row in ranks) for k in (0, 1))
        worst = max((w / counted if counted else w / ledger + 1 for counted, w in ranks), key=lambda q: abs(q - 1))
        counted = ", ".join(f"{row[0] / REPEATS / 1e6:.1f}" for row in ranks)
        table.add_row(name, counted, f"{wire / ledger:.4f}", f"{worst:.4f}")
    Console().print(table)


if __name__ == "__main__":
    main()
