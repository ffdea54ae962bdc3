"""Time the first use of compiled loops, and their use from the cache on disk: each kernel, and whole sentences.

    python bench/compile_time.py

Each sentence gets a process and an empty cache of its own, then a second process with the cache of the first. Importing
Numba is timed separately, since it is paid once whatever is compiled.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile

KERNELS = {
    "feed_signs": "kernels.feed_signs(x, e)",
    "pack_signs": "kernels.pack_signs(x)",
    "add_signs": "kernels.add_signs(e, kernels.reference.pack_signs(x), torch.ones(()))",
    "bucket_scales, max": "kernels.bucket_scales(x, 512, 'max')",
    "bucket_scales, l2": "kernels.bucket_scales(x, 512, 'l2')",
    "quantize": "kernels.quantize(x, torch.ones(16), 512, 31, 9)",
    "quantize_in_nibbles": "kernels.quantize_in_nibbles(x, torch.ones(16), 512, 7, 9)",
    "select": "kernels.select(x, 1.0)",
    "uniform": "kernels.uniform(9, 0, 8192)",
}
SENTENCES = (
    "one_bit+ef",
    "qsgd",
    "qsgd(levels=31)+ef",
    "topk(threshold=sampled)+ef",
    "terngrad",
    "topk+qsgd+ef",
    "dgc",
)
PROGRAM = """
import json, sys, time
import torch
from laconic import kernels
begin = time.perf_counter()
kernels.bodies("cpu")
imported = time.perf_counter() - begin
x, e = torch.randn(8192), torch.zeros(8192)
{prepare}
begin = time.perf_counter()
{act}
print(json.dumps([imported, time.perf_counter() - begin]))
"""
SENTENCE = """
from laconic.runtime.meeting import Meeting
from laconic.values.tensor_spec import TensorSpec
from laconic.strategy import Strategy
made = Strategy.parse("{text}").compressor
big = torch.randn(1 << 17)
exchange = made.exchange(big, made.init(TensorSpec("x", tuple(big.shape), big.dtype)), Meeting(0, 1, 0, "x"))
def run(exchange):
    answer = None
    while True:
        try:
            request = exchange.send(answer)
        except StopIteration:
            return
        kind, sent = type(request).__name__, request.tensor
        answer = dict(GatherRagged=[sent], Gather=sent.view(1, -1)).get(kind, sent)
"""


def once(prepare: str, act: str, cache: str) -> list[float]:
    program = PROGRAM.format(prepare=prepare, act=act)
    out = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "NUMBA_CACHE_DIR": cache},
        check=True,
        capture_output=True,
        text=True,
    )
    return [float(value) for value in json.loads(out.stdout.splitlines()[-1])]


def main() -> None:
    rows = {name: ("", act) for name, act in KERNELS.items()}
    rows |= {text: (SENTENCE.format(text=text), "run(exchange)") for text in SENTENCES}
    print(f"{'':32}{'first use, s':>14}{'from disk, s':>14}{'import Numba, s':>17}")
    for name, (prepare, act) in rows.items():
        with tempfile.TemporaryDirectory() as cache:
            imported, first = once(prepare, act, cache)
            _, again = once(prepare, act, cache)
        print(f"{name:32}{first:>14.2f}{again:>14.2f}{imported:>17.2f}", flush=True)


if __name__ == "__main__":
    main()
