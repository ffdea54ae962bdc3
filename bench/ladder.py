"""Tables of losses: every method on one rung of the ladder, as virtual workers that share a GPU.

    python bench/corpus.py runs/corpus.xz
    python bench/ladder.py breadth --processes 14 --compile           # goes on where it was
    python bench/ladder.py depth --processes 4 --compile --minutes 9

`rungs.toml` names the rungs and the methods. A run is the unit that resumes: each appends one line to
`src/laconic/planner/measured/runs/<task>-<rung>.jsonl` (or `--out`), and a run whose line is there is not made again.
Rates are chosen on a seed of their own at a share of the steps, and never on a seed that is reported. Several processes
share the device, each with all virtual workers of one run, whose gradients are computed at once (`laconic.batched`).
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from bench.packed import Packed, Table, lines  # noqa: E402
from bench.rungs.choosing import Method, Rung, needed, read  # noqa: E402
from bench.rungs.guards import on_other_data  # noqa: E402
from bench.rungs.run import Run  # noqa: E402
from bench.rungs.tasks import data_of, refuse_repetition  # noqa: E402

from laconic.planner.runs import FOLDER  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rung", help="a table of rungs.toml")
    parser.add_argument(
        "--data", type=Path, help="the task's file: a frozen text, or images; default: where it is made"
    )
    parser.add_argument("--processes", type=int, default=1, help="runs side by side on the device")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no run that would end later")
    parser.add_argument(
        "--only", action="append", default=[], help="methods whose `optimizer: sentence` contains this text"
    )
    parser.add_argument("--without", action="append", default=[], help="leave out methods that do, as `muon:`")
    parser.add_argument("--rungs", type=Path, default=ROOT / "bench" / "rungs.toml", help="rungs and methods")
    parser.add_argument("--out", type=Path, help="the rows; default: beside those that are shipped")
    parser.add_argument("--alone", action="store_true", help="each virtual worker computes for itself")
    parser.add_argument("--compile", action="store_true", help="compile the gradients' computation")
    parser.add_argument("--most", type=int, default=sys.maxsize, help="runs at most")
    given = parser.parse_args()
    families = tomllib.loads((ROOT / "bench" / "compressors.toml").read_text())
    rung, methods = read(tomllib.loads(given.rungs.read_text()), given.rung, families)
    named = {method: f"{method.optimizer}: {method.sentence}" for method in methods}
    methods = [m for m in methods if not given.only or any(text in named[m] for text in given.only)]
    methods = [m for m in methods if not any(text in named[m] for text in given.without)]
    shipped = FOLDER / f"{rung.task}-{rung.name}.jsonl"
    out = given.out or shipped
    table = Table([*lines(shipped), *(lines(out) if out != shipped else ())], out)
    Ladder(given, rung, methods, table).run()


class Ladder(Packed[Run]):
    """The runs of a rung."""

    def __init__(self, given: argparse.Namespace, rung: Rung, methods: list[Method], table: Table) -> None:
        refuse_repetition(rung, given.data)
        super().__init__(given, table, (given, rung))
        self._rung, self._methods, self._data = rung, methods, data_of(rung, given.data)
        if others := [str(seed) for seed in rung.seeds if on_other_data(seed, self._data, table.rows)]:
            print(f"seeds {', '.join(others)} have rows of other data, and get no more", flush=True)

    def missing(self) -> Iterator[Run]:
        return needed(self._rung, self._methods, self._table.rows, self._data)

    def cost(self, run: Run) -> float:
        return run.steps

    def failed(self, run: Run, why: str) -> None:
        print(f"failed: {run.optimizer} {run.sentence}, rate {run.lr:g}, seed {run.seed}: {why[:300]}", flush=True)
        self._methods = [m for m in self._methods if (m.sentence, m.optimizer) != (run.method, run.optimizer)]

    def described(self, run: Run, row: dict[str, Any]) -> str:
        shown = "diverged" if row["loss"] is None else f"{row['loss']:.4f}"
        scale = row.get("noise_scale")
        above = scale is not None and row["samples_per_step"] > scale
        return (
            f"{run.purpose:6} {shown:>8}  {run.lr:<7g} seed {run.seed}  {row['seconds']:6.1f} s"
            f"  {row.get('bytes', 0):.3g} B  {run.steps} steps  {run.optimizer}: {run.sentence}"
            + (f"  (a batch of {row['samples_per_step']:,} is above its noise scale, {scale:,.0f})" if above else "")
        )

    @staticmethod
    def trainer(given: argparse.Namespace, rung: Rung) -> Callable[[Run], dict[str, Any]]:
        import torch
        from bench.rungs.tasks import task_of
        from bench.rungs.training import train

        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

        @cache  # reading images or making a world takes as long as many steps
        def task(workers: int) -> Any:
            return task_of(rung, given.data, device, workers)

        return lambda run: train(run, task(run.workers), not given.alone, given.compile)


if __name__ == "__main__":
    main()
