"""Time pricing: 10,000 virtual workers with random stragglers, 100 `bsp` steps, without gradients.

    python bench/symmetric.py [--workers 10000] [--steps 100]

and, with `--scripts`, how long 1,000 virtual workers take for the whole digits script, ten steps, with real gradients;
beside it, what the script's own work takes that often in one process without any worker: no engine can be faster.
"""

from __future__ import annotations

import argparse
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "digits.py"


def price_once(workers: int, steps: int) -> tuple[float, float]:
    """Return pricing's own seconds and the virtual seconds, for the tensors of ResNet-50's size in 25 layers."""
    import torch

    from laconic.network.network_tree import Network
    from laconic.values.tensor_spec import TensorSpec
    from laconic.virtual.compute import Compute, Stragglers
    from laconic.virtual.symmetric import price

    tensors = [TensorSpec(f"layer{k}.weight", (1000, 1000), torch.float32, "matrix") for k in range(25)]
    compute = Compute(0.05, 0.1, 0.005, straggling=Stragglers(0.02, 3.0))
    begin = time.perf_counter()
    priced = price("bsp", tensors, Network.flat(workers, 1e10, 20e-6), compute, steps)
    return time.perf_counter() - begin, float(priced.ends_seconds[-1])


def run_script(workers: int, steps: int) -> tuple[float, float]:
    """Return the seconds of the whole command and its peak memory in GiB."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "laconic", "run", "--engine", "virtual", "--workers", str(workers)]
        script = [str(EXAMPLE), "--batch", "1", "--epochs", str(steps), "--steps", str(steps)]
        begin = time.perf_counter()
        subprocess.run([*command, "--folder", folder, *script], check=True, capture_output=True)
        seconds = time.perf_counter() - begin
    return seconds, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20


def plain_seconds(workers: int, steps: int) -> float:
    """Return how long one process takes to do what the script does on each worker, one after the other."""
    import torch
    from torch.nn import functional
    from torch.utils.data import DataLoader, Subset

    sys.path.insert(0, str(EXAMPLE.parent))
    from digits import build_model, load_data

    torch.set_num_threads(1)
    load_data(0)
    torch.optim.SGD(build_model(0).parameters(), lr=0.05)  # the first one imports a compiler
    begin = time.perf_counter()
    for _ in range(workers):
        training, _ = load_data(0)
        loader = DataLoader(Subset(training, range(steps)), 1, shuffle=True)
        model = build_model(0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for images, labels in loader:
            functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=re.sub(r"\n\n    .*", "", __doc__ or "", flags=re.DOTALL))
    parser.add_argument("--workers", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--scripts", action="store_true", help="also 1,000 workers running the digits script")
    args = parser.parse_args()
    prices = [price_once(args.workers, args.steps) for _ in range(args.repeat)]
    taken = sorted(seconds for seconds, _ in prices)
    print(
        f"{args.workers} workers, {args.steps} bsp steps of 25 M parameters: {prices[0][1]:.1f} s of virtual time, "
        f"priced in {statistics.median(taken):.2f} s ({taken[0]:.2f} to {taken[-1]:.2f})"
    )
    if args.scripts:
        runs = [run_script(1000, 10) for _ in range(args.repeat)]
        taken = sorted(seconds for seconds, _ in runs)
        print(
            f"1000 workers, digits script, 10 steps: {statistics.median(taken):.1f} s ({taken[0]:.1f} to "
            f"{taken[-1]:.1f}), {max(peak for _, peak in runs):.1f} GiB; the script's own work alone "
            f"{plain_seconds(1000, 10):.1f} s"
        )


if __name__ == "__main__":
    main()
