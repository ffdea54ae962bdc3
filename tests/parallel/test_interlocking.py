"""Interlocking backpropagation: what reaches which module, and how long devices wait."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from laconic.errors import LaconicError
from laconic.parallel.interlocking import idle_slots, interlocking_backward


def made(count: int, seed: int) -> tuple[list[nn.Module], list[nn.Module], Tensor, Tensor]:
    torch.manual_seed(seed)
    modules: list[nn.Module] = [nn.Sequential(nn.Linear(5, 5), nn.Tanh()) for _ in range(count)]
    heads: list[nn.Module] = [nn.Linear(5, 3) for _ in range(count)]
    return modules, heads, torch.randn(7, 5), torch.randn(7, 3)


def gradients(modules: list[nn.Module]) -> list[list[Tensor]]:
    found = [[p.grad.clone() if p.grad is not None else torch.zeros_like(p) for p in m.parameters()] for m in modules]
    for module in modules:
        module.zero_grad()
    return found


@pytest.mark.technique("interlocking_backprop", check=1)
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("count", [1, 3, 4])
def test_the_whole_window_is_backpropagation_from_the_last_head(count: int, seed: int) -> None:
    modules, heads, x, y = made(count, seed)
    losses = interlocking_backward(modules, heads, nn.functional.mse_loss, x, y, count)
    found = gradients(modules)
    for head in heads:
        head.zero_grad()
    loss = nn.functional.mse_loss(heads[-1](nn.Sequential(*modules)(x)), y)
    loss.backward()
    assert losses[-1] == pytest.approx(loss.item())
    for ours, theirs in zip(found, gradients(modules), strict=True):
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.technique("interlocking_backprop", check=1)
@pytest.mark.parametrize("window", [1, 2, 3])
def test_no_gradient_crosses_a_windows_border(window: int) -> None:
    """A module's gradient depends on the heads of its window alone, and is that of the farthest one."""
    modules, heads, x, y = made(4, 3)
    interlocking_backward(modules, heads, nn.functional.mse_loss, x, y, window)
    found = gradients(modules)
    for place, module in enumerate(modules):
        last = min(place + window, 4) - 1
        h = x
        for each in modules[:place]:
            h = each(h).detach()
        for each in modules[place : last + 1]:
            h = each(h)
        expected = torch.autograd.grad(nn.functional.mse_loss(heads[last](h), y), list(module.parameters()))
        for a, b in zip(found[place], expected, strict=True):
            torch.testing.assert_close(a, b)
    with torch.no_grad():
        heads[3].weight.mul_(5)  # type: ignore[operator, union-attr]
    interlocking_backward(modules, heads, nn.functional.mse_loss, x, y, window)
    changed = [
        any(not torch.equal(a, b) for a, b in zip(x, y, strict=True))
        for x, y in zip(found, gradients(modules), strict=True)
    ]
    assert changed == [place + window >= 4 for place in range(4)]


@pytest.mark.technique("interlocking_backprop", check=2)
def test_idle_slots_grow_with_the_window_and_not_with_the_devices() -> None:
    of_window = {window: max(idle_slots(12, window)) for window in (1, 2, 3)}
    assert of_window[1] < of_window[2] < of_window[3]
    for devices in (4, 6, 8, 16):
        for window, expected in of_window.items():
            assert max(idle_slots(devices, window)) == expected
    whole = [max(idle_slots(devices, devices)) for devices in (3, 4, 6, 8)]
    assert sorted(whole) == whole and whole[-1] > whole[0] + 4


def test_what_makes_no_window_is_refused() -> None:
    modules, heads, x, y = made(3, 0)
    for window in (0, 4):
        with pytest.raises(LaconicError, match="window of 1 to 3"):
            interlocking_backward(modules, heads, nn.functional.mse_loss, x, y, window)
    with pytest.raises(LaconicError, match="as many heads"):
        interlocking_backward(modules, heads[:2], nn.functional.mse_loss, x, y, 1)
