"""Ring attention among virtual workers is attention."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import laconic
from laconic.errors import LaconicError
from laconic.network.network_tree import Network
from laconic.parallel.context.parts import Parts
from laconic.parallel.context.price import backward_bytes, forward_bytes, ring_seconds
from laconic.parallel.context.ring import PairSeconds, ring_attention
from laconic.real.connect import connect
from laconic.virtual.compute import Compute
from tests.parallel.context.attending import BATCH, HEADS, WIDTH, cut, furthest, inputs, whole


def among(devices: int, *args: Any, **options: Any) -> list[list[Tensor]]:
    def device() -> list[Tensor]:
        mesh = laconic.init_device_mesh("cpu", (devices,), mesh_dim_names=("cp",))
        return cut(mesh, *args, **options)

    return laconic.simulate(device, devices).results


@pytest.mark.parametrize("devices", [1, 2, 3, 4])
@pytest.mark.parametrize(("causal", "zigzag"), [(False, False), (True, False), (True, True), (False, True)])
@pytest.mark.parametrize("length", [24, 13])
def test_a_ring_attends_to_the_whole_sequence(devices: int, causal: bool, zigzag: bool, length: int) -> None:
    assert furthest(among(devices, length, causal, zigzag, seed=length), whole(length, causal, seed=length)) < 1e-5


@pytest.mark.parametrize("key_heads", [1, 2])
def test_a_head_of_keys_may_serve_several_of_queries(key_heads: int) -> None:
    found = among(3, 11, True, True, key_heads=key_heads)
    assert furthest(found, whole(11, True, key_heads=key_heads)) < 1e-5


def test_in_half_precision_sums_are_float32() -> None:
    """The error is that of the format, as it is of torch's own attention."""
    exact = whole(40, True)
    torchs = [x.float() for x in whole(40, True, dtype=torch.bfloat16)]
    found = [
        [x if k == 0 else x.float() for k, x in enumerate(own)]
        for own in among(4, 40, True, True, dtype=torch.bfloat16)
    ]
    scale = max(float((a - b).abs().max()) for a, b in zip(torchs, exact, strict=True))
    assert furthest(found, exact) < 2 * scale


@pytest.mark.parametrize("length", [24, 13])
@pytest.mark.parametrize("zigzag", [False, True])
@pytest.mark.parametrize("devices", [2, 3, 4])
def test_bytes_are_those_of_the_formula(devices: int, zigzag: bool, length: int) -> None:
    ran = laconic.simulate(
        lambda: cut(laconic.init_device_mesh("cpu", (devices,), mesh_dim_names=("cp",)), length, False, zigzag), devices
    )
    parts, token_bytes = Parts(length, devices, zigzag), 4 * BATCH * HEADS * (2 * WIDTH + 2)
    sent = [worker.ledger.sent_bytes() for worker in ran.workers]
    assert sent == [
        a + b for a, b in zip(forward_bytes(parts, token_bytes), backward_bytes(parts, token_bytes), strict=True)
    ]
    if length % (2 * devices) == 0:
        assert forward_bytes(parts, token_bytes)[0] == (devices - 1) / devices * length * token_bytes
        assert backward_bytes(parts, token_bytes)[0] == 2 * (devices - 1) / devices * length * token_bytes


@pytest.mark.parametrize("devices", [2, 3, 4, 8])
def test_zigzag_balances_causal_work_in_every_step(devices: int) -> None:
    """Contiguous parts: the last device computes p blocks and the first one; in zigzag all compute the same."""

    def work(zigzag: bool) -> list[list[int]]:
        parts = Parts(6 * 2 * devices, devices, zigzag)
        return [[parts.pairs(d, (d - t) % devices, True) for d in range(devices)] for t in range(devices)]

    assert all(len(set(step)) == 1 for step in work(zigzag=True))
    contiguous = [sum(own) for own in zip(*work(zigzag=False), strict=True)]
    assert contiguous == [contiguous[0] * (d + 1) for d in range(devices)]
    assert sum(map(max, work(zigzag=True))) < sum(map(max, work(zigzag=False)))


