"""How jobs train and who runs first, chosen together and each alone: strategies and policies on one trace.

    python bench/cluster_strategies.py                    # 120 jobs on 16 hosts of 4 V100s, 10 Gb/s between hosts
    python bench/cluster_strategies.py --between 100Gbit --seeds 5

Jobs train models of the zoo; how fast they are on a placement is the planner's price of a step there. Each worker has
the same batch whatever their number, and samples count alike. Rows are strategies, for all jobs or the fastest of them
on every placement; columns are policies; cells are mean completion times over the default's, `bsp` under `fifo`, as
medians of the seeds. Below: the best strategy under `fifo`, the best policy under `bsp`, both of these together, and
the best cell. The strategies are such as were measured to lose at most 1.5 % of the loss on language models
(docs/losses.md).
"""

from __future__ import annotations

import argparse
import random
from dataclasses import replace

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from laconic.cluster.hosts import Cluster
from laconic.cluster.job import Job
from laconic.cluster.replay import Costs, replay
from laconic.language.grammar import parse_policy
from laconic.planner.codec_times import codecs_on
from laconic.planner.planned_job import HostLinks, PlannedSteps, PlannedTraining
from laconic.planner.sources import subject_of
from laconic.units import bits_per_second

BATCHES = {"ResNet-50": 64, "VGG-16": 32, "BERT-Base": 8, "BERT-Large": 4, "GPT-2": 4, "GPT-2-Medium": 2}
STRATEGIES = ("bsp", "bsp / cast_bf16", "bsp / power_sgd(32)+ef")
POLICIES = ("fifo", "fifo(backfill=true)", "srtf", "tiresias([7200])", "afs")
DEFAULT, ANY = "bsp", "the fastest on each placement"


def steps_of(links: HostLinks) -> dict[str, dict[str, PlannedSteps]]:
    """Return what steps take, by strategy and by model."""
    ways = {one: (one,) for one in STRATEGIES} | {ANY: STRATEGIES}
    found: dict[str, dict[str, PlannedSteps]] = {way: {} for way in ways}
    for name, batch in BATCHES.items():
        subject = subject_of(name, (), 1, "", "v100", batch)
        assert subject.gpu is not None
        for way, strategies in ways.items():
            found[way][name] = PlannedSteps(subject.profile, strategies, links, codecs_on(subject.gpu))
    return found


def drawn(steps: dict[str, PlannedSteps], count: int, seed: int, arrivals: float) -> list[Job]:
    """Return jobs of one to 16 GPUs, some minutes to some hours long with these steps on whole hosts."""
    draw, made, now = random.Random(seed), list[Job](), 0.0
    for number in range(count):
        name, gpus = draw.choice(list(BATCHES)), draw.choice([1, 1, 2, 4, 4, 8, 8, 16])
        seconds = min(draw.lognormvariate(7.3, 1.2), 86400.0)
        asked = steps[name].on([min(gpus, 4)] * max(1, gpus // 4)).price.seconds
        training = PlannedTraining(gpus * seconds * steps[name].profile.model.seconds / asked, steps[name])
        made.append(Job(f"job{number}", now, gpus, training, least=1, most=32, kind=name))
        now += draw.expovariate(arrivals / 3600)
    return made


def completion(jobs: list[Job], steps: dict[str, PlannedSteps], policy: str, hosts: int) -> float:
    """Return the mean completion time of jobs that train with other steps."""
    trained = [replace(job, progress=PlannedTraining(job.progress.work, steps[job.kind])) for job in jobs]
    outcome = replay(trained, Cluster.uniform(hosts, 4), parse_policy(policy), Costs(start=10.0, restart=30.0))
    return outcome.mean_completion_time


def main() -> None:
    parser = argparse.ArgumentParser(description="Strategies and policies, chosen together and each alone.")
    parser.add_argument("--between", default="10Gbit", help="the rate of a host's link (default 10Gbit)")
    parser.add_argument("--jobs", type=int, default=120, help="how many (default 120)")
    parser.add_argument("--hosts", type=int, default=16, help="of four GPUs (default 16)")
    parser.add_argument("--arrivals", type=float, default=20.0, help="an hour (default 20)")
    parser.add_argument("--seeds", type=int, default=3, help="of the trace (default 3)")
    given = parser.parse_args()
    steps = steps_of(HostLinks(1.2e12, bits_per_second(given.between), 20e-6))
    cells = np.zeros((given.seeds, len(steps), len(POLICIES)))
    for seed in track(range(given.seeds), "traces"):
        jobs = drawn(steps[DEFAULT], given.jobs, seed, given.arrivals)
        for row, way in enumerate(steps):
            for column, policy in enumerate(POLICIES):
                cells[seed, row, column] = completion(jobs, steps[way], policy, given.hosts)
    ratios = np.median(cells / cells[:, :1, :1], axis=0)
    made = Table("strategy", *POLICIES, title=f"mean completion over {DEFAULT}'s under {POLICIES[0]}, {given.between}")
    for way, row in zip(steps, ratios, strict=True):
        made.add_row(way, *(f"{one:.3f}" for one in row))
    Console(width=140).print(made)
    single = len(STRATEGIES)
    strategy, policy = int(ratios[:single, 0].argmin()), int(ratios[0].argmin())
    best = np.unravel_index(ratios.argmin(), ratios.shape)
    apart, together = ratios[strategy, policy], ratios[best]
    print(
        f"strategy alone ({STRATEGIES[strategy]}): {ratios[strategy, 0]:.3f}; policy alone ({POLICIES[policy]}): "
        f"{ratios[0, policy]:.3f}; both, each chosen alone: {apart:.3f}; together ({list(steps)[best[0]]}, "
        f"{POLICIES[best[1]]}): {together:.3f}, {100 * (1 - together / apart):.1f} % less"
    )


if __name__ == "__main__":
    main()
