"""Measure what each method learns: the character transformer's validation loss after every few steps, whatever the
network.

    python bench/curves.py --output curves.jsonl --seeds 0,1 --rates 7 "bsp" "bsp / power_sgd(rank={1|2|4})"
    python bench/curves.py --output curves.jsonl --seeds 0 --rates 1 --lr 0.004 "torch:powersgd(rank=2)"

Workers that wait for each other learn the same over any links, so that losses are found once, as fast as the machine
can, and times elsewhere. Four workers of 256 characters each; sentences of ours on the virtual engine, which yields the
real one's parameters, other libraries' methods in four real processes. A line of the file is one training; what is
already there is not trained again. Loss is in nats over 100,000 held-out characters.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "examples")]

WORKERS, BATCH, EVERY, HELD_OUT = 4, 2, 16, 100_000  # rules with rounds of 16, 8, 4 or 2 steps have just met
PATIENCE_SECONDS = 900


@dataclass(frozen=True)
class Training:
    strategy: str
    rate: float
    seed: int
    steps: int

    @property
    def rival(self) -> bool:
        return ":" in self.strategy.partition("(")[0]


# ------------------------------------------------------------------------------------------------ one training


def train(training: Training, device: str) -> list[tuple[int, float]]:
    """Return (steps, loss) as rank 0 measures it; ours on virtual workers, a rival in one of four processes."""
    import torch

    torch.set_num_threads(1)
    curve: list[tuple[int, float]] = []
    if training.rival:
        work(training, device, curve)
        return curve
    import laconic
    from laconic.network.network_tree import Network
    from laconic.virtual.compute import Compute

    network = Network.flat(WORKERS, 1e9, 1e-4)
    laconic.simulate(lambda: work(training, device, curve), WORKERS, network, Compute(0.01, 0.02, 0.001), training.seed)
    return curve


def work(training: Training, device: str, curve: list[tuple[int, float]]) -> None:
    import torch

    import laconic
    from chars import SIZES, build_model, default_text, draw_batch, load_text, loss_of, validate

    shape = SIZES["small"]
    learned, held_out, characters = load_text(default_text())
    bare = model = build_model(training.seed, characters, shape).to(device)
    judge = build_model(training.seed, characters, shape).to("cuda" if torch.cuda.is_available() else "cpu")
    held_out = held_out.to(next(judge.parameters()).device)
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=training.rate)
    model, optimizer = laconic.distribute(model, optimizer, training.strategy)
    for step in range(training.steps):
        batch = draw_batch(learned, shape.context, BATCH, (training.seed, step, laconic.rank()))
        loss_of(model, *(part.to(device) for part in batch)).backward()
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % EVERY == 0 and laconic.rank() == 0:
            judge.load_state_dict(bare.state_dict())
            curve.append((step + 1, validate(judge, held_out, shape.context, HELD_OUT)))


# ------------------------------------------------------------------------------------------------ many trainings


def carry_out(training: Training, device: str) -> list[tuple[int, float]] | None:
    """Train in separate processes; return None when the training failed or hung."""
    from workers import environment, free_port

    ranks = WORKERS if training.rival else 1
    store = ("127.0.0.1", free_port())
    command = [sys.executable, __file__, "--as-worker", json.dumps(asdict(training)), "--device", device]
    quiet = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    started = [
        subprocess.Popen(
            command,
            env=environment(rank, WORKERS, store, None) if training.rival else quiet | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
            stderr=None if rank == 0 else subprocess.DEVNULL,
        )
        for rank in range(ranks)
    ]
    try:
        output, _ = started[0].communicate(timeout=PATIENCE_SECONDS)
        return [(step, loss) for step, loss in json.loads(output.splitlines()[-1])]
    except (subprocess.TimeoutExpired, ValueError, IndexError):
        return None
    finally:
        for process in started:
            process.kill()
            process.wait()


def alternatives_of(texts: list[str]) -> list[str]:
    from laconic.experiments.settings import alternatives

    return [one for text in texts for one in alternatives(text)]


def read(path: Path) -> dict[Training, list[tuple[int, float]]]:
    """Return the trainings that the file already holds."""
    lines = path.read_text().splitlines() if path.exists() else ()
    known = {}
    for line in lines:
        fields = json.loads(line)
        known[Training(**fields["training"])] = [(step, loss) for step, loss in fields["curve"]]
    return known


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("strategies", nargs="*", help="sentences or rivals; alternatives of a knob in braces")
    parser.add_argument("--output", type=Path, required=False, help="a line of JSON for each training")
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--lr", type=float, default=2e-3, help="the middle of the grid of learning rates")
    parser.add_argument("--rates", type=int, default=7, help="learning rates, a factor two apart (odd)")
    parser.add_argument("--steps", type=int, default=384)
    parser.add_argument("--processes", type=int, default=2, help="trainings at a time")
    parser.add_argument("--device", default="cpu", help="where to train; losses are taken on a GPU if there is one")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no training after so many")
    parser.add_argument("--as-worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.as_worker is not None:
        print(json.dumps(train(Training(**json.loads(args.as_worker)), args.device)), flush=True)
        os._exit(0)  # a rival's threads need not be waited for
    if args.output is None:
        parser.error("--output is missing: name the file of the curves")
    rates = [args.lr * 2.0**k for k in range(-(args.rates // 2), args.rates // 2 + 1)]
    seeds = [int(seed) for seed in args.seeds.split(",")]
    wanted = [Training(s, r, k, args.steps) for s in alternatives_of(args.strategies) for r in rates for k in seeds]
    known = read(args.output)
    wanted = [training for training in wanted if training not in known]
    begin, lock, done = time.monotonic(), Lock(), [0]

    def one(training: Training) -> None:
        if time.monotonic() - begin > args.seconds:
            return
        curve = carry_out(training, args.device)
        with lock, args.output.open("a") as file:
            done[0] += 1
            if curve is not None:
                file.write(json.dumps({"training": asdict(training), "curve": curve}) + "\n")
            end = "FAILED" if not curve else f"{curve[-1][1]:.4f}"
            print(f"{done[0]}/{len(wanted)}  {time.monotonic() - begin:.0f} s  {training}  {end}", flush=True)

    with ThreadPoolExecutor(args.processes) as pool:
        list(pool.map(one, wanted))


if __name__ == "__main__":
    main()
