"""Blocks that share a scale in one compiled call on a CPU: the bytes and bits that one tensor after another gives."""

from __future__ import annotations

import pytest
import torch

from laconic import kernels
from laconic.kernels import BlockFormat, TensorList, blocks, codes, reference
from tests.kernels.test_bodies import KINDS, tensor
from tests.kernels.test_cpu_lists import copies

cpu = pytest.importorskip("laconic.kernels.cpu", reason="without Numba there is only the reference")

LENGTHS = (1, 7, 31, 33, 64, 0, 1023, 1025, 4097)
KEYS = [2**64 - 1 - 977 * n**3 for n in LENGTHS]
SHARES = [1 / n for n in range(1, 1 + len(LENGTHS))]
FORMATS = [
    BlockFormat("int8", "float32", 0),
    BlockFormat("int8", "float32", 0, stochastic=True),
    BlockFormat("int8", "float32", 64, stochastic=True),
    BlockFormat("int8", "float32", 100),
    BlockFormat("int4", "float32", 128),
    BlockFormat("int4", "float32", 33),
    BlockFormat("int4", "float32", 0, stochastic=True),
    BlockFormat("e4m3", "float32", 0),
    BlockFormat("e4m3", "float32", 128, stochastic=True),  # rounds to the nearest all the same
    BlockFormat("e5m2", "float32", 0),
    BlockFormat("e5m2", "float32", 33),
    *(
        BlockFormat(values, "e8m0", block, stochastic, ceil)
        for values in ("e4m3", "e5m2", "e2m1")
        for block, stochastic, ceil in ((32, False, True), (32, True, True), (0, True, False), (7, False, False))
    ),
]


