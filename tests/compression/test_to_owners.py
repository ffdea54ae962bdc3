"""Rows for the owners of shards: encoded and decoded together where a codec takes lists, with each one's own bytes."""

from __future__ import annotations

import pytest
import torch

from laconic.compression.codec import Codec
from laconic.compression.owner_rows import decoded, encoded
from laconic.runtime.meeting import Meeting
from tests.compression.table import compressor, tensor

MEET = Meeting(1, 3, 5, "x")


@pytest.mark.parametrize(
    ("text", "together"),
    [
        ("int4(33)", True),
        ("int8(block=64, rounding=stochastic)", True),
        ("int4+hadamard", True),
        ("qsgd", True),
        ("strided_bits(4, 128)+hadamard", False),
        ("topk(0.1)", False),  # its lists are whole buckets
    ],
)
@pytest.mark.parametrize("n", [1000, 77])
def test_rows_are_encoded_as_each_alone(text: str, together: bool, n: int) -> None:
    codec = compressor(text)
    assert isinstance(codec, Codec) and codec.encodes_lists is together
    for dtype in (torch.float32, torch.bfloat16):
        rows = tensor("heavy", (4, n)).to(dtype)
        payloads = encoded(codec, rows, MEET)
        assert torch.equal(payloads, torch.stack([codec.encode(row.float(), MEET) for row in rows]))
        apart = torch.stack([codec.decode(payload, rows[0].shape, MEET) for payload in payloads])
        assert torch.equal(decoded(codec, payloads, torch.empty_like(rows), MEET), apart.to(dtype))
