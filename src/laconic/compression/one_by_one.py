"""Why a bucket's tensors are exchanged one by one, in words: what to change where that is too slow."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from laconic.compression.base import Compressor
from laconic.compression.bucket import BucketMeet, TensorBucket, is_changed_below
from laconic.compression.codec import Codec
from laconic.compression.optional import WholeBucket, exchange_bucket_of, implementation

_PARTS = (
    ("exchange", "exchange_bucket"),
    ("average", "exchange_bucket"),
    ("encode", "feed_all"),
    ("mean", "means"),
    ("choose", "feed_bucket"),
)
"""Methods for one tensor, each with the one that does the same for a whole bucket."""


def reason(compressor: Compressor, bucket: TensorBucket, meet: BucketMeet) -> str:
    """Return why this compressor exchanges the tensors of this bucket one by one."""
    flat = bucket.flat
    if flat.dtype != torch.float32:
        single = torch.empty(flat.shape, dtype=torch.float32, device="meta")
        if exchange_bucket_of(compressor, TensorBucket(bucket.specs, single, bucket.vectors, bucket.lists), meet):
            return f"gradients are {str(flat.dtype).removeprefix('torch.')}, and whole buckets are of float32"
    for part in reversed(list(_chain(compressor))):
        if implementation(part, WholeBucket) is None:  # type: ignore[type-abstract]
            return f"{_name(part)} declares no exchange of whole buckets (`exchange_bucket`)"
        if isinstance(part, Codec) and not part.lists and type(part).exchange_bucket is Codec.exchange_bucket:
            return f"{_name(part)} declares no encoding of lists of tensors (`lists`)"
        for method, whole in _PARTS:
            if hasattr(part, method) and hasattr(part, whole) and is_changed_below(part, method, whole):
                return f"{type(part).__name__} changes `{method}` and inherits `{whole}`, which does something else"
    return f"{_name(compressor)} exchanges such tensors one by one"


def _chain(compressor: Compressor) -> Iterator[Compressor]:
    """Yield a compressor and those inside it."""
    inside: Compressor | None = compressor
    while inside is not None:
        yield inside
        inside = getattr(inside, "inner", None)


def _name(compressor: Compressor) -> str:
    return compressor.name or type(compressor).__name__
