"""Training with real gradients on virtual workers while hundreds of them fail: as one undisturbed process trains."""

from __future__ import annotations

from collections import Counter
from itertools import count

import pytest
from torch.testing import assert_close

from laconic.errors import LaconicError
from laconic.parallel.elastic.oobleck.plan import plan
from laconic.parallel.elastic.oobleck.trainer import OobleckTrainer
from laconic.parallel.elastic.swarm.trainer import SwarmTrainer
from laconic.parallel.elastic.varuna_morphing import SectionProfile, VarunaTrainer, morph, tensor_to_pipeline_bytes
from tests.parallel.elastic.virtual_nodes import (
    LAYERS,
    MODEL,
    VirtualNodes,
    batch,
    microbatches,
    states,
    undisturbed,
)

FAILURES = 200
PROFILE = SectionProfile(
    LAYERS, {2: 1.0, 4: 1.5, 8: 3.2}, {2: 2.0, 4: 3.0, 8: 6.4}, {2: 0.1, 4: 0.2, 8: 0.4}, lambda d: 0.3 * (d - 1), 3
)


@pytest.mark.long
@pytest.mark.technique("swarm", check=2)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_swarm_counts_every_sample_once_while_peers_fail(seed: int) -> None:
    """A peer fails at every 50th call and another joins; 200 failures."""
    nodes, fresh = VirtualNodes(50, seed), count()
    clock = count()
    trainer = SwarmTrainer([(0, 2), (2, 3), (3, 6)], nodes.send, seed, lambda: float(next(clock)))
    trainer.begin(states(), [[nodes.start(next(fresh)) for _ in range(3)] for _ in range(3)])
    losses: list[float] = []
    while nodes.failures < FAILURES:
        losses.append(trainer.step(microbatches(len(losses), 5)))
        assert trainer.counted == [Counter(range(5))] * 3
        for stage, wiring in enumerate(trainer.wirings):
            for _ in range(3 - len(wiring.peers)):
                trainer.join(nodes.start(next(fresh)), stage)
    expected, undisturbed_losses = undisturbed(len(losses))
    assert trainer.retries > 50
    assert_close(losses, undisturbed_losses, rtol=1e-8, atol=1e-10)
    holder_of = {k: min(trainer.wirings[s].peers) for s, layers in enumerate(trainer.stages) for k in range(*layers)}
    assert_close(nodes.parameters(holder_of), expected, rtol=1e-7, atol=1e-9)
    assert sum(losses[-10:]) < 0.7 * sum(losses[:10])


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1])
def test_oobleck_trains_on_through_failures(seed: int) -> None:
    """A node fails at every 131st call; when fewer than six are left, three join; 200 failures."""
    nodes, fresh = VirtualNodes(131, seed), count()
    oobleck = plan([1.0, 2.0, 1.0, 1.0, 2.0, 1.0], 9, 2, failures=1, microbatches=5)
    trainer = OobleckTrainer(oobleck, nodes.send)
    trainer.begin(states(), [nodes.start(next(fresh)) for _ in range(9)])
    losses: list[float] = []
    while nodes.failures < FAILURES:
        losses.append(trainer.step(microbatches(len(losses), 5)))
        assert trainer.counted == Counter(range(5))
        if len(trainer.nodes) < 6:
            trainer.join([nodes.start(next(fresh)) for _ in range(3)])
    assert trainer.reconfigurations >= 200
    expected, undisturbed_losses = undisturbed(len(losses))
    assert_close(losses, undisturbed_losses, rtol=1e-8, atol=1e-10)
    held = oobleck.holders(trainer.pipelines)
    for pipeline in trainer.pipelines:
        holder_of = {layer: node for node in pipeline for layer in held[node]}
        assert_close(nodes.parameters(holder_of), expected, rtol=1e-7, atol=1e-9)
    assert sum(losses[-10:]) < 0.7 * sum(losses[:10])


@pytest.mark.technique("varuna", check=1)
def test_a_morph_changes_neither_batch_nor_order_nor_loss() -> None:
    """8 GPUs, then 6, then 8."""
    nodes = VirtualNodes(0, 0)
    everyone = [nodes.start(k) for k in range(8)]
    trainer, shapes = VarunaTrainer(PROFILE, batch, nodes.send, checkpoint_steps=4), []
    trainer.begin(states(), everyone)
    for until, used in ((10, everyone), (22, everyone[:6]), (40, everyone)):
        if trainer.nodes != used:
            trainer.change(used)
        shapes.append((trainer.morph.stages, trainer.morph.replicas))
        trainer.run(until)
    _, losses = undisturbed(40)
    assert len(set(shapes)) > 1 and shapes[0] == shapes[2]
    assert all(counted == Counter(range(23)) for counted in trainer.counted.values()) and len(trainer.counted) == 40
    assert_close([trainer.losses[k] for k in range(40)], losses, rtol=1e-8, atol=1e-10)


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1])
def test_varuna_goes_on_from_checkpoints_through_failures(seed: int) -> None:
    """A node fails at every 307th call; when fewer than five are left, four join; 200 failures."""
    nodes, fresh = VirtualNodes(307, seed), count()
    trainer = VarunaTrainer(PROFILE, batch, nodes.send, checkpoint_steps=2)
    trainer.begin(states(), [nodes.start(next(fresh)) for _ in range(8)])
    while nodes.failures < FAILURES:
        trainer.run(trainer.steps + 1)
        if len(trainer.nodes) < 5:
            trainer.change([*trainer.nodes, *(nodes.start(next(fresh)) for _ in range(4))])
    _, losses = undisturbed(trainer.steps)
    assert all(trainer.counted[k] == Counter(range(23)) for k in range(trainer.steps))
    found = [trainer.losses[k] for k in range(trainer.steps)]
    assert_close(found, losses, rtol=1e-8, atol=1e-10)


def test_the_fastest_division_is_taken() -> None:
    assert PROFILE.microbatch == 4
    for gpus in range(2, 13):
        found = morph(PROFILE, gpus, 96)
        assert found.stages * found.replicas <= gpus and LAYERS % found.stages == 0 and LAYERS // found.stages <= 3
        assert sorted(k for of in found.shares(96) for r in of for k in r) == list(range(96))
        for stages in (2, 3, 6):
            if stages <= gpus:
                replicas = min(gpus // stages, 24)
                slots = -(-24 // replicas) + stages - 1
                seconds = slots * (LAYERS // stages * 4.5 + 0.4) + LAYERS // stages * 0.3 * (replicas - 1)
                assert found.seconds <= seconds + 1e-9
    with pytest.raises(LaconicError, match="1 GPUs cannot hold 6 sections"):
        morph(PROFILE, 1, 96)


@pytest.mark.technique("varuna", check=3)
def test_pipelines_send_hundreds_of_times_less_than_tensor_parallelism() -> None:
    assert tensor_to_pipeline_bytes(54, 16) == pytest.approx(300, rel=0.02)
    assert tensor_to_pipeline_bytes(54, 8) == pytest.approx(6 * 54 * 2 * 7 / 8 / 2)
    assert tensor_to_pipeline_bytes(54, 1) == 0


def test_the_model_is_learnt_by_one_process() -> None:
    _, losses = undisturbed(200)
    assert MODEL.momentum and sum(losses[-10:]) < 0.7 * sum(losses[:10])
