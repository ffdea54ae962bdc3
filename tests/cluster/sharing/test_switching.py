"""Switching for real: what arrives in groups computes what the model computed, and no group before it has arrived."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from laconic.cluster.sharing.switching import Switched, bytes_needed
from laconic.errors import ClusterError


class Net(nn.Module):
    """Layers that are not called in the order in which they are declared, a tied weight, one that nobody calls, and
    buffers of two types."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.last = nn.Linear(width, 7)
        self.short = nn.Linear(5, width)
        self.first = nn.Sequential(nn.Linear(5, width), nn.ReLU(), nn.BatchNorm1d(width))
        self.inner = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.inner[2].weight = self.inner[0].weight
        self.uncalled = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x) + self.short(x)
        for layer in self.inner:
            y = torch.tanh(layer(y))
        return self.last(y) * self.uncalled.weight.sum()


def nets(seed: int, width: int, device: str = "cpu") -> tuple[Net, Net, Tensor]:
    torch.manual_seed(seed)
    plain = Net(width).to(device)
    x = torch.randn(6, 5, device=device)
    plain(x)  # so that the running statistics are not those at the beginning
    return plain.eval(), copy.deepcopy(plain), x


def cuts(count: int) -> list[tuple[int, ...]]:
    return [(count,), tuple(range(1, count + 1)), (1, count), (3, 4, count)]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("width", [3, 64])
def test_a_model_that_comes_in_groups_computes_the_same(seed: int, width: int) -> None:
    plain, model, x = nets(seed, width)
    switched = Switched(model, x)
    assert torch.equal(model(x), plain(x))  # it is there already
    assert len(switched.nbytes) == 7 and sum(switched.nbytes) == bytes_needed(plain) == switched.region.numel()
    for ends in cuts(7):
        switched.region.fill_(255)  # not a number, in every float
        assert torch.equal(switched.start(ends, x), plain(x))
        assert all(map(torch.equal, model.state_dict().values(), plain.state_dict().values()))
        assert torch.equal(model(x), plain(x))


def test_a_group_computes_when_it_has_arrived_and_before_the_next_has() -> None:
    _, model, x = nets(0, 33)
    switched = Switched(model, x)
    order = [model.first[0], model.first[2], model.short, *model.inner, model.last]
    for ends in cuts(7):
        seen: list[list[bool]] = []

        def note(*_: object, seen: list[list[bool]] = seen) -> None:
            seen.append([not layer.bias.isnan().any() for layer in order])

        hooks = [layer.register_forward_pre_hook(note) for layer in order]
        switched.region.fill_(255)
        switched.start(ends, x)
        for hook in hooks:
            hook.remove()
        arrived = [next(end for end in ends if end > layer) for layer in range(7)]
        assert seen == [[other < end for other in range(7)] for end in arrived]


def test_who_calls_no_layers_lets_them_arrive_by_number() -> None:
    plain, model, x = nets(0, 24)
    switched = Switched(model, x)
    for ends in cuts(7):
        switched.region.fill_(255)
        switched.send(ends)
        for layer in (0, 3, 6):
            switched.arrive(layer)
            end = next(end for end in ends if end > layer)
            assert [not one.bias.isnan().any() for one in switched.layers] == [number < end for number in range(7)]
        assert torch.equal(model(x), plain(x))


def test_models_take_turns_in_one_region() -> None:
    (plain, model, x), (other_plain, other, _) = nets(0, 16), nets(1, 40)
    region = torch.empty(max(bytes_needed(model), bytes_needed(other)), dtype=torch.uint8)
    one, two = Switched(model, x, region), Switched(other, x, region)
    for _ in range(2):
        assert torch.equal(one.start((2, 7), x), plain(x))
        assert torch.equal(two.start((5, 7), x), other_plain(x))
    assert region.numel() == bytes_needed(other)


def test_the_groups_are_found_from_what_is_measured() -> None:
    plain, model, x = nets(0, 512)
    switched = Switched(model, x)
    seconds, way = switched.layer_seconds(x), switched.transfer()
    assert len(seconds) == 7 and math.isfinite(way.bytes_per_second)
    found = switched.grouping(x)
    assert torch.equal(switched.start(found.ends, x), plain(x))


def test_what_cannot_be_is_refused() -> None:
    _, model, x = nets(0, 8)
    with pytest.raises(ClusterError, match="a region for this model"):
        Switched(model, x, torch.empty(8, dtype=torch.uint8))
    with pytest.raises(ClusterError, match="at least one layer"):
        Switched(nn.ReLU(), x)
    switched = Switched(model, x)
    for ends in ((), (3,), (0, 7), (4, 3, 7), (7, 7)):
        with pytest.raises(ClusterError, match="groups of 7 layers"):
            switched.start(ends, x)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("seed", [0, 1])
def test_no_group_computes_before_it_has_come_to_a_gpu(seed: int) -> None:
    plain, model, x = nets(seed, 4096, "cuda")
    other_plain, other, _ = nets(seed + 1, 4000, "cuda")
    region = torch.empty(bytes_needed(model), dtype=torch.uint8, device="cuda")
    one, two = Switched(model, x, region), Switched(other, x, region)
    with torch.no_grad():
        right, other_right = plain(x), other_plain(x)
    for ends in cuts(7) * 5:
        region.fill_(255)  # not a number, until the copies have come
        torch.testing.assert_close(one.start(ends, x), right)
        torch.testing.assert_close(two.start(ends, x), other_right)
