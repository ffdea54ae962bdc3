"""What a large population costs beside training: a million clients with recorded times, and client memory on disk.

    python bench/population.py                       # both parts
    python bench/population.py --part million        # 1,000,000 clients, 100 selected a round, 50 rounds
    python bench/population.py --part memory         # SCAFFOLD of 10,000 clients with 100,000 parameters each, on disk

Seconds are those of the processor. Those of training are inside `train_client`; all others count as the population's,
what it takes to draw it and to load techniques included. Memory is the process's peak.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from laconic.federated import participation
from laconic.federated.client_memory import OnDisk
from laconic.federated.partition import Integers, Shards
from laconic.federated.population import Population, Trace
from laconic.federated.rule import Server
from laconic.federated.rules.scaffold import Scaffold
from laconic.federated.simulate import simulate
from laconic.federated.strategy import FederatedStrategy
from laconic.federated.task import Classification

DAY = 86_400.0


def peak_bytes() -> int:
    """Return the most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def drawn_trace(clients: int, days: int = 7, seed: int = 0) -> Trace:
    """Return a trace with one to three intervals a day for every client, at times of its own, as phones on chargers
    have; it began three days ago."""
    draw = np.random.default_rng(seed)
    each = draw.integers(1, 4, clients)
    starts = np.concatenate([[0], np.cumsum(each * days)])
    client = np.repeat(np.arange(clients), each * days)
    place = np.arange(starts[-1]) - starts[client]
    day, number = np.divmod(place, each[client])
    slot = DAY / each[client]
    begin = (day - 4 + draw.random(clients)[client]) * DAY + (number + 0.5 * draw.random(starts[-1])) * slot
    length = slot * draw.uniform(0.05, 0.45, starts[-1])
    return Trace(np.stack([begin, begin + length], axis=1), starts.astype(np.int64))


class Timed:
    """Counts the seconds of a function."""

    def __init__(self, function: Any) -> None:
        self.function, self.seconds = function, 0.0

    def __call__(self, *arguments: Any) -> Any:
        began = time.process_time()
        try:
            return self.function(*arguments)
        finally:
            self.seconds += time.process_time() - began


def small_task(features: int, samples: int, hidden: int = 0) -> Classification:
    """Return a task of two classes, with a linear model or one hidden layer."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(samples, features, generator=draw)
    y = (x.sum(1) > 0).long()

    def make() -> nn.Module:
        if not hidden:
            return nn.Linear(features, 2)
        return nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, 2))

    return Classification(make, x, y, x[:64], y[:64])


def measured(what: str, run: Any) -> None:
    """Run something, and print its seconds beside training and the most memory."""
    training = Timed(participation.train_client)
    participation.train_client = training  # type: ignore[assignment]
    began, since = time.process_time(), time.perf_counter()
    try:
        found: str = run()
    finally:
        participation.train_client = training.function
    whole, wall = time.process_time() - began, time.perf_counter() - since
    print(f"{what}: {whole - training.seconds:.1f} s beside {training.seconds:.1f} s of training, {found}")
    print(f"{what}: {wall:.1f} s by the clock on the wall")
    print(f"{what}: peak memory {peak_bytes() / 2**30:.2f} GiB", flush=True)


def million(clients: int, rounds: int) -> str:
    """Select 100 of a million clients in every round, by a trace of when each can be reached."""
    draw = np.random.default_rng(1)
    sizes = draw.integers(5, 40, clients)
    order = draw.integers(0, 4096, int(sizes.sum()))
    shards = Shards(order, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))
    population = Population(
        shards,
        sample_seconds=np.exp(draw.normal(np.log(0.01), 1.0, clients)),
        up_bits=np.exp(draw.normal(np.log(5e6), 1.0, clients)),
        down_bits=np.exp(draw.normal(np.log(2e7), 1.0, clients)),
        availability=drawn_trace(clients),
        lost=0.02,
    )
    outcome = simulate(
        small_task(32, 4096),
        population,
        "fedavg(clients=100) / topk(0.1)+ef / server(over=1.3, minimum=0.8)",
        rounds,
        rate=0.1,
    )
    taken = sum(len(step.clients) for step in outcome.steps)
    return f"{taken} reports in {len(outcome.steps)} rounds, {outcome.seconds:.0f} virtual seconds"


@dataclass(frozen=True)
class InTurn(Scaffold):
    """SCAFFOLD whose clients take part one after the other, so that all of them have a memory in the end."""

    def select(self, server: Server, reachable: Integers, count: int, draw: np.random.Generator) -> Integers:
        return np.sort((np.arange(count) + server.version * count) % len(reachable))


def memory(clients: int, rounds: int) -> str:
    """Let every client keep a control variate of 100,000 parameters in a file, and use some of them again."""
    task = small_task(100, 2000, hidden=971)
    parameters = sum(p.numel() for p in task.build(0).parameters())
    shards = Shards(np.tile(np.arange(2000), clients // 100 + 1)[: 20 * clients], np.arange(clients + 1) * 20)
    strategy = FederatedStrategy(InTurn(clients=clients // rounds))
    with tempfile.TemporaryDirectory() as folder:
        kept = OnDisk(Path(folder))
        outcome = simulate(task, Population(shards), strategy, rounds + 5, rate=0.1, client_memory=kept)
        files = list(Path(folder).iterdir())
        on_disk = sum(file.stat().st_size for file in files)
        taken = sum(len(step.clients) for step in outcome.steps)
        return f"{parameters} parameters, {taken} reports, {len(files)} clients with {on_disk / 1e9:.2f} GB on disk"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=["million", "memory"], help="default: both, each in a process of its own")
    parser.add_argument("--clients", type=int, help="default: 1,000,000 and 10,000")
    parser.add_argument("--rounds", type=int, default=50)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.part is None:
        for part in ("million", "memory"):
            subprocess.run([sys.executable, __file__, "--part", part, "--rounds", str(arguments.rounds)], check=True)
    elif arguments.part == "million":
        measured("million", lambda: million(arguments.clients or 1_000_000, arguments.rounds))
    else:
        measured("memory", lambda: memory(arguments.clients or 10_000, arguments.rounds))


if __name__ == "__main__":
    main()
