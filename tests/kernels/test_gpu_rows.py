"""Rows of blocks and the short memory in Triton against the reference, bit by bit."""

from __future__ import annotations

import pytest
import torch

from laconic.kernels import block_rows, blocks, reference
from laconic.kernels.reference.blocks import BlockFormat
from tests.kernels.on import DEVICE, KINDS, gpu, misaligned, poisoned, same, tensor
from tests.kernels.test_gpu_blocks import hard

QUICK = [1027, 2304, 1]  # one length for each format unless long tests are asked for
KEPT = BlockFormat("int8", "float32", 1024)
FORMATS = [
    BlockFormat("int4", "float32", 128),
    BlockFormat("int8", "float32", 256),
    BlockFormat("e4m3", "e8m0", 32),
    BlockFormat("int8", "float32", 64, stochastic=True),
    BlockFormat("int8", "float32", 100),  # no body
    BlockFormat("int8", "float32", 0),  # no body for rows
]


def matrix(kind: str, rows: int, n: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    x = hard(kind, rows * n, seed)
    return x.clamp(-6e4, 6e4).to(dtype).view(rows, n) if dtype == torch.float16 else x.to(dtype).view(rows, n)


@pytest.mark.parametrize(
    ("how", "n", "dtype"),
    [
        pytest.param(how, n, dtype, id=f"{how}-{n}", marks=() if n == QUICK[i % 3] else pytest.mark.long)
        for i, how in enumerate(FORMATS)
        for n, dtype in ((1027, torch.bfloat16), (2304, torch.float32), (1, torch.float16))
    ],
)
def test_rows_are_encoded_and_decoded_as_the_reference_does(how: BlockFormat, n: int, dtype: torch.dtype) -> None:
    x = matrix("nan" if n > 1 else "normal", 3, n, dtype)
    with poisoned():
        messages = gpu.encode_block_rows(x, how, 2**63 + 5)
    assert same(messages, block_rows.encode_block_rows(reference, x, how, 2**63 + 5))
    assert same(messages[1], blocks.encode_blocks(reference, [x[1].float()], None, how, [2**63 + 5]))
    for kind in (dtype, torch.float32):
        out, expected = (torch.full((5, n), 7.0, dtype=kind, device=DEVICE) for _ in range(2))
        gpu.decode_block_rows(messages, out[1:4], how)
        block_rows.decode_block_rows(reference, messages, expected[1:4], how)
        assert same(out.float(), expected.float()) and (out[::4] == 7).all()


@pytest.mark.parametrize(
    ("kind", "rows", "n", "dtype", "blend", "how"),
    [
        ("normal", 3, 1152, torch.bfloat16, 0.2, FORMATS[0]),  # blocks of the memory reach over the ends of rows
        ("nan", 2, 2048, torch.float32, 0.2, FORMATS[0]),
        ("infinite", 5, 128, torch.float32, 0.7, FORMATS[0]),  # several rows in a block of the memory
        pytest.param("heavy", 1, 3328, torch.float16, 1.0, FORMATS[1], marks=pytest.mark.long),
        ("zero", 2, 1024, torch.bfloat16, 0.2, FORMATS[0]),
        ("normal", 3, 1027, torch.bfloat16, 0.2, FORMATS[0]),  # blocks of the messages lie across: two passes
        pytest.param("nan", 4, 1104, torch.float32, 1.0, FORMATS[0], marks=pytest.mark.long),
        ("infinite", 7, 333, torch.bfloat16, 0.2, FORMATS[1]),
        ("normal", 2, 1024, torch.float32, 0.2, FORMATS[2]),  # no body
        *[pytest.param(k, 3, 1920, torch.float32, 0.2, FORMATS[0], marks=pytest.mark.long) for k in KINDS],
    ],
)
def test_a_short_memory_is_the_references(
    kind: str, rows: int, n: int, dtype: torch.dtype, blend: float, how: BlockFormat
) -> None:
    memory = expected = torch.zeros(KEPT.message_bytes(rows * n), dtype=torch.uint8, device=DEVICE)
    for step in range(3):  # from nothing, and from what was kept
        x = matrix(kind, rows, n, dtype, step)
        before = memory.clone()
        with poisoned():
            messages, after = gpu.feed_short_memory(x, memory, how, KEPT, blend)
        assert same(memory, before)  # the old memory is left as it is
        wanted, expected = block_rows.feed_short_memory(reference, x, expected, how, KEPT, blend)
        assert same(messages, wanted) and same(after, expected)
        assert kind == "zero" or after.any()
        memory = after


def test_a_matrix_that_begins_anywhere() -> None:
    x = misaligned(tensor("normal", 3 * 1280), 3).view(3, 1280)
    memory = torch.zeros(KEPT.message_bytes(x.numel()), dtype=torch.uint8, device=DEVICE)
    for found, wanted in zip(
        gpu.feed_short_memory(x, memory, FORMATS[0], KEPT, 0.2),
        block_rows.feed_short_memory(reference, x, memory, FORMATS[0], KEPT, 0.2),
        strict=True,
    ):
        assert same(found, wanted)
