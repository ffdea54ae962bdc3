"""Fault injection: kills, restarts, cut links and delays, after which no acknowledged update may be lost.

    python bench/chaos.py                      # 100 virtual runs and 10 real ones
    python bench/chaos.py --virtual 500 --real 0

Each virtual run draws a rule, a network with its delays, and a sequence of faults: workers that die and come back,
servers that are killed and return from a snapshot, links that are cut for a while. All together make as many gradients
as without. Every push carries a tag; the server's list of tags is part of its snapshot, as the parameters are. At the
end every tag that was acknowledged must be on every shard's list, exactly once, and the loss must lie where those of
undisturbed runs of the same setting lie (mean and four standard deviations of five). The real runs start `laconic run
--servers 2` and send SIGKILL to processes of it, drawn at random.

The fault model: any number of kills, except that a worker and a server do not die within one snapshot interval of each
other, since then writes that were acknowledged to that worker and not yet saved by the server are lost.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import functional

import laconic
from laconic.architecture.server.actor import Pull, Push
from laconic.architecture.server.store import Store
from laconic.network.network_tree import Network
from laconic.real.connect import connect
from laconic.registry import technique
from laconic.sync.asp import ASP
from laconic.sync.ssp import SSP
from laconic.virtual.compute import Compute, Stragglers
from laconic.virtual.membership import Event
from laconic.virtual.rpc import Fault, Faults
from laconic.worker import Field

WORKERS, SERVERS, STEPS = 4, 2, 60
HEARTBEAT_SECONDS, SAVE_EVERY = 0.4, 8
QUIET_SECONDS = 1.5  # between a worker's death and a server's: its last writes are saved by then


class Tagging:
    """A rule that also lists the tags of the pushes it applied, in state that snapshots keep."""

    def receive(self, store: Store, push: Push) -> Mapping[str, Field]:
        store.memory.setdefault("tags", []).append(f"{push.worker}/{push.fields['tag']}")
        return super().receive(store, push)  # type: ignore[misc,no-any-return]

    def readable(self, store: Store, pull: Pull) -> bool:
        return pull.fields.get("wants") == "tags" or super().readable(store, pull)  # type: ignore[misc]

    def view(self, store: Store, pull: Pull) -> Any:
        if pull.fields.get("wants") == "tags":
            return {"tags": store.memory["tags"]}, ()
        return super().view(store, pull)  # type: ignore[misc]


def register() -> None:
    """Register `tagged_asp` and `tagged_ssp`: the rules themselves, with a tag on every push."""
    from dataclasses import dataclass as plain

    @technique("tagged_asp", paper="this bench's own")
    @plain(frozen=True)
    class TaggedASP(Tagging, ASP):
        """ASP whose pushes are counted."""

    @technique("tagged_ssp", paper="this bench's own")
    @plain(frozen=True)
    class TaggedSSP(Tagging, SSP):
        """SSP whose pushes are counted."""


@dataclass
class Account:
    """The tags that were acknowledged to the workers, and the tags that the servers hold."""

    acknowledged: list[str] = field(default_factory=list)
    lost: int = 0
    twice: int = 0
    loss: float = math.inf
    seconds: float = 0.0
    error: str = ""


@dataclass(frozen=True)
class Story:
    """A planned run: a rule, a network, and the faults in it."""

    sentence: str
    latency_seconds: float
    straggling: float
    events: tuple[Event, ...]
    faults: tuple[Fault, ...]

    @classmethod
    def draw(cls, seed: int) -> Story:
        dice = random.Random(seed)
        sentence = dice.choice(["tagged_asp", "tagged_ssp(2)", "tagged_ssp(0)", "tagged_asp(staleness=inverse)"])
        horizon = STEPS * 0.031
        faults, events, deaths = [], [], []
        for _ in range(dice.randint(0, 3)):
            begin = dice.uniform(0.1, horizon)
            worker = dice.choice([None, None, *range(WORKERS)])
            faults.append(Fault(begin, begin + dice.uniform(0.02, 0.6), dice.randrange(SERVERS), worker))
            deaths += [begin] if worker is None else []
        for worker in dice.sample(range(1, WORKERS), dice.randint(0, 2)):
            at = dice.uniform(0.1, horizon)
            if all(abs(at - death) > QUIET_SECONDS for death in deaths):
                events.append(Event(at, worker, "die"))
                if dice.random() < 0.7:
                    events.append(Event(at + HEARTBEAT_SECONDS * dice.uniform(0.2, 3), worker, "return"))
        latency = dice.choice([1e-4, 1e-3, 2e-2])
        return cls(f"{sentence} / none / ps(shards=2)", latency, dice.choice([0.0, 0.2]), tuple(events), tuple(faults))

    def quiet(self) -> Story:
        return Story(self.sentence, self.latency_seconds, self.straggling, (), ())


class Tagged:
    """A small regression on one worker, whose every push carries a tag."""

    def __init__(self, sentence: str, rank: int, life: int, seed: int) -> None:
        torch.manual_seed(0)
        model: Any = torch.nn.Linear(8, 3)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.2)
        self._model, self._optimizer = laconic.distribute(model, optimizer, sentence)
        self._draw = torch.Generator().manual_seed(seed)
        self.server: Any = self._optimizer.session.partitions[0].tiers[0].server
        self._in_flight: list[tuple[str, Any]] = []
        push = self.server.push

        def tagging(tensors: Any, step: int = 0, **fields: Any) -> Any:
            self._in_flight.append((f"{rank}/{life}.{step}", push(tensors, step, tag=f"{life}.{step}", **fields)))
            return self._in_flight[-1][1]

        self.server.push = tagging

    def step(self) -> None:
        x = torch.randn(16, 8, generator=self._draw)
        functional.cross_entropy(self._model(x), x[:, :3].argmax(1)).backward()
        self._optimizer.step()
        self._optimizer.zero_grad()

    def acknowledged(self) -> list[str]:
        """Return the tags of pushes that have been answered since the last call."""
        answered = [(tag, handle) for tag, handle in self._in_flight if handle.done()]
        self._in_flight = [push for push in self._in_flight if push not in answered]
        return [tag for tag, _ in answered]

    def rest(self) -> list[str]:
        """Wait for all other pushes, and return their tags."""
        return [tag for tag, handle in self._in_flight if handle.wait()]

    def finish(self) -> float:
        """Return the loss of the server's model."""
        laconic.finish(self._model, self._optimizer)
        x = torch.randn(2000, 8, generator=torch.Generator().manual_seed(7))
        with torch.no_grad():
            return functional.cross_entropy(self._model(x), x[:, :3].argmax(1)).item()


