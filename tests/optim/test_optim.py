"""LARS and LAMB: a step is a share of the weights, whatever the gradient's size."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from laconic.errors import LaconicError
from laconic.optim import LAMB, LARS


def net() -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def backward(model: nn.Module, step: int = 0) -> None:
    draw = torch.Generator().manual_seed(step)
    x = torch.randn(16, 6, dtype=torch.float64, generator=draw)
    model.zero_grad()
    model(x).square().mean().backward()


def change(model: nn.Module, make: Callable[[nn.Module], torch.optim.Optimizer], scale: float = 1.0) -> list[Tensor]:
    """What the first step does to each parameter, with the first layer's gradient multiplied."""
    model = copy.deepcopy(model)
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = make(model)
    backward(model)
    first = next(model.parameters())
    assert first.grad is not None
    first.grad.mul_(scale)
    optimizer.step()
    return [p.detach() - b for p, b in zip(model.parameters(), before, strict=True)]


@pytest.mark.technique("lars", check=1)
@pytest.mark.parametrize("scale", [1e-3, 7.0, 1e4])
def test_lars_does_not_care_for_the_size_of_a_gradient(scale: float) -> None:
    one, other = (change(net(), lambda m: LARS(m.parameters(), lr=0.5), s) for s in (1.0, scale))
    torch.testing.assert_close(one, other)


@pytest.mark.technique("lars", check=2)
def test_a_step_of_lars_is_a_share_of_the_weights() -> None:
    model = net()
    moved = change(model, lambda m: LARS(m.parameters(), lr=0.5, momentum=0.0, trust=0.01))
    for p, d in zip(model.parameters(), moved, strict=True):
        assert d.norm().item() == pytest.approx(0.5 * 0.01 * p.norm().item(), rel=1e-6)


def test_lars_is_its_formula() -> None:
    model, mine = net(), net()
    optimizer = LARS(mine.parameters(), lr=0.3, momentum=0.9, weight_decay=0.1, trust=0.02)
    velocities = [torch.zeros_like(p) for p in model.parameters()]
    for step in range(5):
        backward(model, step)
        backward(mine, step)
        optimizer.step()
        with torch.no_grad():
            for w, v in zip(model.parameters(), velocities, strict=True):
                assert w.grad is not None
                rate = 0.02 * w.norm() / (w.grad.norm() + 0.1 * w.norm())
                v.copy_(0.9 * v + 0.3 * rate * (w.grad + 0.1 * w))
                w -= v
    torch.testing.assert_close(list(mine.parameters()), list(model.parameters()))


def test_a_group_that_is_left_out_is_plain_sgd() -> None:
    settings = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.5, "adapt": False}
    moved = change(net(), lambda m: LARS([{"params": list(m.parameters()), **settings}]))
    plain = change(net(), lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9))
    torch.testing.assert_close(moved, plain)


@pytest.mark.parametrize("make", [LARS, LAMB])
def test_where_a_norm_is_zero_nothing_breaks(make: type[LARS] | type[LAMB]) -> None:
    still, silent = (nn.Parameter(torch.zeros(3)), nn.Parameter(torch.ones(3)))
    optimizer = make([still, silent], lr=0.1, weight_decay=0.0)
    still.grad, silent.grad = torch.ones(3), torch.zeros(3)
    optimizer.step()
    assert still.detach().isfinite().all() and (still != 0).all(), "a rate of one"
    assert torch.equal(silent.detach(), torch.ones(3))


@pytest.mark.technique("lamb", check=1)
@pytest.mark.parametrize("scale", [1.0, 50.0])
def test_a_step_of_lamb_is_a_share_of_the_weights(scale: float) -> None:
    model = net()
    moved = change(model, lambda m: LAMB(m.parameters(), lr=0.01, weight_decay=0.0), scale)
    for p, d in zip(model.parameters(), moved, strict=True):
        assert d.norm().item() == pytest.approx(0.01 * p.norm().item(), rel=1e-9)


def test_lambs_norms_can_be_clipped() -> None:
    moved = change(net(), lambda m: LAMB(m.parameters(), lr=0.01, weight_decay=0.0, norm_bounds=(0.5, 0.5)))
    assert [d.norm().item() for d in moved] == pytest.approx([0.005] * 4)


@pytest.mark.technique("lamb", check=2)
def test_with_a_ratio_of_one_lamb_is_adamw() -> None:
    theirs, mine = net(), net()
    adamw = torch.optim.AdamW(theirs.parameters(), lr=0.01, eps=1e-6, weight_decay=0.01)
    lamb = LAMB(mine.parameters(), lr=0.01, adapt=False)
    for step in range(100):
        for model, optimizer in ((theirs, adamw), (mine, lamb)):
            backward(model, step)
            optimizer.step()
    torch.testing.assert_close(list(mine.parameters()), list(theirs.parameters()), rtol=0, atol=1e-6)


@pytest.mark.parametrize("make", [LARS, LAMB])
def test_they_go_on_from_their_state(make: type[LARS] | type[LAMB]) -> None:
    whole, first = net(), net()
    optimizers = [make(whole.parameters(), lr=0.1), make(first.parameters(), lr=0.1)]
    for step in range(3):
        for model, optimizer in zip((whole, first), optimizers, strict=True):
            backward(model, step)
            optimizer.step()
    resumed = make(first.parameters(), lr=0.7)
    resumed.load_state_dict(optimizers[1].state_dict())
    for model, optimizer in ((whole, optimizers[0]), (first, resumed)):
        backward(model, 3)
        optimizer.step()
    torch.testing.assert_close(list(first.parameters()), list(whole.parameters()), rtol=0, atol=0)


@pytest.mark.parametrize("make", [LARS, LAMB])
def test_what_makes_no_sense_is_refused(make: type[LARS] | type[LAMB]) -> None:
    with pytest.raises(LaconicError, match="lr=-1 makes no sense"):
        make(net().parameters(), lr=-1)
