"""What a federated sentence costs, without training: bytes of each client, and seconds of a round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from laconic.compression.none import Identity
from laconic.federated.layout import lengths
from laconic.federated.messages import NUMBER_BYTES, Wire
from laconic.federated.partition import Integers
from laconic.federated.population import Population
from laconic.federated.rehearsal import rehearse
from laconic.federated.strategy import FederatedStrategy
from laconic.federated.task import Task

_ROUNDS = 400


@dataclass(frozen=True)
class FederatedPlan:
    """What a sentence costs.

    - `parameters`: of the model.
    - `up_bytes`: what a client sends in a round, at most; numbers that a rule sends beside its vectors included.
    - `down_bytes`: what a client that takes part as often as all others is sent in a round, in the mean.
    - `whole_bytes`: what a client is sent that joins.
    - `step_seconds`: how long a step of the server takes, in the mean.
    - `step_bytes`: what all clients of a step send and receive.
    """

    parameters: int
    up_bytes: int
    down_bytes: float
    whole_bytes: int
    step_seconds: float
    step_bytes: float


def plan(
    task: Task, population: Population, strategy: str | FederatedStrategy, *, rate: float = 0.1, seed: int = 0
) -> FederatedPlan:
    """Predict what a sentence costs on a population, as at the first step of a run.

    A client's message is that of a client whose gradients are all zero; where a compressor's bytes depend on the
    values, the largest number counts. Clients count as reachable, and are selected at random.
    """
    made = FederatedStrategy.parse(strategy) if isinstance(strategy, str) else strategy
    rule, structure = made.rule, made.structure
    first = rehearse(made, task, population, rate, seed)
    server, received, sent, layout = first.server, first.received, first.sent, first.layout
    holders, draw = np.flatnonzero(population.shards.sizes), np.random.default_rng([seed, 0x91A5])
    up = Wire(made.compressor, layout, seed).most_bytes(lengths(sent.vectors))
    control = NUMBER_BYTES * len(sent.numbers)
    whole = sum(vector.nbytes for vector in received.values())
    downward = structure.downward()
    change = whole
    if not isinstance(downward, Identity):
        change = Wire(downward, layout, seed).most_bytes(lengths(received))

    selected, _ = structure.wanted(rule.clients)
    selected = rule.concurrency if rule.asynchronous else selected
    selected = min(selected, len(holders))
    missed = draw.geometric(min(1.0, (rule.clients if rule.asynchronous else selected) / len(holders)), _ROUNDS * 10)
    down = np.minimum(missed * float(change), whole)

    def seconds(clients: Integers) -> np.ndarray:
        used = [
            rule.work(server, int(c), population, rate).samples_used(len(population.shards[int(c)])) for c in clients
        ]
        trained = np.asarray(population.sample_seconds)[clients] * np.asarray(used)
        sends = 8 * (up + control) / np.asarray(population.up_bits)[clients]
        receives = 8 * draw.choice(down, len(clients)) / np.asarray(population.down_bits)[clients]
        return np.asarray(trained + sends + receives)

    if rule.asynchronous:
        some = draw.choice(holders, min(len(holders), _ROUNDS * 10), replace=False)
        step = float(seconds(some).mean()) * rule.clients / (selected * (1 - population.lost))
        messages = float(rule.clients)
    else:
        rounds = []
        for _ in range(_ROUNDS):
            times = seconds(draw.choice(holders, selected, replace=False))
            came = np.sort(times[draw.random(selected) >= population.lost])[: rule.clients]
            enough = len(came) == min(rule.clients, selected)
            last = float(came[-1]) if len(came) else 0.0
            rounds.append(last if enough or structure.deadline == np.inf else structure.deadline)
        step = float(np.minimum(rounds, structure.deadline).mean())
        messages = float(selected)
    mean_down = float(down.mean())
    return FederatedPlan(layout.numel, up + control, mean_down, whole, step, messages * (up + control + mean_down))
