"""What coded shards do to the loss: FSDP2 among processes that share a device, the ladder's byte model, paired seeds.

    python bench/corpus.py runs/corpus.xz
    python bench/sharded_losses.py --at-once 3

Every row trains the same model on the same batches with the optimizer, schedule and clipping of the ladder's rung
(`rungs.toml`), at the rate that was chosen for plain data parallelism there; `none` is FSDP2's arithmetic. The workers
of a run are processes that speak gloo, also where they share a GPU. Each run appends a line to `--out`, and one whose
line is there is not made again.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from bench.packed import Table, lines  # noqa: E402
from bench.rungs.choosing import read  # noqa: E402
from bench.rungs.tasks import data_of  # noqa: E402
from bench.workers import free_port  # noqa: E402

ROWS = {
    "none": ("none", None),
    "ZeRO++": ("zero_plus_plus", None),
    "SDP4Bit": ("sdp4bit", None),
    "LoCo": ("int4(128)+loco", "int8(256)"),
    "LoCo without memory": ("int4(128)", "int8(256)"),
}
ROWS_KEPT = ROOT / "docs" / "measured" / "sharded-losses.jsonl"
COMMON = ("rung", "workers", "steps", "rate")
Job = tuple[str, int]
"""A row and a seed."""


def work(rank: int, port: int, jobs: Sequence[Job], given: argparse.Namespace) -> None:
    """Train runs one after another, as one worker of each; the first worker keeps their lines."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    import torch
    import torch.distributed as dist
    from bench.rungs.tasks import task_of

    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=given.workers)
    rung, _ = read(tomllib.loads(given.rungs.read_text()), given.rung, {})
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    task: Any = task_of(rung, given.data, device, given.workers)
    for row, seed in jobs:
        line = train(task, row, seed, given)
        if not rank:
            Table([], given.out).append(line)
            print(f"{row:20} seed {seed}  {line['loss']:.4f}  {line['seconds']} s", flush=True)
    dist.destroy_process_group()


def train(task: Any, row: str, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    """Train one row to its end, and return its line."""
    import torch
    import torch.distributed as dist
    from bench.rungs.run import share_of_rate
    from bench.rungs.training import LONGEST, optimizer_of
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    import laconic
    from laconic.real.connect import connect

    begin, before = time.perf_counter(), connect().ledger.sent_bytes()
    # Not `init_device_mesh`, which takes NCCL where there is a GPU, and NCCL does not let processes share one.
    mesh = DeviceMesh.from_group(dist.group.WORLD, task.device.type, mesh_dim_names=("shard",))
    model: Any = task.build(seed).to(task.device)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer: Any = optimizer_of("adamw", model, given.rate)
    gradients, weights = ROWS[row]
    model, optimizer = laconic.distribute(model, optimizer, gradients, weights=weights)
    for step in range(given.steps):
        for group in optimizer.param_groups:
            group["lr"] = given.rate * share_of_rate(step, given.steps)
        task.loss(model, *task.batch(seed, step, laconic.rank())).backward()
        laconic.clip_grad_norm_(optimizer, LONGEST)
        optimizer.step()
        optimizer.zero_grad()
    loss = float(task.evaluate(model)["loss"])  # all take part: weights are gathered
    return {
        "row": row, "seed": seed, "rung": given.rung, "steps": given.steps, "workers": given.workers,
        "rate": given.rate, "loss": round(loss, 5), "bytes": round(connect().ledger.sent_bytes() - before),
        "seconds": round(time.perf_counter() - begin, 1), "data": task.data,
        "device": torch.cuda.get_device_name() if task.device.type == "cuda" else "CPU",
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rungs", type=Path, default=ROOT / "bench" / "rungs.toml", help="rungs and their models")
    parser.add_argument("--rung", default="depth", help="a table of rungs.toml")
    parser.add_argument("--data", type=Path, help="the frozen text; default: where bench/corpus.py makes it")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--at-once", type=int, default=1, help="runs side by side, each of so many processes")
    parser.add_argument("--out", type=Path, default=ROWS_KEPT, help="the rows; default: those that are kept")
    given = parser.parse_args()
    made = {(row["row"], row["seed"]) for row in alike(given)}
    todo = [(r, s) for s in given.seeds for r in ROWS if (r, s) not in made]
    context, processes = multiprocessing.get_context("spawn"), []
    for gang in range(min(given.at_once, len(todo))):
        port, jobs = free_port(), todo[gang :: given.at_once]
        processes += [context.Process(target=work, args=(r, port, jobs, given)) for r in range(given.workers)]
    try:
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    finally:
        for process in processes:
            process.kill()
    report(alike(given))
    if any(process.exitcode for process in processes):
        sys.exit("some runs ended without a line; what they said is above")


def alike(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the lines of runs that differ from those asked for by row and seed alone."""
    rung, _ = read(tomllib.loads(given.rungs.read_text()), given.rung, {})
    wanted = {"data": data_of(rung, given.data), **{key: getattr(given, key) for key in COMMON}}
    return [row for row in lines(given.out) if all(row[key] == value for key, value in wanted.items())]


def report(rows: Sequence[dict[str, Any]]) -> None:
    """Print every row's loss over that without a code, seed by seed, and its bytes."""
    plain = {row["seed"]: row["loss"] for row in rows if row["row"] == "none"}
    for name in ROWS:
        if mine := [row for row in rows if row["row"] == name and row["seed"] in plain]:
            gaps = [100 * (row["loss"] / plain[row["seed"]] - 1) for row in mine]
            sent = statistics.fmean(row["bytes"] for row in mine)
            shown = " ".join(f"{gap:+.2f}" for gap in gaps)
            print(f"{name:20} {statistics.fmean(gaps):+.2f} % of loss ({shown}), {sent / 1e9:.2f} GB a rank")


if __name__ == "__main__":
    main()
