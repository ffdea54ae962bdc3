"""What weights are gathered as, and the names of methods, on sharded models of virtual workers."""

from __future__ import annotations

from statistics import fmean

import pytest
import torch

import laconic
from tests.sharded.training import batch, sharded, trained, whole_parameters


@pytest.mark.parametrize(
    ("weights", "bits", "tolerance"),
    [
        ("int8(256)", 8, 0.03),
        ("cast_fp8", 8, 0.1),
        ("mx_block_codecs(mxfp8)", 8.25, 0.1),
        ("mx_block_codecs(mxfp4)+ef21", 4.25, 0.15),
    ],
)
@pytest.mark.long
def test_formats_of_weights_are_what_travels_and_train(weights: str, bits: float, tolerance: float) -> None:
    """Bytes beyond those of the gradients are the format's, and the loss of the last steps is near that of exact
    weights. Of differences the first gather is whole, so that a step's bytes are those of two lengths' difference."""
    runs = {
        steps: laconic.simulate(lambda steps=steps: trained("none", steps, weights=weights), 4).results  # type: ignore[misc]
        for steps in (20, 10)
    }
    exact = laconic.simulate(lambda: trained("none", 20), 4).results
    found, expected = (fmean(fmean(losses[-5:]) for losses, _, _ in run) for run in (runs[20], exact))
    assert found == pytest.approx(expected, rel=tolerance) and found != expected
    assert found < 0.8 * fmean(losses[0] for losses, _, _ in exact), "it learns"
    step, dense = (runs[20][0][2] - runs[10][0][2]) / 10, exact[0][2] / 20
    gradients = dense / 3  # of stage 3, whose weights are gathered twice
    gathers = 1 if "ef21" in weights else 2
    assert step - gradients == pytest.approx(gathers * gradients * bits / 32, rel=0.15), "scales and padding beside"


@pytest.mark.long
def test_names_of_loco_are_the_chain_that_they_stand_for() -> None:
    def run(strategy: str) -> list[float]:
        return laconic.simulate(lambda: trained(strategy, 8), 4).results[0][0]

    assert run("loco_adaptor") == run("loco") == run("strided_bits(4, 128)+loco") != run("strided_bits(4, 128)")


def test_coded_shards_train_between_coded_replicas() -> None:
    """Two replicas of two shards, all that is sent is coded, and workers end equal to the bit."""

    def run(strategy: str, weights: str | None) -> tuple[list[float], list[torch.Tensor], float]:
        mesh = laconic.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "shard"))
        model = sharded(mesh["shard"])
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        model, optimizer = laconic.distribute(model, optimizer, strategy, mesh, weights=weights)
        worker = optimizer.session.worker  # type: ignore[attr-defined]
        losses = []
        for step in range(30):
            x, y = batch(laconic.rank(), step)
            loss = (model(x) - y).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        group = worker.adopt(mesh.get_group("shard"))
        whole = whole_parameters(model, lambda x: group.all_gather(x, control=1.0).wait())
        return losses, whole, worker.ledger.sent_bytes()

    coded = laconic.simulate(
        lambda: run("[strided_bits(4, 128)+loco]@shard > [int8(256)]@replica", "int8(256)"), 4
    ).results
    plain = laconic.simulate(lambda: run("[none]@shard > [bsp]@replica", None), 4).results
    for found in coded[1:]:
        assert all(torch.equal(a, b) for a, b in zip(coded[0][1], found[1], strict=True))
    ends, expected = (fmean(fmean(losses[-5:]) for losses, _, _ in runs) for runs in (coded, plain))
    assert ends == pytest.approx(expected, rel=0.05) and ends < 0.8 * fmean(losses[0] for losses, _, _ in plain)
    assert coded[0][2] < plain[0][2] / 3
