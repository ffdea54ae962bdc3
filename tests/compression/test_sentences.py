"""Whole methods that are sentences: CocktailSGD, SparseLoCo, Qsparse-local-SGD."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from laconic.compression.chunks import StridedBits, codes_of
from laconic.compression.codes import bits
from laconic.compression.optional import contraction_of
from laconic.compression.topk import largest
from laconic.values.tensor_spec import TensorSpec
from tests.compression.table import compressor, meet, spec_of, tensor
from tests.compression.test_momentum import train
from tests.data import fixture
from tests.sync import rounds


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


# ---------------------------------------------------------------------------------------------- CocktailSGD


@pytest.mark.evidence("cocktail_sgd", recording="cocktail_sgd.npz")
def test_cocktails_codec_gives_the_authors_numbers() -> None:
    kept = fixture("cocktail_sgd.npz")
    cases = sum(name.startswith("x_") for name in kept)
    for i in range(cases):
        x, k = torch.from_numpy(kept[f"x_{i}"].copy()).reshape(-1), int(kept[f"k_{i}"])
        width, bucket = int(kept[f"bits_{i}"]), int(kept[f"bucket_{i}"])
        places = largest(x, k)
        marked = torch.zeros(x.numel(), dtype=torch.uint8)
        marked[places] = 1
        assert np.array_equal(np.packbits(marked.numpy()), kept[f"mask_packed_{i}"].reshape(-1))
        codec, values = StridedBits(width, bucket), x[places]
        columns = -(-k // bucket)
        matrix = torch.nn.functional.pad(values, (0, columns * bucket - k)).view(-1, columns)
        scales = matrix.abs().amax(dim=0).to(torch.float16)
        assert np.array_equal(scales.numpy().reshape(-1), kept[f"scale_{i}"].reshape(-1))
        assert np.array_equal(codes_of(matrix, scales, width).numpy(), kept[f"codes_{i}"])
        dense = torch.zeros_like(x)
        payload = codec.encode(values, None)  # type: ignore[arg-type]
        assert payload.numel() == bits.length(k, width) + 2 * columns
        dense[places] = codec.decode(payload, values.shape, None)  # type: ignore[arg-type]
        np.testing.assert_allclose(dense.numpy(), kept[f"decoded_{i}"].reshape(-1), rtol=1e-5, atol=1e-7)


@pytest.mark.long
@pytest.mark.technique("cocktail_sgd", check=1)
def test_cocktail_that_sends_everything_averages_models() -> None:
    whole = train("difference_averaging / flat+masked(1.0)+topk(1.0)+two_hop(memory=true)", 12, 3, sgd)[0]
    assert all(torch.equal(x, whole[0]) for x in whole)
    torch.testing.assert_close(whole[0], train("bsp", 12, 3, sgd)[0][0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("overlap", [False, True])
def test_differences_move_the_own_and_the_common_model(overlap: bool) -> None:
    """The docstring's formula written out, without compression: what was sent leaves the own model and the mean of it
    joins both, with `overlap` after the next step."""
    replicas = [rounds.net() for _ in range(3)]
    common, sent, own = rounds.flat(replicas[0].parameters()), [], []

    def complete() -> None:
        nonlocal common, own
        if sent:
            mean = torch.stack(sent).mean(dim=0)
            common, own = common + mean, [x - mine + mean for x, mine in zip(own, sent, strict=True)]

    for step in range(5):
        own = []
        for rank, replica in enumerate(replicas):
            optimizer = rounds.sgd(replica.parameters())
            rounds.loss(replica, rank, step).backward()
            optimizer.step()
            optimizer.zero_grad()
            own.append(rounds.flat(replica.parameters()))
        if overlap:
            complete()
        sent = [x - common for x in own]
        if not overlap:
            complete()
        for replica, x in zip(replicas, own, strict=True):
            torch.nn.utils.vector_to_parameters(x, replica.parameters())
    runs = rounds.simulated(f"difference_averaging(overlap={str(overlap).lower()})", 5, workers=3)
    rounds.assert_same(runs, own, 1e-12)
    assert overlap != torch.allclose(own[0], own[1])


CODEC = "flat+masked(0.1)+topk(0.2, index=bitmap)+strided_bits(4, 128)+two_hop(memory=true)"


@pytest.mark.long
@pytest.mark.technique("cocktail_sgd", check=2)
@pytest.mark.parametrize("overlap", ["true", "false"])
def test_the_common_model_is_common_and_bytes_are_the_formulas(overlap: str) -> None:
    def common(model: Any, optimizer: Any) -> None:
        seen.append([v.clone() for k, v in sorted(optimizer.session.partitions[0].tiers[0].sync_state.items())])

    seen: list[Any] = []
    workers = 2
    parameters, sent, _, _ = train(f"difference_averaging(overlap={overlap}) / {CODEC}", 9, workers, sgd, probe=common)
    unit = math.lcm(1, 8)
    part = -(-parameters[0].numel() // (workers * unit)) * unit
    m = math.ceil(0.1 * part - 1e-9)
    k = math.ceil(0.2 * m - 1e-9)
    each = -(-m // 8) + -(-4 * k // 8) + 2 * -(-k // 128)
    assert sent[-1] == 2 * (workers - 1) * each
    assert not all(torch.equal(a, b) for a, b in zip(seen[2], seen[-1], strict=True)), "it moves"


@pytest.mark.long
@pytest.mark.technique("cocktail_sgd", check=3)
def test_nothing_is_lost_between_workers_owners_and_the_common_model() -> None:
    """Exchanged in memory: what all sent in the mean is what was applied and what owners keep; and it left the
    workers."""
    made, size = compressor(CODEC.removeprefix("flat+")), 3
    apart = [tensor("heavy", (40, 30), seed=r) for r in range(size)]
    states = [made.init(spec_of(apart[0])) for _ in range(size)]
    for step in range(15):
        before = sum(s["owner"].double() for s in states)
        outcomes = meet(made, apart, states, step)
        states = [o.state for o in outcomes]
        after = sum(s["owner"].double() for s in states)
        decoded = torch.stack([o.sent for o in outcomes]).double().mean(0)  # type: ignore[arg-type,misc]
        torch.testing.assert_close(outcomes[0].result.double() + after, decoded + before, rtol=1e-4, atol=1e-5)
        apart = [
            x - o.sent + tensor("normal", (40, 30), 100 * step + r) / 10
            for r, (x, o) in enumerate(zip(apart, outcomes, strict=True))
        ]  # type: ignore[operator]


# ---------------------------------------------------------------------------------------------- SparseLoCo


@pytest.mark.long
@pytest.mark.technique("sparseloco", check=1)
def test_sparseloco_that_sends_everything_is_local_sgd() -> None:
    whole = train("diloco(period=3, lr=1.0, momentum=0.0) / chunk_topk(k=4096)+ef(decay=0.95)", 12, 3, sgd)[0]
    local = train("local_sgd(3)", 12, 3, sgd)[0]
    torch.testing.assert_close(whole[0], local[0], rtol=1e-5, atol=1e-6)
    made = compressor("chunk_topk(k=4096)+ef(decay=0.95)")
    state = made.init(spec_of(tensor("heavy")))
    for step in range(4):
        (outcome,) = meet(made, [tensor("heavy", seed=step)], [state], step)
        state = outcome.state
        assert not state["error"].any()


@pytest.mark.technique("sparseloco", check=2)
@pytest.mark.parametrize("beta", [1.0, 0.95, 0.5])
def test_what_a_fading_memory_holds(beta: float) -> None:
    made = compressor(f"chunk_topk(chunk=64, k=4)+two_bit+ef(decay={beta})")
    state, reported, came = made.init(spec_of(tensor("heavy"))), 0.0, 0.0
    for step in range(20):
        x = tensor("heavy", seed=step)
        old = state["error"].clone()
        (outcome,) = meet(made, [x], [state], step)
        state = outcome.state
        decoded = outcome.result
        torch.testing.assert_close(state["error"] + decoded, beta * old + x, rtol=1e-4, atol=1e-4)
        reported, came = reported + decoded.double(), came + x.double()
    if beta == 1.0:
        torch.testing.assert_close(reported + state["error"].double(), came, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("numel", "k"), [(4096, 32), (3 * 4096, 64), (8192, 128)])
def test_sparselocos_payload(numel: int, k: int) -> None:
    made = compressor(f"chunk_topk(k={k})+two_bit")
    chunks = numel // 4096
    assert made.payload_bytes(TensorSpec("x", (numel,), torch.float32), 2) == chunks * -(-14 * k // 8) + 20


@pytest.mark.parametrize(("numel", "delta"), [(8, 0.5), (3, 1.0), (20, 0.25), (34, 0.25)])
def test_what_a_chunk_is_sure_to_send(numel: int, delta: float) -> None:
    """Of equal values in one full chunk, the rest zeros: a short last chunk sends more, and does not help."""
    made, x = compressor("chunk_topk(chunk=16, k=4)"), torch.zeros(numel)
    x[:16] = 1.0
    (outcome,) = meet(made, [x])
    assert contraction_of(made, spec_of(x)) == delta
    assert (x - outcome.result).square().sum() == pytest.approx((1 - delta) * float(x.square().sum()))


# ---------------------------------------------------------------------------------------------- Qsparse-local-SGD


@pytest.mark.long
@pytest.mark.technique("qsparse_local_sgd", check=1)
def test_sending_everything_is_local_sgd_and_bsp() -> None:
    local = train("local_sgd(4)", 12, 3, sgd)[0][0]
    torch.testing.assert_close(train("local_sgd(4) / topk(1.0)+ef", 12, 3, sgd)[0][0], local, rtol=1e-5, atol=1e-6)
    assert torch.equal(train("local_sgd(1) / none", 12, 3, sgd)[0][0], train("bsp", 12, 3, sgd)[0][0])


@pytest.mark.long
@pytest.mark.technique("qsparse_local_sgd", check=2)
@pytest.mark.parametrize("levels", [1, 4, 30])
def test_composed_operators_contract(levels: int) -> None:
    """γ = (1-b)·k/n where b < 1, and k/(n(1+b)) for any b when what is sent counts 1/(1+b)."""
    made = compressor(f"topk(0.1)+qsgd(levels={levels}, bucket=64)")
    for kind in ("normal", "heavy", "sparse"):
        x = tensor(kind)
        n, k = x.numel(), math.ceil(0.1 * x.numel())
        b = min(min(64, k) / levels**2, math.sqrt(min(64, k)) / levels)
        whole = float(x.double().square().sum())
        for share, gamma in ((1.0, (1 - b) * k / n if b < 1 else None), (1 / (1 + b), k / (n * (1 + b)))):
            if gamma is None:
                continue
            left = [float((x - share * meet(made, [x], step=s)[0].result).double().square().sum()) for s in range(200)]
            assert np.mean(left) <= (1 - gamma) * whole + 4 * np.std(left) / math.sqrt(200)


@pytest.mark.long
@pytest.mark.technique("qsparse_local_sgd", check=3)
def test_nobody_goes_longer_without_meeting() -> None:
    _, sent, _, _ = train("qsparse_local_sgd", 33, 2, sgd)
    met = [step for step, nbytes in enumerate(sent, 1) if nbytes]
    assert met == [8, 16, 24, 32]
