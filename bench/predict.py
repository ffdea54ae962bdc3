"""The virtual engine's step time over the measured one: every word and named sentence, three networks, four workers.

    python bench/predict.py                                # everything, about 35 minutes; needs root
    python bench/predict.py --only 1gbit --only cast       # cells whose network or sentence contains these
    python bench/predict.py --output predict.json

For each network: first a profiling run (that of `laconic profile`: computing without communication, collectives without
computing) leaves a profile; then the virtual engine predicts every sentence from this profile alone; only then four
real processes take the steps, all sentences in turn, block by block. No step that is predicted is ever used to fit
anything.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from laconic.launch.net import ShapedNetwork, shaped
from laconic.values.run_config import RunConfig
from step_time import CHARACTERS, LENGTH, MODELS, SEQUENCES, build_model, machine
from workers import STORE_PORT, end, report, reports_of, start

WORKERS = 4
NETWORKS = {  # bits per second, one-way delay in seconds
    "100mbit": (1e8, 0.0),
    "1gbit": (1e9, 0.0),
    "1gbit+50ms": (1e9, 0.025),
}
BLOCKS, WARM_UP = 11, 3


@dataclass(frozen=True)
class Work:
    """The task of the real processes: profile, or take steps with every sentence in turn."""

    sentences: tuple[str, ...]
    blocks: int
    before: int  # steps of each block that are not timed
    steps: int


def sentences() -> list[str]:
    """Return every word with its defaults and choices, compressors also with memory, every named sentence, several
    merges."""
    from laconic import registry
    from laconic.strategy import Sentence, Word

    found = []
    for entry in registry.entries():
        if entry.kind == "sentence" and entry.axis in registry.AXES:
            found.append(entry.name)
        elif entry.kind == "word" and entry.name != "error_feedback":
            knobs = registry.knobs(Word(entry.name).technique)
            choices = [Word.of(entry.name, **{k.name: c}) for k in knobs for c in k.bounds.choices or ()]
            for word in [Word(entry.name), *choices]:
                found.append(str(Sentence.of(word)))
                if entry.axis == "compression" and entry.name != "none":
                    found.append(str(Sentence.of((word, Word("error_feedback")))))
    return list(dict.fromkeys([*found, "wfbp(256KiB)", "wfbp(2MiB)", "fp16 / sequential", "bf16 / wfbp(1MiB)"]))


# ------------------------------------------------------------------------------------------------ training


def prepare(sentence: str) -> Any:
    """Return a function that takes one training step."""
    import torch

    import laconic

    torch.manual_seed(0)
    model = build_model(*MODELS["2m"])
    model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=1e-3), sentence)
    draw = torch.Generator().manual_seed(laconic.rank())
    tokens = torch.randint(CHARACTERS, (2, SEQUENCES, LENGTH), generator=draw)

    def step() -> None:
        loss = torch.nn.functional.cross_entropy(model(tokens[0]).flatten(0, 1), tokens[1].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def work(todo: Work) -> None:
    """Do a task as one real worker."""
    import time

    import torch
    import torch.distributed as dist

    steps = {sentence: prepare(sentence) for sentence in todo.sentences}
    while RunConfig.current().profile_to is not None:
        steps["bsp"]()  # until the profiling run ends it
    for step in steps.values():
        for _ in range(WARM_UP):
            step()
    names = list(steps)
    for block in range(todo.blocks):
        seconds = {}
        for name in names[block % len(names) :] + names[: block % len(names)]:
            dist.barrier()
            for _ in range(todo.before):  # connections and caches are as the last sentence left them
                steps[name]()
            begin = time.perf_counter()
            for _ in range(todo.steps):
                steps[name]()
            mine = torch.tensor(time.perf_counter() - begin, dtype=torch.float64)
            dist.all_reduce(mine, dist.ReduceOp.MAX)
            seconds[name] = mine.item() / todo.steps
        report(seconds=seconds)


def predict(sentence: str, profile_path: Path, steps: int = 3) -> float:
    """Return the virtual seconds of one step, after as many warm-up steps as the real ones have."""
    import laconic
    from laconic.network.network_tree import Network
    from laconic.real.connect import connect
    from laconic.values.profile import Profile
    from laconic.virtual.compute import Compute

    profile = Profile.read(profile_path)

    def train() -> float:
        step = prepare(sentence)
        for _ in range(WARM_UP):
            step()
        begin = connect().clock_seconds()
        for _ in range(steps):
            step()
        return (connect().clock_seconds() - begin) / steps

    out = laconic.simulate(train, WORKERS, Network.from_profile(profile), Compute.from_profile(profile))
    return max(out.results)


# ------------------------------------------------------------------------------------------------ the parent


def start_all(net: ShapedNetwork, todo: Work, logs: Path, config: RunConfig) -> list[subprocess.Popen[bytes]]:
    store = (net.places[0].address, STORE_PORT)
    return [
        start(__file__, asdict(todo), rank, WORKERS, store, place, logs, config.to_env())
        for rank, place in enumerate(net.places)
    ]


def run(network: str, chosen: Sequence[str], blocks: int, console: Console) -> list[dict[str, Any]]:
    """Profile, predict and measure the rows of one network."""
    rate, delay = NETWORKS[network]
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        net = stack.enter_context(shaped(WORKERS, rate, delay))
        path = logs / "profile.json"
        workers: list[subprocess.Popen[bytes]] = []
        stack.callback(lambda: end(workers))
        console.print(f"{network}: profiling")
        profiling = RunConfig(
            profile_to=str(path), net_bits_per_second=rate, net_delay_seconds=delay, heartbeat_seconds=60
        )
        workers += start_all(net, Work(("bsp",), 0, 0, 0), logs, profiling)
        for worker in workers:
            worker.wait(600)
        if not path.exists():
            raise SystemExit("the profiling run left no profile: " + (logs / "0").read_text(errors="replace")[-2000:])
        workers.clear()
        console.print(f"{network}: predicting {len(chosen)} sentences")
        predicted = {sentence: predict(sentence, path) for sentence in chosen}
        steps = 1 if rate < 5e8 or delay else 3
        before = 3 if delay else 1
        console.print(f"{network}: measuring {blocks} blocks of {steps} steps")
        workers += start_all(net, Work(tuple(chosen), blocks, before, steps), logs, RunConfig(heartbeat_seconds=60))
        facts = reports_of(workers, logs)
        measured = [next(facts)["seconds"] for _ in range(blocks)]
        for worker in workers:
            worker.wait(60)
        rows = []
        for sentence in chosen:
            seen = sorted(block[sentence] for block in measured)
            rows.append(
                {
                    "network": network,
                    "sentence": sentence,
                    "measured": seen,
                    "predicted_seconds": predicted[sentence],
                    "ratio": predicted[sentence] / statistics.median(seen),
                }
            )
        rows[0]["profile"] = json.loads(path.read_text())
        return rows


def table(rows: Sequence[dict[str, Any]]) -> Table:
    made = Table(title=f"Step time, {WORKERS} real workers, and what the virtual engine predicted; 2 M parameters")
    for heading in ("network", "sentence", "measured ms [10–90 %]", "predicted ms", "predicted/measured"):
        made.add_column(heading, justify="left" if heading in ("network", "sentence") else "right")
    for row in rows:
        cuts = statistics.quantiles(row["measured"], n=10, method="inclusive")
        made.add_row(
            row["network"],
            row["sentence"],
            f"{1e3 * statistics.median(row['measured']):.1f} \\[{1e3 * cuts[0]:.1f}–{1e3 * cuts[-1]:.1f}]",
            f"{1e3 * row['predicted_seconds']:.1f}",
            f"{row['ratio']:.3f}",
        )
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description="Virtual step time over measured step time.")
    parser.add_argument("--only", action="append", default=[], help="cells whose network or sentence contains this")
    parser.add_argument("--blocks", type=int, default=BLOCKS)
    parser.add_argument("--output", type=Path, help="write profiles, predictions and all block times as JSON")
    parser.add_argument("--as-worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.as_worker:
        work(Work(**json.loads(args.as_worker)))
        return
    networks = [n for n in NETWORKS if n in args.only] or list(NETWORKS)
    words = [o for o in args.only if o not in NETWORKS]
    chosen = [s for s in sentences() if not words or any(o in s for o in words)]
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    console, rows = Console(), []
    for network in networks:
        rows += run(network, chosen, args.blocks, console)
        if args.output:
            args.output.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")
    console.print(machine())
    console.print(table(rows))
    errors = [abs(row["ratio"] - 1) for row in rows]
    console.print(f"{len(errors)} cells: mean absolute error {statistics.fmean(errors):.1%}, largest {max(errors):.1%}")


if __name__ == "__main__":
    main()
