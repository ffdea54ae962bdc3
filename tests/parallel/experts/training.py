"""A model with a layer of experts, and what a device computes with it: for virtual workers and for processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

import laconic
from laconic.parallel.experts.layer import MixtureOfExperts, balance_loss
from laconic.parallel.experts.shard import shard_experts
from laconic.real.connect import connect

WIDTH, EXPERTS, OUT = 6, 8, 3


class Model(nn.Module):
    """A matrix, experts around which inputs pass by, and a matrix."""

    def __init__(self, top: int, capacity_factor: float | None, avoid: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, OUT)
        router = nn.Linear(WIDTH, EXPERTS)
        with torch.no_grad():
            router.bias[list(avoid)] = -100.0  # nobody chooses these
        experts = [nn.Sequential(nn.Linear(WIDTH, 9), nn.GELU(), nn.Linear(9, WIDTH)) for _ in range(EXPERTS)]
        self.experts = MixtureOfExperts(router, experts, top, capacity_factor)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        out: Tensor = self.last(x + self.experts(x))
        return out


def data(counts: list[int], seed: int = 1) -> tuple[list[Tensor], list[Tensor]]:
    """Return inputs and targets of devices that have so many tokens each."""
    draw = torch.Generator().manual_seed(seed)
    x, y = torch.randn(sum(counts), WIDTH, generator=draw), torch.randn(sum(counts), OUT, generator=draw)
    return list(x.split(counts)), list(y.split(counts))


def gradients(
    counts: list[int],
    rank: int | None,
    mesh: DeviceMesh | None,
    top: int = 2,
    capacity_factor: float | None = None,
    avoid: tuple[int, ...] = (),
    model_seed: int = 0,
    averaged: bool = True,
    copies: str = "bsp",
    **codes: Any,
) -> dict[str, Any]:
    """Return outputs, loss, gradients and routing of a device that has its part of the tokens; of one that has all
    tokens and all experts, where no rank is given. Copies of experts along another dimension exchange gradients by the
    sentence `copies`.

    The loss is a mean over all tokens: where devices have unequal numbers, each multiplies its sum accordingly.
    """
    torch.manual_seed(model_seed)
    model = Model(top, capacity_factor, avoid)
    xs, ys = data(counts)
    x, y = (torch.cat(parts) if rank is None else parts[rank] for parts in (xs, ys))
    x.requires_grad_()
    devices = 1
    if mesh is not None:
        shard_experts(model, mesh, **codes)
        devices = mesh.size()
        if averaged:
            strategy = f"[bsp]@ep > [{copies}]@cp" if mesh.ndim > 1 else "bsp"
            laconic.distribute(model, torch.optim.SGD(model.parameters(), 0.1), strategy, mesh=mesh)
    ledger = connect().ledger
    before = ledger.sent_bytes()
    output = model(x)
    loss = ((output - y) ** 2).sum() * devices / sum(counts) + 0.01 * balance_loss(model)
    forward_bytes = ledger.sent_bytes() - before
    loss.backward()
    sent = ledger.sent_bytes() - before
    routed = model.experts.routed
    assert routed is not None and x.grad is not None
    return {
        "output": output.detach(),
        "loss": float(loss.detach()),
        "input": x.grad / devices,
        "gradients": {name: p.grad for name, p in model.named_parameters()},
        "dropped": routed.dropped,
        "load": routed.load,
        "forward_bytes": forward_bytes,
        "bytes": sent,
        "state": set(model.state_dict()),
    }


def agrees(found: list[dict[str, Any]], expected: dict[str, Any], within: float) -> None:
    """Assert that devices together have what one process has."""
    assert torch.allclose(torch.cat([own["output"] for own in found]), expected["output"], rtol=1e-5, atol=within)
    assert torch.allclose(torch.cat([own["input"] for own in found]), expected["input"], rtol=1e-5, atol=within)
    assert sum(own["loss"] for own in found) / len(found) == pytest.approx(expected["loss"], rel=within)
    together = {}
    for own in found:
        assert own["dropped"] == expected["dropped"]
        assert torch.equal(own["load"], expected["load"])
        for name, gradient in own["gradients"].items():
            assert torch.allclose(gradient, expected["gradients"][name], rtol=1e-5, atol=within), name
            together[name] = gradient
    assert set(together) == set(expected["gradients"])
    assert set.union(*(own["state"] for own in found)) == expected["state"]