def identical(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """In type and bits, also of zeros; what is not a number is like any other that is not."""
    if found.dtype != torch.float32 or expected.dtype != torch.float32:
        return found.dtype == expected.dtype and torch.equal(found, expected)
    same = (found.view(torch.int32) == expected.view(torch.int32)) | (found.isnan() & expected.isnan())
    return found.shape == expected.shape and bool(same.all())


def all_identical(found: list[torch.Tensor] | TensorList, expected: list[torch.Tensor] | TensorList) -> bool:
    return len(found) == len(expected) and all(map(identical, found, expected))


def hard(kind: str, sign: int = 1) -> TensorList:
    """One tensor of each length, side by side at odd places, of very different sizes, subnormal ones and the largest
    among them; with halves between codes where they are `constant`."""
    sizes, parts = torch.tensor([1.0, 1e-44, 1e-38, 1e-12, 1e12, 3e37]), []
    for n in LENGTHS:
        x = tensor(kind, max(n, 1), n)[:n] * sizes.repeat_interleave(-(-max(n, 1) // 6))[:n]
        if kind == "constant" and n:
            x = (torch.arange(n) % 509 - 254.0) / 2
            x[0] = 127.0
        parts.append(sign * x)
    return TensorList(torch.cat([torch.zeros(1), *parts])[1:].split(LENGTHS))


@pytest.mark.parametrize("how", FORMATS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_messages_memories_and_means_are_the_references(kind: str, how: BlockFormat) -> None:
    xs = hard(kind)
    for fed, counted in ((False, None), (True, None), (True, SHARES)):
        errors = TensorList(0.1 * tensor("normal", max(n, 1), 9)[:n] for n in LENGTHS) if fed else None
        expected = None if errors is None else copies(errors)
        message = cpu.encode_blocks(xs, errors, how, KEYS, counted)
        assert identical(message, blocks.encode_blocks(reference, xs, expected, how, KEYS, counted))
        assert errors is None or expected is None or all_identical(errors, expected)
    plain = cpu.encode_blocks(xs, None, how, KEYS)
    other = cpu.encode_blocks(hard(kind, -1), None, how, KEYS)
    for rows, counted in ((plain[None], None), (torch.stack([message, other, message]), SHARES)):
        means = cpu.mean_of_blocks(rows, LENGTHS, how, None, counted)
        assert all_identical(means, blocks.mean_of_blocks(reference, rows, LENGTHS, how, None, counted))


@pytest.mark.parametrize("values", ["int8", "int4", "e4m3", "e5m2", "e2m1"])
def test_every_byte_decodes_as_in_the_reference(values: str) -> None:
    """Also those that no encoder writes."""
    how = BlockFormat(values, "float32" if values.startswith("int") else "e8m0", 0)
    every = torch.arange(256, dtype=torch.uint8)
    n = len(every) * 8 // how.width
    scales = (
        torch.tensor([[0.0], [1e-45], [3.4e38], [torch.inf]]).view(torch.uint8)
        if how.whole
        else torch.tensor([[0], [1], [254], [255]], dtype=torch.uint8)
    )
    for scale in scales:
        rows = torch.cat([every, scale])[None]
        found, expected = cpu.mean_of_blocks(rows, [n], how), blocks.mean_of_blocks(reference, rows, [n], how)
        assert all_identical(found, expected)


def test_short_floats_are_rounded_as_torch_rounds_them() -> None:
    """Every bfloat16 below the largest value, with that value at the head: the scale is it, and the quotient near."""
    every = torch.arange(1 << 15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()
    for values, most in (("e4m3", 448.0), ("e5m2", 57344.0)):
        x = torch.cat([torch.tensor([most]), every[every <= most], -every[every <= most]])
        for scales in ("float32", "e8m0"):
            how = BlockFormat(values, scales, 0)
            assert identical(cpu.encode_blocks([x], None, how, []), blocks.encode_blocks(reference, [x], None, how, []))


def test_means_are_written_where_they_are_wanted_and_nowhere_else() -> None:
    how = BlockFormat("e2m1", "e8m0", 32)
    message = kernels.encode_blocks(hard("heavy"), None, how, [])
    room = torch.full((sum(LENGTHS) + 8,), 7.0)
    kernels.mean_of_blocks(message[None], LENGTHS, how, room[3:-5].split(LENGTHS))
    expected = blocks.mean_of_blocks(reference, message[None], LENGTHS, how)
    assert identical(room[3:-5], torch.cat(expected))
    assert (room[:3] == 7).all() and (room[-5:] == 7).all()


def test_a_list_of_another_layout_goes_one_by_one() -> None:
    how, x = BlockFormat("int8", "float32", 0), torch.randn(2, 4096)
    strided, out = [x.t()[:, 0], x[1]], torch.zeros(4096, 2)
    message = kernels.encode_blocks(strided, None, how, [])
    assert identical(message, blocks.encode_blocks(reference, strided, None, how, []))
    means = kernels.mean_of_blocks(message[None], [4096] * 2, how, [out[:, 0], out[:, 1]])
    assert all_identical(list(means), blocks.mean_of_blocks(reference, message[None], [4096] * 2, how))
    assert torch.equal(out[:, 0], means[0])


def test_threads_share_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    how, xs = BlockFormat("e4m3", "e8m0", 32, stochastic=True), hard("heavy")
    monkeypatch.setattr("laconic.kernels.cpu.loops._PARALLEL", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    message = cpu.encode_blocks(xs, None, how, KEYS)
    assert identical(message, blocks.encode_blocks(reference, xs, None, how, KEYS))
    found = cpu.mean_of_blocks(message[None], LENGTHS, how)
    assert all_identical(found, blocks.mean_of_blocks(reference, message[None], LENGTHS, how))
    assert cpu.encode_blocks([torch.empty(0)], None, how, [1]).numel() == 0


@pytest.mark.parametrize("kind", KINDS)
def test_natural_compression_of_a_list(kind: str) -> None:
    """Also of numbers whose exponent is the largest or none, and where a tensor ends within a group of eight."""
    xs = hard(kind)
    for remembers in (False, True):
        errors = TensorList(0.1 * tensor("normal", max(n, 1), 9)[:n] for n in LENGTHS) if remembers else None
        expected = None if errors is None else copies(errors)
        message = cpu.encode_natural(xs, errors, KEYS)
        assert identical(message, codes.encode_natural(reference, xs, expected, KEYS))
        assert errors is None or expected is None or all_identical(errors, expected)
    rows = torch.stack([message, codes.encode_natural(reference, hard(kind, -1), None, KEYS), message])
    assert all_identical(cpu.mean_of_natural(rows, LENGTHS), codes.mean_of_natural(reference, rows, LENGTHS))
    assert all_identical(cpu.mean_of_natural(rows[:1], LENGTHS), codes.mean_of_natural(reference, rows[:1], LENGTHS))
    part = codes.encode_natural(reference, xs[-1:], None, KEYS[-1:])
    assert identical(cpu.decode_natural(part, LENGTHS[-1]), codes.decode_natural(reference, part, LENGTHS[-1]))
