"""SWARM and Oobleck on processes of which twenty are killed by SIGKILL while they train."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from torch import Tensor
from torch.testing import assert_close

from laconic.parallel.elastic.oobleck.plan import plan
from laconic.parallel.elastic.oobleck.trainer import OobleckTrainer
from laconic.parallel.elastic.sending import Send
from laconic.parallel.elastic.swarm.trainer import SwarmTrainer
from laconic.worker import ActorMessage
from tests.parallel.elastic.node_process import NodeProcesses
from tests.parallel.elastic.virtual_nodes import LAYERS, microbatches, states, undisturbed

KILLS = 20


@pytest.fixture
def nodes(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[NodeProcesses]:
    made = NodeProcesses(tmp_path, request.param, seed=0)
    yield made
    made.close()


def parameters(send: Send, holder_of: dict[int, int]) -> list[Tensor]:
    found: list[Tensor] = []
    for layer in range(LAYERS):
        tensors = send(holder_of[layer], ActorMessage("give", {"layer": layer}), False).tensors
        found += tensors[: len(tensors) // 2]
    return found


@pytest.mark.long
@pytest.mark.parametrize("nodes", [37], indirect=True)
def test_a_swarm_of_processes_survives_kills(nodes: NodeProcesses) -> None:
    fresh = count()
    trainer = SwarmTrainer([(0, 3), (3, 6)], nodes.send)
    trainer.begin(states(), [[nodes.start(next(fresh)) for _ in range(3)] for _ in range(2)])
    losses: list[float] = []
    while nodes.kills < KILLS:
        nodes.may_kill = True
        losses.append(trainer.step(microbatches(len(losses), 4)))
        nodes.may_kill = False
        assert trainer.counted == [Counter(range(4))] * 2
        for stage, wiring in enumerate(trainer.wirings):
            for _ in range(3 - len(wiring.peers)):
                trainer.join(nodes.start(next(fresh)), stage)
    expected, undisturbed_losses = undisturbed(len(losses))
    assert_close(losses, undisturbed_losses, rtol=1e-8, atol=1e-10)
    holder_of = {k: min(trainer.wirings[s].peers) for s, layers in enumerate(trainer.stages) for k in range(*layers)}
    assert_close(parameters(nodes.send, holder_of), expected, rtol=1e-7, atol=1e-9)


@pytest.mark.long
@pytest.mark.parametrize("nodes", [150], indirect=True)
def test_oobleck_on_processes_survives_kills(nodes: NodeProcesses) -> None:
    fresh = count()
    oobleck = plan([1.0, 2.0, 1.0, 1.0, 2.0, 1.0], 6, 2, failures=2, microbatches=5)
    trainer = OobleckTrainer(oobleck, nodes.send)
    trainer.begin(states(), [nodes.start(next(fresh)) for _ in range(6)])
    losses: list[float] = []
    while nodes.kills < KILLS:
        nodes.may_kill = True
        losses.append(trainer.step(microbatches(len(losses), 5)))
        nodes.may_kill = False
        assert trainer.counted == Counter(range(5))
        if len(trainer.nodes) < 6:
            trainer.join([nodes.start(next(fresh)) for _ in range(6 - len(trainer.nodes))])
    expected, undisturbed_losses = undisturbed(len(losses))
    assert_close(losses, undisturbed_losses, rtol=1e-8, atol=1e-10)
    held = oobleck.holders(trainer.pipelines)
    holder_of = {layer: node for node in trainer.pipelines[0] for layer in held[node]}
    assert_close(parameters(nodes.send, holder_of), expected, rtol=1e-7, atol=1e-9)
