"""Time compression on a device: seconds per bucket, per tensor and per element of the chains the planner considers.

    python bench/codecs.py --device cuda --out src/laconic/planner/measured/codecs.csv
    python bench/codecs.py --device cpu

The planner starts from this table where a GPU is named and none is there: times per element scale with the memory's
rate, since these loops wait for memory. One process, nothing beside it. What is timed is what a training run gets:
buckets of the default schedule, exchanged as a whole where the compressor can and tensor by tensor where it cannot, on
a GPU as CUDA graphs where they can be recorded, with the Python around it. Messages return at once (an echo, whose
copies are not counted), as many payloads as there are workers. How each chain was exchanged is written to stderr.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from dataclasses import asdict
from pathlib import Path

import torch

from laconic.errors import LaconicError
from laconic.planner.candidates import chains
from laconic.real.profiling.codecs import Codecs
from laconic.real.profiling.echo_group import EchoGroup
from laconic.runtime.ledger import Ledger
from laconic.strategy import Sentence, Strategy
from laconic.values.tensor_spec import TensorSpec

TENSORS = 16
ELEMENTS = {"cuda": 25_000_000, "cpu": 4_000_000}
ALSO = (
    "cast_int8+two_hop",
    "cast_fp8+two_hop",
    "power_sgd(32)+error_feedback",
    "topk(threshold=sampled)+error_feedback",
    "qsgd+error_feedback",
)
"""Chains that people would use on 8 to 64 GPUs, beside those that techniques declare to be worth trying."""


def timed_chains() -> list[str]:
    """Return the chains to time, in canonical form, each once."""
    found = []
    for text in (*chains(), *ALSO):
        sentence = Strategy.parse(text)
        assert isinstance(sentence, Sentence)
        found.append(sentence.chain)
    return [chain for chain in dict.fromkeys(found) if chain != "none"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=tuple(ELEMENTS))
    parser.add_argument("--workers", type=int, default=8, help="whose payloads are decoded")
    parser.add_argument("--elements", type=int, help="of all tensors; default: 25 million on a GPU, 4 on a CPU")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--chain", action="append", help="time this one only; repeatable")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    echo = EchoGroup(0, tuple(range(asked.workers)), Ledger())
    side = int(((asked.elements or ELEMENTS[asked.device]) / TENSORS) ** 0.5)
    specs = [TensorSpec(f"large{k}.weight", (side, side), torch.float32) for k in range(TENSORS)]
    rows = []
    for number, chain in enumerate(asked.chain or timed_chains(), 1):
        began = time.perf_counter()
        try:
            codecs = Codecs(echo, echo, specs, [chain], torch.device(asked.device), architectures=False)
            for _ in range(asked.rounds):
                codecs.round()
            rows.append(asdict(codecs.result()[0]))
        except (LaconicError, RuntimeError, TypeError) as error:
            print(f"{number:3d} {chain}: not timed: {error}", file=sys.stderr, flush=True)
        else:
            how = codecs.bucket_reports()[-1]
            graphs = "replayed" if how.graphed else how.refusal or "no graphs"
            took = f"{time.perf_counter() - began:.1f} s"
            print(f"{number:3d} {chain}: {took}; {how.one_by_one or 'whole'}; {graphs}; plain torch: {how.fallbacks}",
                  file=sys.stderr, flush=True)  # fmt: skip
    out = asked.out.open("w", newline="") if asked.out else sys.stdout
    device = torch.cuda.get_device_name() if asked.device == "cuda" else "cpu"
    writer = csv.DictWriter(out, ["device", "workers", *rows[0]], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        numbers = {name: value if isinstance(value, str) else f"{value:.4g}" for name, value in row.items()}
        writer.writerow({"device": device, "workers": asked.workers, **numbers})


if __name__ == "__main__":
    main()