def test_the_permutation_of_a_zigzag() -> None:
    assert Parts(8, 2, zigzag=True).order.tolist() == [0, 1, 6, 7, 2, 3, 4, 5]
    assert Parts(7, 2, zigzag=True).order.tolist() == [0, 1, 6, 2, 3, 4, 5]
    assert Parts(5, 3).order.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("codes", "outputs"), [({"forward": "int8(64)"}, 0.02), ({"backward": "cast_bf16"}, 0.0)])
def test_codes_of_keys_and_of_gradients(codes: dict[str, str], outputs: float) -> None:
    exact = whole(24, True)
    found = among(3, 24, True, True, codes=codes)
    order = torch.cat([own[0] for own in found])
    apart = [
        float((torch.cat([own[1 + k] for own in found], 2) - x[:, :, order]).abs().max()) for k, x in enumerate(exact)
    ]
    if outputs:
        assert 1e-4 < apart[0] < outputs
    else:
        assert max(apart[:2]) < 1e-5 < apart[2] < 0.03 > apart[3] > 1e-5  # queries' gradients stay where they are


def test_the_backward_pass_sees_the_keys_of_the_forward_pass() -> None:
    """Draws depend on the message alone: with a random code, gradients are those of the attention that was computed,
    which finite differences find."""
    length, eps = 12, 1e-3

    def device() -> tuple[float, float]:
        mesh = laconic.init_device_mesh("cpu", (3,), mesh_dim_names=("cp",))
        query, key, value, gradient = (x.double() for x in inputs(length))

        def output(moved: Tensor) -> Tensor:
            attend = ring_attention(mesh, length, forward="cast_bf16(stochastic)", seed=3)
            outputs = attend(attend.cut(moved, 2), attend.cut(key, 2), attend.cut(value, 2))
            return (outputs * attend.cut(gradient, 2)).sum()

        leaf = query.clone().requires_grad_()
        output(leaf).backward()
        assert leaf.grad is not None
        own = torch.zeros_like(query)
        attend = ring_attention(mesh, length)
        own[:, :, attend.positions] = torch.randn(own[:, :, attend.positions].shape, dtype=torch.float64)
        moved = (output(query + eps * own) - output(query - eps * own)) / (2 * eps)
        return float(moved), float((leaf.grad * own).sum())

    for moved, expected in laconic.simulate(device, 3).results:
        assert moved == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("causal", "zigzag"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("rate", [1e5, 1e6, 1e8])
@pytest.mark.parametrize("length", [24, 26])
def test_the_virtual_clock_agrees_with_the_price(rate: float, causal: bool, zigzag: bool, length: int) -> None:
    devices, pair_seconds = 4, PairSeconds(1e-3, 2.5e-3)
    network = Network.flat(devices, rate, latency_seconds=1e-3)

    def device() -> tuple[float, float]:
        mesh = laconic.init_device_mesh("cpu", (devices,), mesh_dim_names=("cp",))
        attend = ring_attention(mesh, length, causal=causal, zigzag=zigzag, pair_seconds=pair_seconds)
        query, key, value, gradient = (attend.cut(x, 2).requires_grad_() for x in inputs(length))
        outputs = attend(query, key, value)
        ended = connect().clock_seconds()
        outputs.backward(gradient.detach())
        return ended, connect().clock_seconds()

    measured = laconic.simulate(device, devices, network=network, compute=Compute(1.0, 1.0, 1.0)).results
    forward, both = (max(times) for times in zip(*measured, strict=True))
    token_bytes = 4 * BATCH * HEADS * (2 * WIDTH + 2)
    priced = ring_seconds(network, Parts(length, devices, zigzag), token_bytes, pair_seconds, causal=causal)
    assert forward == pytest.approx(priced.forward, rel=1e-6)
    alike = (
        length % (2 * devices) == 0
    )  # otherwise some begin their backward pass before the last one has ended forward
    assert both == pytest.approx(priced.forward + priced.backward, rel=1e-6 if alike else 0.05)
    assert priced.forward >= priced.forward_computing and priced.backward >= priced.backward_computing


def test_transfers_hide_behind_computing() -> None:
    """A forward pass takes the time of its blocks on a fast network, of p - 1 transfers and a block on a slow one."""
    parts, seconds = Parts(64, 4), PairSeconds(1e-4, 2e-4)
    fast = ring_seconds(Network.flat(4, 1e12), parts, 1000.0, seconds)
    assert fast.forward == pytest.approx(fast.forward_computing) == 64 * 16 * 1e-4
    slow = ring_seconds(Network.flat(4, 1e3), parts, 1000.0, seconds)
    assert slow.forward == pytest.approx(3 * 16 * 1000 * 8 / 1e3 + 16 * 16 * 1e-4)
    assert slow.backward == pytest.approx(6 * 16 * 1000 * 8 / 1e3 + 16 * 16 * 2e-4, rel=1e-3)


def test_mistakes_are_told() -> None:
    def device() -> list[str]:
        mesh = laconic.init_device_mesh("cpu", (2,), mesh_dim_names=("cp",))
        grid = laconic.init_device_mesh("cpu", (1, 2), mesh_dim_names=("a", "b"))
        attend = ring_attention(mesh, 8)
        q, k = torch.ones(1, 4, 4, 2), torch.ones(1, 3, 4, 2)
        found = []
        for wrong in (
            lambda: ring_attention(mesh, 3, zigzag=True),
            lambda: ring_attention(grid, 8),
            lambda: ring_attention(mesh, 8, forward="topk(0.1)+ef"),
            lambda: attend.cut(torch.ones(1, 7)),
            lambda: attend(q, q[:, :, :3], q),
            lambda: attend(q, k, k),
        ):
            with pytest.raises(LaconicError) as error:
                wrong()
            found.append(str(error.value))
        return found

    parts = ("two for each of 2", "one dimension", "no code", "8 tokens", r"(1, 4, 3, 2)", "divide those of queries")
    for message, part in zip(laconic.simulate(device, 2).results[0], parts, strict=True):
        assert part in message


@pytest.mark.parametrize("sentence", ["bsp", "bsp / cast_int8(64)+ef"])
def test_distribute_averages_what_devices_of_a_ring_compute(sentence: str) -> None:
    """Parameters are whole on every device, so that any sentence sums their gradients: training is that of one
    process without compression, and near it with."""
    length = 16
    text = torch.randn(3, length, 8, generator=torch.Generator().manual_seed(4))

    def trained(devices: int, sentence: str) -> float:
        torch.manual_seed(2)
        model = nn.ModuleDict({"mixed": nn.Linear(8, 24), "out": nn.Linear(8, 8)})
        optimizer = torch.optim.SGD(model.parameters(), 0.3, momentum=0.5)
        mesh = laconic.init_device_mesh("cpu", (devices,), mesh_dim_names=("cp",))
        _, averaging = laconic.distribute(model, optimizer, sentence)
        attend = ring_attention(mesh, length, causal=True, zigzag=True)
        x = attend.cut(text)
        for _ in range(5):
            query, key, value = model["mixed"](x).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
            loss = ((model["out"](attend(query, key, value).transpose(1, 2).flatten(2)) - x) ** 2).mean()
            averaging.zero_grad()
            loss.backward()
            averaging.step()
        return float(loss.detach())

    (alone,) = laconic.simulate(partial(trained, 1, "bsp"), 1).results
    together = laconic.simulate(partial(trained, 4, sentence), 4).results
    assert sum(together) / 4 == pytest.approx(alone, abs=1e-6 if sentence == "bsp" else 2e-3)
