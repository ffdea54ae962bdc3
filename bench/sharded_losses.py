"""What coded shards do to the loss: FSDP2 on virtual workers, models of the ladder, paired seeds.

    python bench/corpus.py runs/corpus.xz
    python bench/sharded_losses.py --processes 8                                                        # on a GPU
    python bench/sharded_losses.py --rung small-cifar --steps 400 --rate 0.2 --processes 2             # on two cores

Every row trains the same model on the same batches with the optimizer, schedule and clipping of the ladder's rung
(`rungs.toml`), at the rate that was chosen for plain data parallelism there; `none` is FSDP2's arithmetic. Several
processes share the device, each with all virtual workers of one run. Each run appends a line to `--out`, and one whose
line is there is not made again.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from bench.packed import Packed, Table, lines  # noqa: E402
from bench.rungs.choosing import Rung, read  # noqa: E402
from bench.rungs.tasks import data_of  # noqa: E402

ROWS = {
    "none": ("none", None, False),
    "ZeRO++": ("zero_plus_plus", None, True),
    "SDP4Bit": ("sdp4bit", None, True),
    "LoCo": ("int4(128)+loco", "int8(256)", False),
    "LoCo without memory": ("int4(128)", "int8(256)", False),
}
"""What is sent of gradients and of weights; whether workers are in two hosts, inside which gradients meet first."""
ROWS_KEPT = ROOT / "docs" / "measured" / "sharded-losses.jsonl"
COMMON = ("rung", "workers", "steps", "rate")


@dataclass(frozen=True)
class Run:
    """A training of one row with one seed."""

    row: str
    seed: int

    @property
    def identity(self) -> tuple[str, int]:
        return self.row, self.seed


class Sharded(Packed[Run]):
    """The runs of all rows."""

    def __init__(self, given: argparse.Namespace, rung: Rung) -> None:
        super().__init__(given, Table(alike(given, rung), given.out), (given, rung))
        self._failed = set[tuple[str, int]]()

    def missing(self) -> Iterator[Run]:
        made = {(row["row"], row["seed"]) for row in self._table.rows} | self._failed
        runs = (Run(row, seed) for seed in self._given.seeds for row in ROWS)
        return (run for run in runs if run.identity not in made)

    def cost(self, run: Run) -> float:
        return 1.0

    def failed(self, run: Run, why: str) -> None:
        print(f"failed: {run.row}, seed {run.seed}: {why[:500]}", flush=True)
        self._failed.add(run.identity)

    def described(self, run: Run, row: dict[str, Any]) -> str:
        return f"{run.row:20} seed {run.seed}  {row['loss']:.4f}  {row['seconds']} s"

    @staticmethod
    def trainer(given: argparse.Namespace, rung: Rung) -> Callable[[Run], dict[str, Any]]:
        import torch
        from bench.rungs.tasks import task_of

        task = task_of(rung, given.data, torch.device("cuda" if torch.cuda.is_available() else "cpu"), given.workers)
        return lambda run: train(run, task, rung, given)


def train(run: Run, task: Any, rung: Rung, given: argparse.Namespace) -> dict[str, Any]:
    """Train one row to its end, and return its line."""
    from bench.rungs.run import share_of_rate
    from bench.rungs.training import LONGEST, optimizer_of
    from torch.distributed.fsdp import fully_shard

    import laconic

    gradients, weights, in_hosts = ROWS[run.row]

    def work() -> dict[str, float]:
        hosts = laconic.init_device_mesh(task.device.type, (2, given.workers // 2), mesh_dim_names=("across", "inside"))
        mesh = hosts._flatten("all")
        model: Any = task.build(run.seed).to(task.device)
        for block in getattr(model, "blocks", model):
            if any(block.children()):
                fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer: Any = optimizer_of(rung.optimizer, model, given.rate)
        model, optimizer = laconic.distribute(
            model, optimizer, gradients, mesh=hosts if in_hosts else None, weights=weights
        )
        for step in range(given.steps):
            for group in optimizer.param_groups:
                group["lr"] = given.rate * share_of_rate(step, given.steps)
            task.loss(model, *task.batch(run.seed, step, laconic.rank())).backward()
            laconic.clip_grad_norm_(optimizer, LONGEST)
            optimizer.step()
            optimizer.zero_grad()
        return {name: round(value, 5) for name, value in task.evaluate(model).items()}  # all: weights are gathered

    begin = time.perf_counter()
    done = laconic.simulate(work, given.workers)
    sent = sum(worker.ledger.sent_bytes() for worker in done.workers) / given.workers
    return {
        "row": run.row, "seed": run.seed, "rung": given.rung, "steps": given.steps, "workers": given.workers,
        "rate": given.rate, **done.results[0], "bytes": round(sent),
        "seconds": round(time.perf_counter() - begin, 1), "data": task.data,
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
    parser.add_argument("--processes", type=int, default=1, help="runs side by side on the device")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no run that would end later")
    parser.add_argument("--most", type=int, default=sys.maxsize, help="runs at most")
    parser.add_argument("--out", type=Path, default=ROWS_KEPT, help="the rows; default: those that are kept")
    given = parser.parse_args()
    rung, _ = read(tomllib.loads(given.rungs.read_text()), given.rung, {})
    Sharded(given, rung).run()
    report(alike(given, rung))


def alike(given: argparse.Namespace, rung: Rung) -> list[dict[str, Any]]:
    """Return the lines of runs that differ from those asked for by row and seed alone."""
    wanted = {"data": data_of(rung, given.data), **{key: getattr(given, key) for key in COMMON}}
    return [row for row in lines(given.out) if all(row[key] == value for key, value in wanted.items())]


def report(rows: Sequence[dict[str, Any]]) -> None:
    """Print every row's loss over that without a code, seed by seed, and its bytes."""
    plain = {row["seed"]: row["loss"] for row in rows if row["row"] == "none"}
    for name in ROWS:
        if mine := sorted((r for r in rows if r["row"] == name and r["seed"] in plain), key=lambda r: r["seed"]):
            gaps = [100 * (row["loss"] / plain[row["seed"]] - 1) for row in mine]
            sent = statistics.fmean(row["bytes"] for row in mine)
            shown = " ".join(f"{gap:+.2f}" for gap in gaps)
            print(f"{name:20} {statistics.fmean(gaps):+.2f} % of loss ({shown}), {sent / 1e9:.2f} GB a rank")


if __name__ == "__main__":
    main()
