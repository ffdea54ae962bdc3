"""Every synchronisation rule on one task: seconds, bytes and gradients to a target loss, under unequal workers.

    python bench/rules.py                    # quick: one seed, three learning rates; says so above the table
    python bench/rules.py --protocol         # seven rates, chosen on seeds 0-1, reported on seeds 2-6
    python bench/rules.py --only bsp,asp,ssp --settings permanent

Eight virtual workers train a small network on scikit-learn's digits, with real gradients and a virtual clock. A step
computes for 31 ms; the links are such that averaging takes two thirds of that. Three settings: equal workers, every
worker three times slower in a fifth of its steps, one worker five times slower for ever. The target is what tuned
`bsp` reaches with 1,280 gradients, seed by seed; every rule may make twice as many to get there, and its loss is shown
after as many. Learning rates are chosen with equal workers, by the loss after 1,280 gradients. Local rules stand beside
gradient accumulation with the same bytes.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from laconic.experiments.statistics import Spread, bootstrap_ratio

WORKERS, STEPS, BATCH, EVERY = 8, 160, 8, 2
LONGER = 2  # how many times as many gradients as bsp a rule may make on its way to the target
FORWARD, BACKWARD, STEP = 0.01, 0.02, 0.001
BITS_PER_SECOND = 8e6
RATES = tuple(0.5 * 2.0**k for k in range(-3, 4))
QUICK_RATES = (0.25, 0.5, 1.0)
SETTINGS: dict[str, dict[str, Any]] = {
    "equal": {},
    "random": {"straggling": (0.2, 3.0)},
    "permanent": {"slowness": (1.0,) * 7 + (5.0,)},
}


@dataclass(frozen=True)
class Rule:
    """A row. `equal`: every worker makes as many steps; otherwise whoever is ready makes the next gradient."""

    name: str
    sentence: str
    equal: bool = True
    scale: float = 1.0  # of its grid of learning rates, where servers step with another optimizer than the others


SERVED = "none / ps(shards=8)"
RULES = (
    Rule("bsp", "bsp"),
    Rule("bsp, 16 bit", "bsp / fp16"),
    Rule("bsp on a server", f"bsp / {SERVED}"),
    Rule("accumulate 4", "grad_accumulation(4)"),
    Rule("accumulate 8", "grad_accumulation(8)"),
    Rule("local 4", "local(4)"),
    Rule("local 8", "local(8)"),
    Rule("post-local", "post_local_sgd"),
    Rule("adacomm", "adacomm"),
    Rule("slowmo", "slowmo"),
    Rule("diloco 8", "diloco(8)"),
    Rule("overlap local", "overlap_local_sgd"),
    Rule("asp", f"asp / {SERVED}", equal=False),
    Rule("asp, 1/(1+tau)", f"asp(staleness=inverse) / {SERVED}", equal=False),
    Rule("softsync", f"staleness_aware_lr / {SERVED}", equal=False),
    Rule("ssp 3", f"ssp(3) / {SERVED}", equal=False),
    Rule("downpour", f"downpour(warm_start=100) / {SERVED}", equal=False, scale=1 / 64),
    Rule("hogwild", "hogwild", equal=False),
    Rule("ps+", f"ps_plus / {SERVED}", equal=False),
    Rule("adaptive revision", f"adaptive_revision / {SERVED}", equal=False),
    Rule("r2p", f"r2p / {SERVED}", equal=False),
    Rule("hsp", f"hsp / {SERVED}"),
    Rule("osp", f"osp / {SERVED}"),
    Rule("easgd 4", f"easgd(4) / {SERVED}", equal=False),
    Rule("lag", f"lag / {SERVED}"),
    Rule("fsp", f"fsp / {SERVED}", equal=False),
    Rule("gssp", f"gssp / {SERVED}", equal=False),
    Rule("a2s", f"a2s / {SERVED}", equal=False),
    Rule("ashl", f"ashl / {SERVED}", equal=False),
    Rule("dpsgd", "dpsgd"),
    Rule("d2", "d2"),
    Rule("detsgrad", "detsgrad"),
    Rule("sgp", "sgp"),
    Rule("matcha", "matcha"),
    Rule("ad-psgd", "ad_psgd", equal=False),
)


@dataclass(frozen=True)
class Run:
    """One training: its losses with their times, bytes per worker and gradients."""

    curve: list[tuple[float, float, int, float]]
    waited_share: float
    error: str = ""

    @property
    def final(self) -> float:
        """Return the loss after as many gradients as bsp makes: the mean of five values, since single ones are
        noisy."""
        last = [row[3] for row in self.curve if row[2] <= STEPS * WORKERS][-5:]
        return sum(last) / len(last) if last else math.inf

    def to(self, target: float) -> tuple[float, float, int] | None:
        """Return seconds, bytes and gradients when the loss is first at most this, for three evaluations in a row."""
        good = [row[3] <= target for row in self.curve]
        for i in range(len(good) - 2):
            if all(good[i : i + 3]):
                return self.curve[i][:3]
        return None


def train(task: tuple[str, bool, float, int, str, int]) -> Run:
    """Train in a process of the pool."""
    sentence, equal, rate, seed, setting, times = task
    import torch
    from sklearn.datasets import load_digits
    from torch.nn import functional

    import laconic
    from laconic.network.network_tree import Network
    from laconic.real.connect import connect
    from laconic.virtual.compute import Compute, Stragglers

    torch.set_num_threads(1)
    digits = load_digits()
    images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    training, held = order[500:], order[:500]
    curve: list[tuple[float, float, int, float]] = []
    made, waited, ended = [0], [0.0], [0.0]

    def body() -> None:
        worker: Any = connect()
        rank = laconic.rank()
        mine = training[rank::WORKERS]
        draw = torch.Generator().manual_seed(1000 * seed + rank)
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=rate)
        model, optimizer = laconic.distribute(model, optimizer, sentence)
        step = 0
        while True:
            if equal and step >= STEPS * times:
                break
            if not equal:
                worker.catch_up()  # whoever is behind makes its gradients first
                if made[0] >= STEPS * WORKERS * times:
                    break
            chosen = mine[torch.randint(len(mine), (laconic.batch_size(BATCH),), generator=draw)]
            loss = functional.cross_entropy(model(images[chosen]), labels[chosen])
            laconic.log(loss=loss.item())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            made[0] += 1
            if rank == 0 and step % EVERY == 0:
                with torch.no_grad():
                    value = functional.cross_entropy(model(images[held]), labels[held]).item()
                curve.append((worker.clock_seconds(), worker.ledger.sent_bytes(), made[0], value))
        waited[0] += worker.waited_seconds
        ended[0] += worker.clock_seconds()

    how = SETTINGS[setting]
    straggling = Stragglers(*how["straggling"]) if "straggling" in how else None
    compute = Compute(FORWARD, BACKWARD, STEP, how.get("slowness", (1.0,)), straggling, seed=seed)
    try:
        laconic.simulate(body, WORKERS, Network.flat(WORKERS, BITS_PER_SECOND, 1e-4), compute, seed)
    except Exception as error:  # a rule that fails is a line of the table, not the end of it
        return Run(curve, 0.0, f"{type(error).__name__}: {error}")
    return Run(curve, waited[0] / ended[0])


def tuned(rules: Sequence[Rule], rates: Sequence[float], seeds: Sequence[int], pool: Any) -> dict[str, float]:
    """Return each rule's best rate by the final loss with equal workers, in the mean over the seeds; where it lies at
    an end of the grid, the grid is extended there."""
    losses: dict[str, dict[float, float]] = {rule.name: {} for rule in rules}
    asked = {rule.name: [rule.scale * rate for rate in rates] for rule in rules}
    while any(asked.values()):
        tasks = [(rule, rate, seed) for rule in rules for rate in asked[rule.name] for seed in seeds]
        runs = pool.map(train, [(rule.sentence, rule.equal, rate, seed, "equal", 1) for rule, rate, seed in tasks])
        for done, ((rule, rate, _), run) in enumerate(zip(tasks, runs, strict=True), 1):
            final = run.final if math.isfinite(run.final) and not run.error else 1e9
            losses[rule.name][rate] = losses[rule.name].get(rate, 0.0) + final / len(seeds)
            progress("choosing learning rates", done, len(tasks))
        asked = {name: further(known) for name, known in losses.items()}
    return {name: min(known, key=lambda rate: known[rate]) for name, known in losses.items()}


def further(losses: dict[float, float]) -> list[float]:
    """Return the rate beyond the end of the grid at which the best lies, if it does and if that rate is not absurd."""
    best = min(losses, key=lambda rate: losses[rate])
    if losses[best] >= 1e9 or not 1e-4 < best < 1e2:
        return []
    return [best / 2] if best == min(losses) else [best * 2] if best == max(losses) else []


def table(
    rules: Sequence[Rule], settings: Sequence[str], rates: dict[str, float], seeds: Sequence[int], pool: Any
) -> list[dict[str, Any]]:
    tasks = [(rule, setting, seed) for setting in settings for rule in rules for seed in seeds]
    found: dict[tuple[str, str], dict[int, Run]] = {}
    runs = pool.map(
        train,
        [
            (r.sentence, r.equal, rates[r.name], seed, setting, 1 if r.name == "bsp" else LONGER)
            for r, setting, seed in tasks
        ],
    )
    for done, ((rule, setting, seed), run) in enumerate(zip(tasks, runs, strict=True), 1):
        found.setdefault((rule.name, setting), {})[seed] = run
        progress("measuring", done, len(tasks))
    lines = []
    for setting in settings:
        base = found["bsp", setting]
        target = {seed: base[seed].final for seed in seeds}
        theirs = {seed: there[0] for seed, run in base.items() if (there := run.to(target[seed])) is not None}
        for rule in rules:
            mine = found[rule.name, setting]
            reached = {seed: there for seed, run in mine.items() if (there := run.to(target[seed])) is not None}
            seconds = {seed: there[0] for seed, there in reached.items()}
            sooner = bootstrap_ratio(theirs, seconds) if len(reached) == len(seeds) else None
            loss = bootstrap_ratio({s: r.final for s, r in mine.items()}, target)
            lines.append(
                {
                    "setting": setting,
                    "rule": rule.name,
                    "sentence": rule.sentence,
                    "rate": rates[rule.name],
                    "reached": f"{len(reached)}/{len(seeds)}",
                    "seconds": mean(there[0] for there in reached.values()),
                    "sooner": shown(sooner),
                    "megabytes": mean(there[1] / 1e6 for there in reached.values()),
                    "gradients": mean(float(there[2]) for there in reached.values()),
                    "loss": shown(loss),
                    "waiting": mean(run.waited_share for run in mine.values()),
                    "error": next((run.error for run in mine.values() if run.error), ""),
                }
            )
    return lines


def mean(values: Iterable[float]) -> float | None:
    given = list(values)
    return sum(given) / len(given) if given else None


def shown(spread: Spread | None) -> str:
    if spread is None:
        return "–"
    around = "" if math.isnan(spread.low) else f" [{spread.low:.2f}–{spread.high:.2f}]"
    return f"{spread.middle:.2f}{around}"


def progress(what: str, done: int, total: int) -> None:
    if sys.stderr.isatty() or done % 25 == 0 or done == total:
        print(f"\r{what}: {done}/{total}", end="\n" if done == total else "", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--protocol", action="store_true", help="seven rates on seeds 0-1, five other seeds reported")
    parser.add_argument("--only", default="", help="names of rules, separated by commas; bsp is always there")
    parser.add_argument("--settings", default=",".join(SETTINGS), help="some of equal, random, permanent")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--csv", type=Path, help="write the table there too")
    args = parser.parse_args()
    wanted = set(filter(None, args.only.split(","))) | {"bsp"}
    rules = [rule for rule in RULES if len(wanted) == 1 or rule.name in wanted]
    rates, autotuner, reporting = (RATES, (0, 1), (2, 3, 4, 5, 6)) if args.protocol else (QUICK_RATES, (0,), (2,))
    with ProcessPoolExecutor(args.processes) as pool:
        best = tuned(rules, rates, autotuner, pool)
        lines = table(rules, args.settings.split(","), best, reporting, pool)
    if not args.protocol:
        print("QUICK: one seed, three learning rates. Not by the protocol.")
    averaging = 2 * (WORKERS - 1) / WORKERS * 2410 * 4 * 8 / BITS_PER_SECOND
    print(f"{WORKERS} virtual workers, digits, {STEPS * WORKERS} gradients in all, r = {averaging / 0.031:.2f} (bsp)")
    print("sooner: bsp's seconds to the target over this rule's, 95 % interval; loss: final over bsp's; waiting: share")
    head = ("rule", "rate", "reached", "seconds", "sooner", "MB sent", "gradients", "loss", "waiting")
    for setting in dict.fromkeys(line["setting"] for line in lines):
        print(f"\n{setting}: {json.dumps(SETTINGS[setting])}")
        print("{:20}{:>7}{:>9}{:>9}  {:20}{:>9}{:>11}  {:18}{:>8}".format(*head))
        for line in (line for line in lines if line["setting"] == setting):
            numbers = {k: "–" if line[k] is None else f"{line[k]:.2f}" for k in ("seconds", "megabytes", "waiting")}
            gradients = "–" if line["gradients"] is None else f"{line['gradients']:.0f}"
            print(
                f"{line['rule']:20}{line['rate']:>7g}{line['reached']:>9}{numbers['seconds']:>9}  {line['sooner']:20}"
                f"{numbers['megabytes']:>9}{gradients:>11}  {line['loss']:18}{numbers['waiting']:>8}"
                + (f"  FAILED {line['error']}" if line["error"] else "")
            )
    if args.csv is not None:
        with args.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(lines[0]))
            writer.writeheader()
            writer.writerows(lines)


if __name__ == "__main__":
    main()
