"""Layers of experts, whole and cut among virtual workers."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import laconic
from laconic.errors import LaconicError
from laconic.parallel.device_groups import groups_of
from laconic.parallel.experts.exchange import Exchange
from laconic.parallel.experts.layer import MixtureOfExperts, balance_loss
from laconic.parallel.experts.routing import choose, kept_counts, places_by_expert
from laconic.parallel.experts.shard import shard_experts
from laconic.parallel.message_code import MessageCode
from laconic.real.connect import connect
from laconic.worker import Kind
from tests.parallel.experts.training import EXPERTS, WIDTH, Model, agrees, data, gradients


def cut(counts: list[int], **options: Any) -> list[dict[str, Any]]:
    def device() -> dict[str, Any]:
        mesh = laconic.init_device_mesh("cpu", (len(counts),), mesh_dim_names=("ep",))
        return gradients(counts, laconic.rank(), mesh, **options)

    return laconic.simulate(device, len(counts)).results


def whole(counts: list[int], **options: Any) -> dict[str, Any]:
    (found,) = laconic.simulate(lambda: gradients(counts, None, None, **options), 1).results
    return dict(found)


@pytest.mark.parametrize("counts", [[5, 5], [7, 4], [3, 3, 3, 3], [5, 0, 9, 2]])
@pytest.mark.parametrize("options", [{"top": 1}, {}, {"capacity_factor": 0.6}, {"avoid": (0, 1, 2, 3, 5)}])
@pytest.mark.parametrize("seed", [0, 1])
def test_cut_experts_are_the_whole_layer(counts: list[int], options: dict[str, Any], seed: int) -> None:
    expected = whole(counts, model_seed=seed, **options)
    agrees(cut(counts, model_seed=seed, **options), expected, 1e-6)
    assert (expected["dropped"] > 0) == ("capacity_factor" in options)
    if "avoid" in options:  # experts without tokens have gradients that are zero
        assert not expected["gradients"]["experts.experts.0.0.weight"].any()
        assert not expected["load"][0]


def test_copies_of_experts_along_another_dimension() -> None:
    """Four devices, two of which hold the same experts: whole parameters are averaged over four, experts over two."""
    counts = [5, 3, 6, 4]

    def device() -> dict[str, Any]:
        mesh = laconic.init_device_mesh("cpu", (2, 2), mesh_dim_names=("ep", "cp"))
        return gradients(counts, laconic.rank(), mesh)

    found = laconic.simulate(device, 4).results
    expected = whole(counts)
    for line in ((0, 2), (1, 3)):
        assert found[line[0]]["load"].sum() == 2 * sum(counts[rank] for rank in line)
    for own in found:
        own["load"] = expected["load"]
    agrees(found, expected, 1e-6)


def test_copies_of_experts_compress_what_they_exchange() -> None:
    """Coarsely, in eight bits: near what is exact, the same on copies, and what is whole the same on all devices."""
    counts = [5, 3, 6, 4]

    def device(copies: str) -> dict[str, Any]:
        mesh = laconic.init_device_mesh("cpu", (2, 2), mesh_dim_names=("ep", "cp"))
        return gradients(counts, laconic.rank(), mesh, copies=copies)

    exact, coarse = (laconic.simulate(partial(device, copies), 4).results for copies in ("bsp", "int8"))
    for name, gradient in coarse[0]["gradients"].items():
        assert torch.equal(gradient, coarse[1]["gradients"][name])
        assert name not in coarse[2]["gradients"] or torch.equal(gradient, coarse[2]["gradients"][name])
        near = exact[0]["gradients"][name]
        assert torch.allclose(gradient, near, atol=0.02 * float(near.abs().max()) + 1e-9)
    assert any(not torch.equal(g, exact[0]["gradients"][name]) for name, g in coarse[0]["gradients"].items())


def test_the_mean_over_devices_is_that_of_their_losses() -> None:
    """By hand: gradients of whole parameters are means over devices; those of experts are complete where they are."""
    counts = [4, 4]
    expected = whole(counts)

    first, second = (own["gradients"] for own in cut(counts, averaged=False))
    for name, gradient in expected["gradients"].items():
        if name in first and name in second:
            assert torch.allclose((first[name] + second[name]) / 2, gradient, atol=1e-6), name
        else:
            assert torch.allclose((first | second)[name], gradient, atol=1e-6), name


def test_bytes_are_those_of_the_rows_that_travel() -> None:
    """Rows for experts elsewhere, there and back, forward and backward, with the codes' bytes; counts are control."""
    counts = [6, 9]
    plain, coded = (
        cut(counts, averaged=False, **code) for code in ({}, {"forward": "int8(256)", "backward": "cast_bf16"})
    )

    def rows_away(own: int) -> tuple[int, int]:
        torch.manual_seed(0)
        model = Model(2, None)
        experts = [choose(model.experts.router(model.first(x)), 2).experts for x in data(counts)[0]]
        away = [int((e // (EXPERTS // 2) != rank).sum()) for rank, e in enumerate(experts)]
        return away[own], away[1 - own]

    code = MessageCode.of("int8(256)")
    assert code is not None
    for rank in range(2):
        sent, received = rows_away(rank)
        counted = 8 * 2 * EXPERTS  # a gather among two sends a block of int64 once
        assert plain[rank]["forward_bytes"] == counted + 4 * WIDTH * (sent + received)
        assert plain[rank]["bytes"] == counted + 2 * 4 * WIDTH * (sent + received)
        forward = code.nbytes(sent * WIDTH) + code.nbytes(received * WIDTH)
        assert coded[rank]["forward_bytes"] == counted + forward
        assert coded[rank]["bytes"] == counted + forward + 2 * WIDTH * (sent + received)


def test_counts_are_control_bytes() -> None:
    def device() -> None:
        mesh = laconic.init_device_mesh("cpu", (2,), mesh_dim_names=("ep",))
        gradients([4, 4], laconic.rank(), mesh, averaged=False, backward="cast_bf16")

    ran = laconic.simulate(device, 2)
    for worker in ran.workers:
        assert worker.ledger.sent_bytes(Kind.CONTROL) == 8 * 2 * EXPERTS


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_code_of_one_direction_leaves_the_other_exact(direction: str) -> None:
    counts = [12, 13]
    exact, coded = cut(counts), cut(counts, **{direction: "int8(64)"})
    for own, plain in zip(coded, exact, strict=True):
        assert torch.equal(own["output"], plain["output"]) == (direction == "backward")
        assert torch.allclose(own["output"], plain["output"], atol=0.05)
        router = "experts.router.weight"
        if direction == "backward":  # the gates' gradients need no message
            assert torch.allclose(own["gradients"][router], plain["gradients"][router], rtol=0, atol=1e-7)
        assert not torch.equal(own["input"], plain["input"])
        assert torch.allclose(own["input"], plain["input"], atol=0.02)


def test_a_random_code_has_the_right_mean() -> None:
    """Of a gradient a quarter of the way between two values of bf16, which rounding to the nearest never leaves."""
    value = 1 + 2**-9

    def device(code: str, seeds: int) -> Tensor:
        mesh = laconic.init_device_mesh("cpu", (2,), mesh_dim_names=("ep",))
        made = MessageCode.of(code)
        assert made is not None
        found = []
        for seed in range(seeds):
            rows = torch.zeros(64, 4, requires_grad=True)
            exchange = Exchange(connect(), groups_of(mesh)["ep"], {"backward": made}, seed)
            (value * exchange(rows, [32, 32], [32, 32], "rows", 0)).sum().backward()
            assert rows.grad is not None
            found.append(rows.grad)
        return torch.stack(found)

    for code, away in (("cast_bf16(stochastic)", value), ("cast_bf16", 1.0)):
        first, second = laconic.simulate(partial(device, code, 8), 2).results
        for own, other in ((first[:, :32], first[:, 32:]), (second[:, 32:], second[:, :32])):
            assert (own == value).all()  # what stays is not encoded
            assert float(other.mean()) == pytest.approx(away, abs=2**-11)
        if "stochastic" in code:  # draws differ between seeds and between messages
            assert not torch.equal(first[0], first[1]) and not torch.equal(first[:, 32:], second[:, :32])


def test_room_is_given_to_first_choices_and_lower_ranks() -> None:
    """Two devices, two choices, two experts, capacity 3 each."""
    counts = torch.tensor([[[2, 1], [1, 2]], [[2, 1], [1, 2]]])
    kept = kept_counts(counts, 0.5)
    assert kept.tolist() == [[[2, 1], [0, 1]], [[1, 1], [0, 0]]]
    assert kept_counts(counts, None) is counts
    experts = torch.tensor([[0, 1, 0], [1, 0, 1]])
    assert places_by_expert(experts, counts[0], kept[0]).tolist() == [0, 2, 1, 3]


def test_gates_are_softmaxes() -> None:
    scores = torch.tensor([[1.0, 3.0, 2.0], [0.0, -1.0, 4.0]])
    first, both = choose(scores, 1), choose(scores, 2)
    assert first.experts.tolist() == [[1, 2]] and both.experts.tolist() == [[1, 2], [2, 0]]
    assert torch.allclose(first.gates, scores.softmax(-1).amax(-1)[None])  # of all experts
    assert torch.allclose(both.gates.T, scores.topk(2).values.softmax(-1))  # of those that were chosen
    assert both.counts.tolist() == [[0, 1, 1], [1, 0, 1]]


def test_dropped_tokens_pass_by() -> None:
    torch.manual_seed(0)
    layer = MixtureOfExperts(nn.Linear(4, 2), [nn.Linear(4, 4), nn.Linear(4, 4)], top=1, capacity_factor=0.5)
    x = torch.randn(8, 4)
    output = layer(x)
    assert layer.routed is not None
    assert layer.routed.dropped == int((output == 0).all(1).sum()) >= 4
    assert int(layer.routed.load.sum()) == 8


def test_balance_loss_of_even_and_of_crowded_tokens() -> None:
    scores = 50 * torch.eye(4).repeat(2, 1)
    layer = MixtureOfExperts(nn.Identity(), [nn.Identity() for _ in range(4)], top=1)
    layer(scores)
    assert float(balance_loss(layer)) == pytest.approx(1.0)
    layer(50 * torch.eye(4)[:1].repeat(8, 1))
    assert float(balance_loss(layer)) == pytest.approx(4.0)


def test_layers_work_in_half_precision_and_without_gradients() -> None:
    torch.manual_seed(0)
    layer = MixtureOfExperts(nn.Linear(4, 2), [nn.Linear(4, 4), nn.Linear(4, 4)]).bfloat16()
    with torch.no_grad():
        assert layer(torch.randn(2, 3, 4, dtype=torch.bfloat16)).shape == (2, 3, 4)


def test_mistakes_are_told() -> None:
    def device() -> list[str]:
        mesh = laconic.init_device_mesh("cpu", (3,), mesh_dim_names=("ep",))
        grid = laconic.init_device_mesh("cpu", (3, 1), mesh_dim_names=("a", "b"))
        layer = lambda: MixtureOfExperts(nn.Linear(2, 6), [nn.Linear(2, 2) for _ in range(6)])  # noqa: E731
        odd = MixtureOfExperts(nn.Linear(2, 4), [nn.Linear(2, 2) for _ in range(4)])
        cut_already = layer()
        shard_experts(cut_already, mesh)
        found = []
        for model, where, code in (
            (nn.Linear(2, 2), mesh, "none"),
            (odd, mesh, "none"),
            (layer(), grid, "none"),
            (layer(), mesh, "power_sgd"),
            (cut_already, mesh, "none"),
        ):
            with pytest.raises(LaconicError) as error:
                shard_experts(model, where, forward=code)
            found.append(str(error.value))
        return found

    parts = ("no MixtureOfExperts", "3 devices do not divide", "none that is called ep", "no code", "cut already")
    for message, part in zip(laconic.simulate(device, 3).results[0], parts, strict=True):
        assert part in message
    with pytest.raises(LaconicError, match="at least one of 2 experts"):
        MixtureOfExperts(nn.Linear(2, 2), [nn.Identity(), nn.Identity()], top=3)
    with pytest.raises(LaconicError, match="capacity factor"):
        MixtureOfExperts(nn.Linear(2, 2), [nn.Identity(), nn.Identity()], capacity_factor=0.0)
    with pytest.raises(LaconicError, match="3 scores"):
        MixtureOfExperts(nn.Linear(2, 3), [nn.Identity(), nn.Identity()])(torch.ones(1, 2))
