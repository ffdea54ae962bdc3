"""What coded shards do to the loss: FSDP2 on virtual workers, the ladder's byte model, paired seeds.

    python bench/corpus.py runs/corpus.xz
    python bench/sharded_losses.py --data runs/corpus.xz --processes 5

Every row trains the same model on the same batches with the optimizer, schedule and clipping of the ladder's rung
(`rungs.toml`), at the rate that was chosen for plain data parallelism there; `none` is FSDP2's arithmetic. Each run
appends a line to `--out`, and one whose line is there is not made again.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

ROWS = {
    "none": ("none", None),
    "ZeRO++": ("zero_plus_plus", None),
    "SDP4Bit": ("sdp4bit", None),
    "LoCo": ("int4(128)+loco", "int8(256)"),
    "LoCo without memory": ("int4(128)", "int8(256)"),
}


def train(row: str, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    """Train one row to its end, and return its line."""
    import torch
    from bench.rungs.choosing import read
    from bench.rungs.run import share_of_rate
    from bench.rungs.tasks import task_of
    from bench.rungs.training import LONGEST, optimizer_of
    from torch.distributed.fsdp import fully_shard

    import laconic

    families = tomllib.loads((ROOT / "bench" / "compressors.toml").read_text())
    rung, _ = read(tomllib.loads((ROOT / "bench" / "rungs.toml").read_text()), given.rung, families)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    task: Any = task_of(rung, given.data, device, given.workers)
    gradients, weights = ROWS[row]

    def work() -> float:
        mesh = laconic.init_device_mesh(device.type, (given.workers,), mesh_dim_names=("shard",))
        model: Any = task.build(seed).to(device)
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = optimizer_of("adamw", model, given.rate)
        model, optimizer = laconic.distribute(model, optimizer, gradients, weights=weights)
        for step in range(given.steps):
            for group in optimizer.param_groups:
                group["lr"] = given.rate * share_of_rate(step, given.steps)
            task.loss(model, *task.batch(seed, step, laconic.rank())).backward()
            laconic.clip_grad_norm_(optimizer, LONGEST)
            optimizer.step()
            optimizer.zero_grad()
        return float(task.evaluate(model)["loss"])  # all take part: weights are gathered

    begin = time.perf_counter()
    done = laconic.simulate(work, given.workers)
    sent = sum(worker.ledger.sent_bytes() for worker in done.workers) / given.workers
    return {
        "row": row, "seed": seed, "rung": given.rung, "steps": given.steps, "workers": given.workers,
        "rate": given.rate, "loss": round(done.results[0], 5), "bytes": round(sent),
        "seconds": round(time.perf_counter() - begin, 1),
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "CPU",
    }  # fmt: skip


def attempt(job: tuple[str, int, argparse.Namespace]) -> dict[str, Any]:
    """Train in a process of a pool."""
    import os

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    return train(*job)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rung", default="depth", help="a table of rungs.toml")
    parser.add_argument("--data", type=Path, help="the frozen text; default: where bench/corpus.py makes it")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "sharded_losses.jsonl")
    given = parser.parse_args()
    known = [json.loads(line) for line in given.out.read_text().splitlines()] if given.out.is_file() else []
    made = {(row["row"], row["seed"], row["steps"], row["rung"]) for row in known}
    todo = [(r, s, given) for s in given.seeds for r in ROWS if (r, s, given.steps, given.rung) not in made]
    given.out.parent.mkdir(parents=True, exist_ok=True)
    with multiprocessing.get_context("spawn").Pool(given.processes, maxtasksperchild=1) as pool:
        for line in pool.imap_unordered(attempt, todo):
            known.append(line)
            with given.out.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(f"{line['row']:20} seed {line['seed']}  {line['loss']:.4f}  {line['seconds']} s", flush=True)
    mine = [row for row in known if (row["steps"], row["rung"]) == (given.steps, given.rung)]
    plain = {row["seed"]: row["loss"] for row in mine if row["row"] == "none"}
    for name in ROWS:
        gaps = [100 * (row["loss"] / plain[row["seed"]] - 1) for row in mine if row["row"] == name]
        sent = statistics.fmean(row["bytes"] for row in mine if row["row"] == name)
        shown = " ".join(f"{gap:+.2f}" for gap in gaps)
        print(f"{name:20} {statistics.fmean(gaps):+.2f} % of loss ({shown}), {sent / 1e9:.2f} GB a rank")


if __name__ == "__main__":
    main()
