"""Tensor parallelism between real processes: outputs, losses and gradients of the layer as a whole, sums as counted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.utils._python_dispatch import TorchDispatchMode

from laconic.errors import LaconicError
from laconic.parallel.tensor.megatron import (
    all_reduce_elements,
    backward_parallel,
    parallel_cross_entropy,
    shard_tensors,
    whole,
)
from tests.real.pool import Pool, PoolRank

HIDDEN, HEADS, SEQUENCE, BATCH, VOCABULARY = 16, 4, 5, 3, 24


class Attention(nn.Module):
    """Attention whose heads are counted by the width of what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(HIDDEN, HIDDEN) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part(x).unflatten(-1, (-1, HIDDEN // HEADS)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class Layer(nn.Module):
    """A transformer layer."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.up, self.down = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)
        self.first, self.second = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first(x))
        down: Tensor = self.down(nn.functional.gelu(self.up(self.second(x))))
        return x + down


CUTS: Any = {
    "attention": "shared",
    "attention.query": "columns",
    "attention.key": "columns",
    "attention.value": "columns",
    "attention.out": "rows",
    "up": "columns",
    "down": "rows",
}


class Summed(TorchDispatchMode):
    """Counts the elements that are summed between processes."""

    elements = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "all_reduce" in str(function):
            self.elements += args[0].numel()
        return function(*args, **(kwargs or {}))


def summed_elements(member: PoolRank) -> int:
    torch.manual_seed(1)
    layer = shard_tensors(Layer(), DeviceMesh.from_group(member.process_group, "cpu"), CUTS)
    x = torch.randn(BATCH, SEQUENCE, HIDDEN, requires_grad=True)
    with Summed() as counted:
        layer(x).sum().backward()
    return counted.elements


def cut_layer(member: PoolRank) -> tuple[float, float, list[dict[str, int]], float]:
    """Return how far a cut layer's outputs and gradients are from the whole one's, and what was summed."""
    torch.manual_seed(1)
    alone = Layer()
    torch.manual_seed(1)
    mesh = DeviceMesh.from_group(member.process_group, "cpu")
    layer = shard_tensors(Layer(), mesh, CUTS)
    x = torch.randn(BATCH, SEQUENCE, HIDDEN, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    expected = alone(x)
    (expected**2).sum().backward()
    with CommDebugMode() as forward:
        found = layer(y)
    with CommDebugMode() as backward:
        (found**2).sum().backward()
    apart = max(
        float((whole(p.grad) - q.grad).abs().max())  # type: ignore[arg-type, operator]
        for p, q in zip(layer.parameters(), alone.parameters(), strict=True)
    )
    assert y.grad is not None and x.grad is not None
    apart = max(apart, float((y.grad - x.grad).abs().max()))
    calls = [
        {str(operation).split(".")[1]: count for operation, count in counted.get_comm_counts().items() if count}
        for counted in (forward, backward)
    ]
    share = sum(p.to_local().numel() if isinstance(p, DTensor) else 0 for p in layer.parameters()) / sum(
        p.numel() for name, p in layer.named_parameters() if isinstance(p, DTensor)
    )
    return float((found - expected).abs().max()), apart, calls, share


@pytest.mark.technique("tensor_parallel", check=1)
@pytest.mark.parametrize("workers", [2, 4])
def test_a_cut_layer_is_the_whole_one(pool: Pool, workers: int) -> None:
    for output, gradient, _, share in pool.run(cut_layer, workers=workers):
        assert output < 1e-5 and gradient < 1e-4
        assert share < 1 / workers + 0.05  # biases behind rows are whole


@pytest.mark.technique("tensor_parallel", check=2)
@pytest.mark.parametrize("workers", [2, 4])
def test_a_layer_sums_twice_forward_and_twice_backward(pool: Pool, workers: int) -> None:
    for _, _, calls, _ in pool.run(cut_layer, workers=workers):
        assert calls == [{"all_reduce": 2}, {"all_reduce": 2}]


def cut_vocabulary(member: PoolRank) -> list[float]:
    """Return how far the loss and its gradients are from those of the whole vocabulary."""
    mesh = DeviceMesh.from_group(member.process_group, "cpu")

    def made() -> nn.ModuleDict:
        torch.manual_seed(2)
        return nn.ModuleDict(
            {"embed": nn.Embedding(VOCABULARY, HIDDEN), "head": nn.Linear(HIDDEN, VOCABULARY, bias=False)}
        )

    tokens, targets = torch.randint(VOCABULARY, (2, BATCH, SEQUENCE), generator=torch.Generator().manual_seed(3))
    alone, cut = made(), shard_tensors(made(), mesh, {"embed": "vocabulary", "head": "logits"})
    expected = nn.functional.cross_entropy(alone["head"](alone["embed"](tokens)).flatten(0, 1), targets.flatten())
    expected.backward()
    with CommDebugMode() as counted:
        found = parallel_cross_entropy(cut["head"](cut["embed"](tokens)), targets)
    backward_parallel(found)
    gathered = sum(count for name, count in counted.get_comm_counts().items() if "gather" in str(name))
    return [
        float((whole(found) - expected).abs()),
        *(
            float((whole(p.grad) - q.grad).abs().max())
            for p, q in zip(cut.parameters(), alone.parameters(), strict=True)
        ),  # type: ignore[arg-type, operator]
        float(gathered),
    ]


@pytest.mark.technique("tensor_parallel", check=3)
@pytest.mark.parametrize("workers", [2, 4])
def test_the_loss_of_a_cut_vocabulary(pool: Pool, workers: int) -> None:
    for differences in pool.run(cut_vocabulary, workers=workers):
        assert max(differences[:-1]) < 1e-6
        assert differences[-1] == 0  # the logits were never gathered


@pytest.mark.technique("tensor_parallel", check=2)
@pytest.mark.parametrize("workers", [2, 4])
def test_as_much_is_summed_as_the_formula_says(pool: Pool, workers: int) -> None:
    """A ring sends 2(t-1)/t of each element that is summed."""
    for elements in pool.run(summed_elements, workers=workers):
        ring = 2 * (workers - 1) / workers * elements
        assert (
            ring
            == all_reduce_elements(BATCH, SEQUENCE, HIDDEN, workers)
            == 8 * BATCH * SEQUENCE * HIDDEN * (workers - 1) / workers
        )


def refusals(member: PoolRank) -> list[str]:
    mesh = DeviceMesh.from_group(member.process_group, "cpu")
    found = []
    for cuts in ({"up": "diagonally"}, {"upp": "rows"}, {"first": "rows"}, {"odd": "columns"}):
        model = Layer()
        model.odd = nn.Linear(3, 3)
        try:
            shard_tensors(model, mesh, cuts)  # type: ignore[arg-type]
        except LaconicError as error:
            found.append(str(error))
    return found


def test_mistakes_are_told(pool: Pool) -> None:
    found = pool.run(refusals, workers=2)[0]
    for message, part in zip(found, ("no way to cut", "no layer", "LayerNorm", "do not divide"), strict=True):
        assert part in message
