"""Codes of sparse tensors: runs of zeros, gaps, blocks; nothing is lost that was not pruned, and bytes are counted."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from laconic.compression.codes import golomb, trits
from laconic.compression.dfs import DFS, in_blocks, price, pruned
from laconic.compression.zero_runs import ZeroRunLength
from laconic.errors import StrategyError
from laconic.runtime.meeting import Meeting
from tests.compression.table import compressor, meet, spec_of, tensor

MEET = Meeting(0, 1, 0, "x")
SEEDS = st.integers(0, 10_000)
CODES = ["runs", "golomb", "elias"]


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def thinned(numel: int, density: float, seed: int) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(numel, generator=draw) * (torch.rand(numel, generator=draw) < density)


# ---------------------------------------------------------------------------------------------- zero_run_length


@pytest.mark.long
@given(st.integers(0, 500), st.sampled_from([0.0, 0.001, 0.05, 0.5, 1.0]), st.sampled_from(CODES), SEEDS)
@settings(max_examples=120, deadline=None)
@pytest.mark.technique("zero_run_length", check=1)
def test_what_is_decoded_is_what_was_encoded(numel: int, density: float, code: str, seed: int) -> None:
    """Of empty, all-zero, all-non-zero and random tensors."""
    made, x = ZeroRunLength(code), thinned(numel, density, seed)
    payload = made.encode(x, MEET)
    assert torch.equal(made.decode(payload, x.shape, MEET), x)
    assert len(payload) <= made.payload_bytes(spec_of(x), 1)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("numel", [0, 1, 7, 8, 9, 40])
def test_no_tensor_takes_more_than_one_without_zeros(numel: int, code: str) -> None:
    """Which takes six bytes a value in runs, otherwise their number, a bit and four bytes each. The others have few
    zeros, or few values far apart."""
    made, x = ZeroRunLength(code), torch.ones(numel)
    most = made.payload_bytes(spec_of(x), 1)
    assert len(made.encode(x, MEET)) == most == (6 * numel if code == "runs" else 4 + 4 * numel + math.ceil(numel / 8))
    for k in range(1, numel + 1):
        for places in (torch.arange(k), torch.arange(numel - k, numel), torch.arange(0, numel, k)):
            thin = torch.zeros(numel).index_fill_(0, places, 1.0)
            for other in (thin, 1 - thin):
                assert len(made.encode(other, MEET)) <= most


@given(st.lists(st.integers(0, 500_000), max_size=8, unique=True), st.sampled_from(CODES))
@settings(max_examples=30, deadline=None)
@pytest.mark.technique("zero_run_length", check=1)
def test_long_runs_lose_nothing(places: list[int], code: str) -> None:
    made, x = ZeroRunLength(code), torch.zeros(500_001)
    x[places] = torch.arange(1.0, len(places) + 1)
    assert torch.equal(made.decode(made.encode(x, MEET), x.shape, MEET), x)


@given(st.lists(st.tuples(st.sampled_from([-1, 0, 0, 1]), st.integers(1, 300)), max_size=8))
@settings(max_examples=60, deadline=None)
@pytest.mark.technique("zero_run_length", check=1)
def test_the_byte_form_loses_nothing(runs: list[tuple[int, int]]) -> None:
    """That of ternary digits: also of none, of zeros alone, of none that are zero."""
    sent = torch.tensor([digit for digit, count in runs for _ in range(count)], dtype=torch.int8)
    packed = trits.pack(sent)
    short = trits.shorten(packed)
    assert torch.equal(trits.lengthen(short), packed) and len(short) <= len(packed)
    assert torch.equal(trits.unpack(trits.lengthen(short), len(sent)), sent)


@pytest.mark.technique("zero_run_length", check=2)
@pytest.mark.parametrize("seed", range(3))
def test_golomb_gaps_are_near_the_entropy(seed: int) -> None:
    """At a density of 0.001, H/rho is 11.4 bits for each place; plain ones take 32."""
    numel, rho = 2_000_000, 0.001
    places = torch.nonzero(torch.rand(numel, generator=torch.Generator().manual_seed(seed)) < rho).view(-1)
    entropy = -(rho * math.log2(rho) + (1 - rho) * math.log2(1 - rho)) / rho
    assert entropy == pytest.approx(11.4, abs=0.05)
    taken = 8 * len(golomb.write(places, numel)) / len(places)
    assert entropy * 0.98 <= taken <= 1.05 * entropy
    x = torch.zeros(numel).index_fill_(0, places, 1.0)
    assert len(ZeroRunLength("golomb").encode(x, MEET)) == 4 + 4 * len(places) + len(golomb.write(places, numel))


def test_sixteen_bits_a_run_and_four_bytes_a_value() -> None:
    x = thinned(10_000, 0.01, 0)
    assert len(ZeroRunLength().encode(x, MEET)) == 6 * int((x != 0).sum())


# ---------------------------------------------------------------------------------------------- dfs


def by_definition(flat: Tensor, size: int, kept: Tensor) -> Tensor:
    return (in_blocks(flat, size) * kept[:, None]).view(-1)[: flat.numel()]


@pytest.mark.long
@given(st.integers(1, 3000), st.floats(0, 0.95), st.sampled_from(["normal", "heavy", "sparse", "zero"]), SEEDS)
@settings(max_examples=80, deadline=None)
@pytest.mark.technique("dfs", check=1)
def test_a_message_is_its_blocks_and_says_what_was_pruned_exactly(
    numel: int, prune: float, kind: str, seed: int
) -> None:
    made, x = DFS(prune), tensor(kind, (numel,), seed)
    rows, left = made.choose(x)
    payload = made.encode(x, MEET)
    size, blocks = rows.shape[1], int(left.sum())
    assert len(payload) == blocks * (4 + 4 * size) <= made.payload_bytes(spec_of(x), 1)
    sent = made.decode(payload, x.shape, MEET)
    assert torch.equal(sent, by_definition(x, size, left))
    lost = float((x - sent).double().square().sum())
    assert lost <= prune * float(x.double().square().sum()) * (1 + 1e-9)


def clustered(seed: int, numel: int = 20_000) -> Tensor:
    """Large values in stretches of different lengths, as of embeddings and filters, and a little noise."""
    draw = torch.Generator().manual_seed(seed)
    x = 0.01 * torch.randn(numel, generator=draw)
    for start in torch.randint(numel, (40,), generator=draw).tolist():
        stretch = int(torch.randint(1, 200, (1,), generator=draw))
        x[start : start + stretch] += torch.randn(len(x[start : start + stretch]), generator=draw)
    return x


@pytest.mark.technique("dfs", check=2)
@pytest.mark.parametrize("prune", [0.001, 0.05, 0.3])
@pytest.mark.parametrize("seed", range(4))
def test_no_other_block_size_is_cheaper_for_the_same_pruned_gradient(prune: float, seed: int) -> None:
    for x in (clustered(seed), normal(seed, 5000), tensor("heavy", (5000,), seed), tensor("sparse", (5000,), seed)):
        made = DFS(prune)
        payload = made.encode(x, MEET)
        sent = made.decode(payload, x.shape, MEET)
        for size in (8, 32, 128, 512):
            blocks = int(in_blocks(sent, size).any(dim=1).sum())
            assert len(payload) <= price(blocks, size), size


@pytest.mark.technique("dfs", check=3)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["clustered", "normal", "heavy"])
def test_at_the_same_pruned_energy_it_is_shorter_than_a_threshold(kind: str, seed: int) -> None:
    """The threshold that prunes at most as much; in the same format, with its best block size."""
    x = clustered(seed) if kind == "clustered" else tensor(kind, (5000,), seed)
    made, prune = DFS(0.1), 0.1
    squares, order = x.double().square().sort()
    flat = x.clone()
    flat[order[squares.cumsum(0) <= prune * float(squares.sum())]] = 0.0
    sizes = [price(int(in_blocks(flat, size).any(dim=1).sum()), size) for size in made.blocks]
    assert len(made.encode(x, MEET)) < min(sizes)


def test_dense_gradients_take_large_blocks_and_scattered_ones_small() -> None:
    sizes = [DFS(0.001).choose(x)[0].shape[1] for x in (normal(0, 4096), clustered(0), tensor("sparse", (4096,)))]
    assert sizes[0] == 512 > sizes[1] >= sizes[2] == 8


def test_pruning_leaves_out_as_many_blocks_as_can_be() -> None:
    rows = torch.tensor([[3.0], [1.0], [2.0], [0.0]])
    assert pruned(rows, 4.9).tolist() == [True, False, True, False]
    assert pruned(rows, 5.0).tolist() == [True, False, False, False]


def test_dfs_remembers_with_ef_and_refuses_odd_blocks() -> None:
    made, x = compressor("dfs(0.5)+ef"), clustered(0)
    (outcome,) = meet(made, [x])
    torch.testing.assert_close(outcome.result + outcome.state["error"], x)
    for refused in ((12,), (4,), (), (8, 1 << 18)):
        with pytest.raises(StrategyError, match="powers of two"):
            DFS(blocks=refused)
    assert DFS(blocks=(8, 1 << 17)).blocks == (8, 1 << 17)
