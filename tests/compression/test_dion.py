"""Dion: what P workers do is what one does with averaged gradients; orthonormal factors; momenta that add up."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from laconic.compression.dion import Dion
from laconic.compression.low_rank import orthogonal
from laconic.optim import Muon, matrices_apart
from laconic.values.tensor_spec import TensorSpec
from tests.compression.table import meet, spec_of, tensor
from tests.compression.test_momentum import train
from tests.sync import text

SHAPES = [(24, 20), (12, 40), (40, 12), (8, 3, 3, 3)]


@pytest.mark.technique("dion", check=1)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", [2, 5])
def test_many_workers_step_as_one_with_the_mean_gradient(shape: tuple[int, ...], size: int) -> None:
    made = Dion()
    spec = TensorSpec("x", shape, torch.float32)
    states, alone = [made.init(spec) for _ in range(size)], [made.init(spec)]
    for step in range(8):
        inputs = [tensor("normal", shape, 10 * step + r) for r in range(size)]
        many, one = meet(made, inputs, states, step), meet(made, [torch.stack(inputs).mean(0)], alone, step)
        states, alone = [o.state for o in many], [o.state for o in one]
        assert all(torch.equal(o.result, many[0].result) for o in many)
        torch.testing.assert_close(many[0].result, one[0].result, rtol=1e-4, atol=1e-4)
        mean = torch.stack([size * state["momentum"] for state in states]).mean(0)
        torch.testing.assert_close(mean, alone[0]["momentum"], rtol=1e-4, atol=1e-4)


@pytest.mark.technique("dion", check=2)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rank", [0.125, 0.25, 1.0])
def test_factors_are_orthonormal_and_unit_and_their_bytes(shape: tuple[int, ...], rank: float) -> None:
    made = Dion(rank)
    states = [made.init(TensorSpec("x", shape, torch.float32))]
    m, q = shape[0], math.prod(shape[1:])
    r = math.ceil(rank * min(m, q))
    for step in range(4):
        x, before = tensor("normal", shape, step), states[0]["momentum"].clone()
        handed: list[list[tuple[str, torch.Tensor]]] = []
        (outcome,) = meet(made, [x], states, step, payloads=handed)
        states = [outcome.state]
        assert sum(t.nbytes for _, t in handed[0]) == 4 * r * (m + q) == made.payload_bytes(spec_of(x), 1)
        assert [way for way, _ in handed[0]] == ["Reduce", "Reduce"]
        right = outcome.state["q"]
        torch.testing.assert_close(right.norm(dim=0), torch.ones(r), rtol=0, atol=1e-5)
        left = orthogonal(handed[0][0][1])
        torch.testing.assert_close(left.T @ left, torch.eye(r), rtol=0, atol=1e-5)
        expected = math.sqrt(m / q) * (left @ right.T).view(shape)
        torch.testing.assert_close(outcome.result, expected, rtol=1e-5, atol=1e-5)
        if rank == 1:
            torch.testing.assert_close(outcome.state["momentum"], 0.95 * (before + x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 4)])
def test_another_number_of_workers_keeps_the_mean_momentum(before: int, after: int) -> None:
    made = Dion()
    states = [made.init(spec_of(tensor("normal"))) for _ in range(before)]
    for step in range(3):
        outcomes = meet(made, [tensor("normal", seed=9 * step + r) for r in range(before)], states, step)
        states = [outcome.state for outcome in outcomes]
    zero = torch.zeros(24, 20)
    momenta = [sum((state["momentum"] for state in states[rank::after]), zero) for rank in range(after)]
    inputs = [tensor("normal", seed=70 + r) for r in range(before)]
    same = meet(made, inputs, [{k: v.clone() for k, v in s.items()} for s in states], 3)[0].result
    mean = torch.stack(inputs).mean(0)
    other = meet(made, [mean] * after, [{"momentum": m, "q": states[0]["q"]} for m in momenta], 3)[0].result
    torch.testing.assert_close(other, same, rtol=1e-3, atol=1e-4)


def test_what_is_not_finite_is_seen_and_forgotten() -> None:
    made, x = Dion(), tensor("normal")
    bad = x.clone()
    bad[3, 4] = math.inf
    outcomes = meet(made, [x, bad])
    assert not outcomes[0].result.isfinite().all()
    again = meet(made, [x, x], [outcome.state for outcome in outcomes], 1)
    assert again[0].result.isfinite().all() and again[0].result.any()


@pytest.mark.long
def test_workers_step_alike_and_the_optimizers_momentum_is_taken_over() -> None:
    def taken(model: Any, optimizer: Any) -> float:
        return float(optimizer.param_groups[0]["momentum"])

    make = lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)  # noqa: E731
    parameters, _, right, seen = train("dion", 80, 2, make, probe=taken)
    assert torch.equal(parameters[0], parameters[1]) and not any(seen)
    assert right > 80


class Split(Muon):
    """Hidden matrices go where Dion says; everything else is AdamW's."""

    def _along_momentum(self, w: torch.Tensor, g: torch.Tensor, group: dict[str, Any]) -> None:
        w.sub_(group["lr"] * g)


@pytest.mark.long
def test_on_text_it_ends_near_muon_with_half_the_bytes() -> None:
    """Each at the best of the rates tried (four and two): 4.6 % above Muon's 1.996; "within 3 %" is not claimed. After
    1,500 steps it is 1.938 to 1.845."""

    def of(kind: type[Muon], rate: float) -> Any:
        def make(model: Any) -> Muon:
            hidden, others = matrices_apart(model)
            return kind([{**hidden, "lr": rate}, {**others, "lr": 4e-3}], adjust_lr_fn="original")

        return make

    muon = text.trained("bsp", of(Muon, 0.02), 600, width=64, warmup=30)
    dion = text.trained('{"layers.*": dion(0.25), else: none}', of(Split, 0.008), 600, width=64, warmup=30)
    assert sum(muon.sent_bytes) > 2 * sum(dion.sent_bytes)
    assert dion.loss < 1.06 * muon.loss


@pytest.mark.parametrize("size", [1e-9, 1e-8, 1e-7, 1e-3])
def test_the_tiniest_gradients_make_no_longer_steps(size: float) -> None:
    """The three columns of the factor are no longer than one, since 1e-8 is added to what they are divided by."""
    made, x = Dion(rank=0.5), size * tensor("normal", (12, 6), seed=3)
    (outcome,) = meet(made, [x])
    columns = float(outcome.result.square().sum()) / 2  # the squared factor √(12/6)
    assert 0.0 < columns <= 3 * (1 + 1e-5) and (size < 1e-3 or columns > 3 * (1 - 1e-4))


def test_a_gradient_of_nothing_keeps_the_directions() -> None:
    made, x = Dion(rank=0.5), torch.zeros(6, 4)
    state = made.init(spec_of(x))
    (outcome,) = meet(made, [x], [state])
    assert state["q"].norm() > 0 and torch.equal(outcome.state["q"], state["q"])
