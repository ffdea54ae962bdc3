"""MIPD: half of the model at a time, asynchronous SGD where nothing is left out, and a server that smooths."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import laconic
from laconic.architecture.server.actor import Push
from laconic.architecture.server.sharding import Range
from laconic.architecture.server.store import Store
from laconic.compression.rms_threshold import Important
from laconic.compression.zipml import ZipML
from laconic.real.connect import connect
from laconic.runtime.meeting import Meeting
from laconic.strategy import Strategy
from laconic.sync.mipd import SmoothedASP
from laconic.values.tensor_spec import TensorSpec
from laconic.virtual.compute import Compute
from laconic.worker import Kind
from tests.sync import digits, rounds, serving

LEFT_OUT = -0.0
UNEVEN = Compute(forward_seconds=0.01, slowness=(1.0, 1.3, 1.7, 2.3))


def store_of(x: Tensor, rate: float = 1.0) -> Store:
    spec = TensorSpec("x", tuple(x.shape), x.dtype)
    store = Store([Range(0, 0, x.numel(), 0)], [spec], [x], torch.optim.SGD([x], lr=rate), size=1)
    store.set([x])
    return store


def push(rule: SmoothedASP, store: Store, *gradient: float) -> dict[str, object]:
    tensor = torch.tensor(gradient, dtype=store.values[0].dtype)
    return dict(rule.receive(store, Push(0, 0, store.version, [tensor], {})))


@pytest.mark.long
@pytest.mark.technique("mipd", check=1)
def test_a_step_touches_at_most_half_of_the_model() -> None:
    """Counted by what changed in the server's model, and by what the server reports of each push; layer by layer
    too."""

    def body() -> list[list[int]]:
        model = digits.network(0)
        model, optimizer = laconic.distribute(model, rounds.sgd(model.parameters()), "mipd")
        images, labels, *_ = digits.data()
        counts = []
        for step in range(10):
            before = [p.detach().clone() for p in model.parameters()]
            chosen = slice(32 * step, 32 * step + 32)
            torch.nn.functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()
            optimizer.step()
            optimizer.zero_grad()
            changed = [int((p != old).sum()) for p, old in zip(model.parameters(), before, strict=True)]
            assert sum(changed) <= optimizer.session.noted["touched"]
            counts.append([*changed, int(optimizer.session.noted["touched"])])
        return counts

    (counts,) = laconic.simulate(body, 1).results
    sizes = [p.numel() for p in digits.network(0).parameters()]
    for *changed, touched in counts:
        assert all(count <= size // 2 for count, size in zip(changed, sizes, strict=True))
        assert 0 < touched <= sum(sizes) // 2
    _, trace = serving.train("mipd", 16, 4, digits.sgd(0.4), compute=UNEVEN)
    assert all(noted["touched"] <= sum(sizes) // 2 for noted in trace.noted)


@pytest.mark.long
@pytest.mark.technique("mipd", check=2)
@pytest.mark.parametrize("words", ["important(1.0)", "none"])
def test_with_everything_kept_it_is_asynchronous_sgd(words: str) -> None:
    """Unequal workers, real staleness, momentum on the server: the same pushes and the same losses, whatever a is."""
    plain, smoothed = (
        serving.train(f"{s} / ps", 60, 4, digits.sgd(0.2, 0.5), every=5, compute=UNEVEN)
        for s in ("asp / none", f"smoothed_asp(smoothing=0.2) / {words}")
    )
    assert max(plain[1].staleness) > 1
    assert plain[1].staleness == smoothed[1].staleness
    assert plain[1].losses == smoothed[1].losses
    assert plain[0].results == smoothed[0].results


@pytest.mark.technique("mipd", check=3)
@pytest.mark.parametrize("a", [0.05, 0.2, 0.5, 1.0])
def test_the_estimate_converges_to_a_constant_gradient(a: float) -> None:
    """From zero, within 1 % after 5/a pushes, by the share a of what is left in each; what was left out in between
    changes nothing."""
    rule, store = SmoothedASP(smoothing=a), store_of(torch.zeros(3, dtype=torch.float64))
    rule.open(store)
    value = torch.tensor([2.0, -0.3, 1e-6], dtype=torch.float64)
    push(rule, store, 0.0, 0.0, 0.0)
    for count in range(1, math.ceil(5 / a) + 1):
        push(rule, store, *value.tolist())
        push(rule, store, LEFT_OUT, LEFT_OUT, LEFT_OUT)
        torch.testing.assert_close(store.memory["smoothed"][0], (1 - (1 - a) ** count) * value)
    torch.testing.assert_close(store.memory["smoothed"][0], value, rtol=0.01, atol=0)


def test_alone_and_with_nothing_left_out_it_is_serial_sgd() -> None:
    """To the bit, and zeros that a gradient has with a negative sign are sent, not left out."""
    (run,) = rounds.simulated("smoothed_asp", 6, rounds.with_momentum, workers=1)
    rounds.assert_same([run], rounds.by_hand(6, 6, rounds.with_momentum, None, workers=1), tolerance=0)

    def body() -> float:
        model: Any = torch.nn.Linear(3, 1, bias=False)
        model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), "smoothed_asp")
        (model.weight * torch.tensor([-0.0, 0.0, 1.0])).sum().backward()
        optimizer.step()
        return optimizer.session.noted["touched"]

    assert laconic.simulate(body, 1).results == [3]


def test_the_rule_by_hand() -> None:
    """a = 1/4, rate 1: a value steps by its gradient while it comes, and by the estimate where one was left out."""
    rule, store = SmoothedASP(smoothing=0.25), store_of(torch.zeros(2, dtype=torch.float64))
    rule.open(store)
    assert push(rule, store, 4.0, 8.0)["touched"] == 2
    assert store.values[0].tolist() == [-4.0, -8.0]
    assert push(rule, store, 4.0, LEFT_OUT)["touched"] == 1
    assert store.values[0].tolist() == [-8.0, -8.0]
    assert push(rule, store, 0.0, 4.0)["touched"] == 2  # a zero that came is a gradient
    assert store.memory["smoothed"][0].tolist() == [3.0, 7.0]
    assert store.values[0].tolist() == [-8.0, -15.0]
    push(rule, store, 1.0, 8.0)
    assert store.values[0].tolist() == [-9.0, -23.0]


def test_a_server_goes_on_from_its_snapshot() -> None:
    rule, stores = SmoothedASP(), [store_of(torch.zeros(2)) for _ in range(2)]
    for store in stores:
        rule.open(store)
    push(rule, stores[0], 1.0, 2.0)
    push(rule, stores[0], 1.0, LEFT_OUT)
    stores[1].restore(stores[0].state())
    for store in stores:
        push(rule, store, 1.0, 1.0)
        assert store.values[0].tolist() == [-3.0, -3.5]


# ------------------------------------------------------------------------------------------------ what is sent


def decoded(x: Tensor, ratio: float = 0.5) -> Tensor:
    codec, meet = Important(ratio), Meeting(0, 1, 0, "x")
    return codec.decode(codec.encode(x, meet), x.shape, meet)


@settings(max_examples=60)
@given(st.integers(2, 300), st.sampled_from([0.1, 0.35, 0.5, 0.9]), st.integers(0, 999))
def test_each_layer_has_a_limit_of_its_own(n: int, ratio: float, seed: int) -> None:
    x = torch.randn(n, generator=torch.Generator().manual_seed(seed)) * 10.0 ** (seed % 9 - 4)
    codec, found = Important(ratio), decoded(x, ratio)
    kept = ~(found.eq(0) & found.signbit())
    assert torch.equal(found[kept], x[kept])
    assert 1 <= int(kept.sum()) <= max(1, int(ratio * n))
    if int(kept.sum()) > 1:
        limit = codec.multiple * float(x.double().square().mean().sqrt())
        assert float(x[kept].abs().min()) >= limit * (1 - 1e-5)
        full = int(kept.sum()) == codec.count(n)
        assert full or float(x[~kept].abs().max()) <= limit * (1 + 1e-5)


@pytest.mark.parametrize("ratio", [0.1, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("n", [2, 10, 300])
def test_what_is_left_out_is_no_more_than_promised(n: int, ratio: float) -> None:
    """At worst all values are equal: below a ratio of 0.32 they miss the limit, and one alone is sent."""
    delta = Important(ratio).contraction(TensorSpec("x", (n,), torch.float32))
    assert delta is not None and delta >= 1 / n
    for x in (torch.ones(n), torch.linspace(0.9, 1.1, n), torch.randn(n, generator=torch.Generator().manual_seed(n))):
        rest = x - decoded(x, ratio)
        assert float(rest.square().sum()) <= (1 - delta) * float(x.square().sum()) * (1 + 1e-5)


def test_heavy_tails_send_less_and_flat_layers_no_more_than_half() -> None:
    draw = torch.Generator().manual_seed(0)
    normal = torch.randn(20_000, generator=draw)
    shares = [int((decoded(x) != 0).sum()) / x.numel() for x in (normal, normal**3, torch.ones(500))]
    assert shares[0] == pytest.approx(0.5, abs=0.01)
    assert shares[1] < 0.3
    assert shares[2] == 0.5
    assert not decoded(torch.zeros(8)).any()
    assert decoded(torch.tensor([1.0, torch.nan, 2.0, 3.0])).isnan().tolist() == [False, True, False, False]
    assert decoded(torch.tensor([1.0, -torch.inf, 2.0, 3.0]))[1] == -torch.inf
    huge = decoded(torch.tensor([3e38, 1e38, 1e30, 0.0]))
    assert huge.isfinite().all() and huge[0] == torch.tensor(3e38)


@pytest.mark.long
def test_bytes_are_a_bitmap_four_bits_each_and_a_table() -> None:
    """At most: 4 for the count, n/8 for the bitmap, half a byte for each of n/2 values, and 16 levels of 4 bytes."""
    sentence = Strategy.parse("mipd")
    codec = sentence.compressor  # type: ignore[attr-defined]
    assert isinstance(codec.selector, Important) and isinstance(codec.values, ZipML)
    n = 4096
    assert codec.payload_bytes(TensorSpec("x", (n,), torch.float32), 4) == 4 + n // 8 + n // 4 + 64

    def body() -> list[float]:
        model = digits.network(0)
        model, optimizer = laconic.distribute(model, rounds.sgd(model.parameters()), "mipd")
        ledger, images, sent = connect().ledger, digits.data()[0], []
        for step in range(5):
            before = ledger.sent_bytes(Kind.PAYLOAD)
            model(images[step : step + 8]).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            sent.append(ledger.sent_bytes(Kind.PAYLOAD) - before)
        return sent

    most = sum(codec.payload_bytes(TensorSpec("x", p.shape, p.dtype), 1) for p in digits.network(0).parameters())
    whole = sum(p.nbytes for p in digits.network(0).parameters())
    for sent in laconic.simulate(body, 2).results:
        assert all(0 < nbytes <= most for nbytes in sent)
    assert most < 0.15 * whole


@pytest.mark.long
def test_the_reference_task_is_learned() -> None:
    """Against asynchronous SGD with the same number of gradients."""
    losses = {
        s: serving.train(s, 120, 4, digits.sgd(0.8), compute=UNEVEN)[0].results[0] for s in ("asp / none / ps", "mipd")
    }
    assert losses["mipd"] < losses["asp / none / ps"] + 0.25
    assert losses["mipd"] < 1.0