def run(story: Story, seed: int) -> Account:
    """Run a story on the virtual engine, with real gradients of a small regression."""
    account = Account()
    tags: dict[str, list[str]] = {}
    lives: Counter[int] = Counter()
    made = [0]

    def body() -> None:
        worker: Any = connect()
        rank = laconic.rank()
        life = lives[rank]
        lives[rank] += 1
        task = Tagged(story.sentence, rank, life, 1000 * seed + 10 * rank + life)
        while made[0] < STEPS * WORKERS:
            task.step()
            made[0] += 1
            worker.catch_up()  # whoever is behind makes its gradients first
            account.acknowledged += task.acknowledged()
        account.acknowledged += task.rest()
        account.loss = task.finish()
        account.seconds = worker.clock_seconds()

    network = Network.flat(WORKERS + SERVERS, 1e8, story.latency_seconds)
    straggling = Stragglers(story.straggling, 3.0) if story.straggling else None
    compute = Compute(0.01, 0.02, 0.001, straggling=straggling, seed=seed)
    try:
        out = laconic.simulate(
            body, WORKERS, network, compute, seed, events=story.events, heartbeat_seconds=HEARTBEAT_SECONDS,
            servers=SERVERS, faults=Faults(story.faults, retry_seconds=0.1, snapshot_every=SAVE_EVERY),
        )  # fmt: skip
    except Exception as error:
        account.error = f"{type(error).__name__}: {error}"
        return account
    for address, hosted in out.rpc.hosted_actors.items():
        machine: Any = hosted.inbox.machine
        tags[address] = machine.store.memory.get("tags", [])
    for listed in tags.values():
        counts = Counter(listed)
        account.lost += sum(tag not in counts for tag in account.acknowledged)
        account.twice += sum(n > 1 for n in counts.values())
    return account


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--virtual", type=int, default=100)
    parser.add_argument("--real", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    register()
    bad = virtual(args.virtual, args.seed) if args.virtual else 0
    if args.real:
        from chaos_real import real

        bad += real(args.real, args.seed)
    return 1 if bad else 0


def virtual(runs: int, seed: int) -> int:
    acknowledged = lost = twice = outside = failed = kills = 0
    calms: dict[Story, list[float]] = {}
    for k in range(runs):
        story = Story.draw(seed + k)
        account = run(story, seed + k)
        calm = calms.setdefault(story.quiet(), [])
        if not calm:
            calm += [run(story.quiet(), 10_000 + j).loss for j in range(5)]
        highest = statistics.mean(calm) + 4 * statistics.stdev(calm)
        kills += len(story.faults) + len(story.events)
        acknowledged, lost, twice = acknowledged + len(account.acknowledged), lost + account.lost, twice + account.twice
        failed += bool(account.error)
        off = not account.error and account.loss > highest
        outside += off
        if account.error or account.lost or account.twice or off:
            print(f"\nrun {seed + k}: {story}\n  {account.error or account.loss} (calm {calm}) lost {account.lost}")
        print(f"\rvirtual {k + 1}/{runs}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    print(
        f"virtual: {runs} runs, {kills} troubles, {acknowledged} updates acknowledged, {lost} lost, {twice} applied "
        f"twice, {failed} failed, {outside} with a loss above the undisturbed runs' interval"
    )
    return lost + twice + failed + outside


if __name__ == "__main__":
    sys.exit(main())
