"""Time compression on a device: seconds per tensor and per element of every chain the planner considers.

    python bench/codecs.py --device cuda --out src/laconic/planner/measured/codecs.csv
    python bench/codecs.py --device cpu --elements 2000000

The planner starts from this table where a GPU is named and none is there: times scale with the memory's rate, since
these loops wait for memory. One process, nothing beside it; messages return at once (an echo), so that only encoding
and decoding are timed, for as many workers as given.
"""

from __future__ import annotations

import argparse
import csv
import sys
from dataclasses import asdict
from pathlib import Path

import torch

from laconic.errors import LaconicError
from laconic.planner.candidates import chains
from laconic.real.profiling.codecs import Codecs
from laconic.real.profiling.echo_group import EchoGroup
from laconic.runtime.ledger import Ledger
from laconic.values.tensor_spec import TensorSpec

TENSORS = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=8, help="whose payloads are decoded")
    parser.add_argument("--elements", type=int, default=25_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    echo = EchoGroup(0, tuple(range(asked.workers)), Ledger())
    side = int((asked.elements / TENSORS) ** 0.5)
    specs = [TensorSpec(f"large{k}.weight", (side, side), torch.float32) for k in range(TENSORS)]
    rows = []
    for number, chain in enumerate(chain for chain in chains() if chain != "none"):
        print(f"{number + 1:3d} {chain}", file=sys.stderr, flush=True)
        try:
            codecs = Codecs(echo, echo, specs, [chain], torch.device(asked.device))
            for _ in range(asked.rounds):
                codecs.round()
            rows.append(asdict(codecs.result()[0]))
        except (LaconicError, RuntimeError, TypeError) as error:
            print(f"    not timed: {error}", file=sys.stderr, flush=True)
    out = asked.out.open("w", newline="") if asked.out else sys.stdout
    device = torch.cuda.get_device_name() if asked.device == "cuda" else "cpu"
    writer = csv.DictWriter(out, ["device", "workers", *rows[0]], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        numbers = {name: value if isinstance(value, str) else f"{value:.4g}" for name, value in row.items()}
        writer.writerow({"device": device, "workers": asked.workers, **numbers})


if __name__ == "__main__":
    main()
