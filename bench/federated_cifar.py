"""Federated rules on CIFAR-10: accuracy, bytes and time among 100 virtual clients, tuned alike, on three seeds.

    python bench/federated_cifar.py --processes 14 --minutes 9      # goes on where it was
    python bench/federated_cifar.py --show                          # the tables of the rows that there are

A tenth of the clients takes part in each of 300 rounds and goes once through its images in batches of 50; labels are
divided by Dirichlet draws of concentration 0.1 and 0.5, or two to a client. `bench/clients/methods.py` says what is
compared. Rates and each rule's own knob are chosen on a seed that is not reported, in a fifth of the rounds, by test
images that judge nothing else. All of it is `laconic.federated.simulate`, whose gradients a GPU replays as CUDA graphs.

A run is the unit that resumes: each appends a line to `--out`, and a run whose line is there is not made again. The
first seed of everything comes first, so that a table that was cut short is a whole one of fewer seeds.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from bench.clients.choosing import Size  # noqa: E402
from bench.clients.packing import Clients  # noqa: E402
from bench.clients.tables import tables  # noqa: E402
from bench.packed import Table, lines  # noqa: E402

ROWS = ROOT / "docs" / "measured" / "federated-cifar.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=1, help="runs side by side on the device")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no run that would end later")
    parser.add_argument("--out", type=Path, default=ROWS, help="the rows; default: those from which the page is made")
    parser.add_argument("--show", action="store_true", help="print the tables of the rows, and train nothing")
    parser.add_argument("--only", action="append", default=[], help="runs whose `population: sentence` has this text")
    parser.add_argument("--most", type=int, default=sys.maxsize, help="runs at most")
    parser.add_argument("--eager", action="store_true", help="do not record gradients as CUDA graphs")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--silos", type=int, default=10, help="clients where all take part")
    parser.add_argument("--images", type=int, default=50_000, help="images to train with, at most")
    given = parser.parse_args()
    if not given.show:
        from bench.tasks.cifar import decoded
        from examples.cifar import default_images

        decoded(default_images())  # once, before all processes read what it has written
        size = Size(given.clients, given.silos, given.rounds, given.images)
        Clients(given, size, Table(lines(given.out), given.out)).run()
    print("\n\n".join(tables(lines(given.out))))


if __name__ == "__main__":
    main()
