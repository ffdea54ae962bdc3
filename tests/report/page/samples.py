"""Small inputs of a page, written by the code that writes them in earnest."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from laconic.experiments.compare import Comparison
from laconic.experiments.folder import Folder
from laconic.experiments.measure import RowOutcomes, line_of
from laconic.experiments.outcome import Block, Logged, RunOutcome
from laconic.experiments.settings import Settings, groups
from laconic.planner.values import Advice, Layer, Option, Risk
from laconic.report.table import write as write_table
from laconic.runtime.timeline import Timeline

HOSTILE = """</title></code><script>document.title='taken'</script><img src=x onerror="document.title='taken'">'"`&"""


def option(strategy: str, exposed: float, coding: float = 0.0, risk: Risk | None = None, **more: Any) -> Option:
    """Computing takes 16 ms, the baseline 26 ms; predictions are good to a tenth."""
    step = 0.016 + coding + exposed
    fields = {"lossless": risk is None, "guarantee": "" if risk is None else "contraction with memory", **more}
    return Option(
        strategy, step, 0.9 * step, 1.1 * step, 0.026 / step, 1e5 * exposed, 0.016, coding, exposed, 4e5, risk=risk,
        **fields,
    )  # fmt: skip


def advice(*options: Option, workers: int = 2, subject: str = "train.py", layers: int = 3, verdict: str = "") -> Advice:
    baseline = option("bsp / cast_bf16", 0.01)
    tensors = tuple(
        Layer(f"block.{k}.weight", 4000 * (k + 1), 1e-3, 1e-3 * k, 2e-3 * k, 3e-3 * k) for k in range(layers)
    )
    found = options or (
        option("local(4)", 0.004, risk=Risk(1.02, 0.99, 1.05, 4, "digits", "local(4)", 38_282)),
        baseline,
    )
    return Advice(
        subject, 12_345, 3, workers, "100Mbit", "time", 0.0, baseline, found, verdict or "Use `local(4)`.",
        f'laconic run --strategy "{found[0].strategy}" train.py', tensors, 17, ("a note",),
    )  # fmt: skip


def write_plan(path: Path, plan: Advice | None = None) -> Path:
    path.write_text((plan or advice()).to_json())
    return path


def outcome(
    step_seconds: float, seed: int = 0, logs: int = 5, sent_bytes: float = 1e5, waited: float = 0.0
) -> RunOutcome:
    """Eleven blocks of four steps; the loss falls with the steps, a little differently for each seed."""
    blocks = tuple(
        Block(k, 4, 4 * step_seconds * (1 + 0.01 * (k % 3)), 4 * sent_bytes, 4 * sent_bytes, True) for k in range(11)
    )
    logged = tuple(
        Logged(
            4 * k, 4 * k * step_seconds, 8 * k * sent_bytes, {"loss": 2.0 / k + 0.01 * seed, "accuracy": 1 - 0.5 / k}
        )
        for k in range(1, logs + 1)
    )
    return RunOutcome(blocks, logged, "ledger", 44 * waited)


def write_comparison(
    folder: Path,
    strategies: Sequence[str] = ("bsp", "local(period=4)", "bsp / cast_bf16"),
    seeds: Sequence[int] = (0, 1),
    rows_at_once: int | None = None,
    logs: int = 5,
    failed: str | None = None,
) -> Path:
    """Row k takes 26 - 2k ms a step, 16 ms of it computing."""
    script = folder.parent / "train.py"
    script.touch()
    settings = Settings(
        (str(script), "--epochs", "3"), tuple(["bsp"] * len(strategies)), workers=2, engine="virtual",
        seeds=tuple(seeds), target=("loss", 0.6), rows_at_once=rows_at_once,
    )  # fmt: skip
    kept = Folder(str(folder), settings)
    kept.begin(["/somewhere/bin/laconic", "compare", "--engine", "virtual", str(script)])
    trios: list[dict[int, RowOutcomes]] = [{} for _ in strategies]
    for seed in seeds:
        alone = outcome(0.016, seed, logs, 0.0)
        rows = [
            outcome(0.026 - 0.002 * k, seed, logs, 1e5 / (k + 1), 0.008 - 0.002 * k) for k in range(len(strategies))
        ]
        if failed is not None:
            rows[-1] = RunOutcome(error=failed)
        parts = groups(len(rows), rows_at_once)
        names = [["computing alone", *(strategies[k] for k in part)] for part in parts]
        kept.save_session(f"seed-{seed}", [], names, [[alone, *(rows[k] for k in part)] for part in parts])
        for k, row in enumerate(rows):
            trios[k][seed] = RowOutcomes(row, rows[0], alone)
    lines = tuple(line_of(name, of, lambda _: settings.target) for name, of in zip(strategies, trios, strict=True))
    write_table(Comparison(settings, kept.path, lines, settings.target, ("no tuning, 2 seeds",)))
    return folder


def write_run(
    folder: Path, metrics: Sequence[dict[str, Any]] = ({"seconds": 1.0, "loss": 2.0},), log: str = "", **facts: Any
) -> Path:
    """The folder of a run that ended well unless `facts` say something else."""
    for name in ("metrics", "logs"):
        (folder / name).mkdir(parents=True)
    (folder / "metrics" / "rank-0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    (folder / "logs" / "rank-0.log").write_text(log)
    record = {
        "command": ["/somewhere/laconic/__main__.py", "run", "train.py"],
        "strategy": "bsp / cast_bf16",
        "workers": 2,
        "started": "2026-01-02T03:04:05+00:00",
        "versions": {"laconic": "0.1.0", "torch": "2"},
        "result": {"state": "succeeded", "exit_code": 0, "seconds": 3.25},
    }
    (folder / "run.json").write_text(json.dumps({**record, **facts}))
    return folder


def timeline(workers: int = 2, steps: int = 5) -> Timeline:
    """Each step computes for 16 ms, of which the last 10 hide the first of two messages, and waits for 4."""
    made = Timeline()
    for worker in range(workers):
        for step in range(steps):
            begin = 0.02 * step
            made.add(worker, "compute", "forward", begin, begin + 0.006, part="forward", step=step)
            made.add(worker, "compute", "backward w", begin + 0.006, begin + 0.016, part="backward", step=step)
            made.add(worker, "waiting", "all_reduce", begin + 0.016, begin + 0.02, step=step)
            made.add(worker, "communication", "all_reduce 8 B", begin + 0.01, begin + 0.018, step=step, bytes=8)
            made.add(worker, "communication", "all_reduce 4 B", begin + 0.016, begin + 0.02, step=step, bytes=4)
    return made
