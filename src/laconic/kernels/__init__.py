"""The hot loops of compression: a reference in torch for each, and faster CPU and GPU bodies with the same bits.

On CPUs with Numba installed, contiguous float32 tensors take the compiled bodies of `cpu`; on GPUs with Triton, those
of `gpu`, many tensors in one launch; everything else is plain torch. Nothing here knows of compressors.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import cache, wraps
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from laconic.kernels import block_rows, blocks, codes, messages, reference, sparse_messages
from laconic.kernels.draws import integers, uniform
from laconic.kernels.lists import Packed, TensorList
from laconic.kernels.reference.blocks import BlockFormat
from laconic.kernels.reference.rotation import Turned
from laconic.kernels.sums import rows_summed

__all__ = [
    "BlockFormat",
    "Packed",
    "TensorList",
    "add_levels",
    "add_levels_of_nibbles",
    "add_signs",
    "average_places",
    "bucket_scales",
    "decode_block_rows",
    "decode_natural",
    "encode_block_rows",
    "encode_blocks",
    "encode_columns",
    "encode_largest",
    "encode_levels",
    "encode_natural",
    "encode_sampled",
    "encode_signs",
    "encode_ternaries",
    "encode_trits",
    "feed_selected",
    "feed_selected_each",
    "feed_short_memory",
    "feed_signs",
    "hadamard",
    "hadamard_blocks",
    "integers",
    "largest",
    "left_products",
    "lengthen",
    "mean_of_blocks",
    "mean_of_columns",
    "mean_of_levels",
    "mean_of_natural",
    "mean_of_signs",
    "mean_of_sparse",
    "mean_of_trits",
    "norms",
    "orthogonalised",
    "outer_products",
    "pack_numbers",
    "pack_signs",
    "passing",
    "passing_each",
    "quantize",
    "quantize_in_nibbles",
    "replace_columns",
    "right_products",
    "rotate",
    "rotate_back",
    "round_randomly",
    "rows_summed",
    "sampled_limit",
    "select",
    "shorten",
    "signs_of",
    "sum_of_digits",
    "ternaries_of",
    "uniform",
    "unpack_numbers",
    "vote",
]

_FASTER = {
    "cpu": ("numba", "fast"),
    "cuda": ("triton", "gpu"),
}  # the package that bodies need, and the extra that installs it


@cache
def bodies(device: str) -> Any:
    """Return the bodies of all hot loops for a kind of device; the reference's where there is no faster one."""
    found = {name: getattr(reference, name) for name in reference.__all__}
    if device in _FASTER and not (
        device == "cuda" and torch.version.hip
    ):  # some bodies have PTX, which only NVIDIA's GPUs run
        package, extra = _FASTER[device]
        try:
            if device == "cpu":
                from laconic.kernels import cpu as faster
            else:
                from laconic.kernels import gpu as faster  # type: ignore[no-redef]
        except ImportError:
            warnings.warn(
                f"laconic compresses in plain torch on this {device} device, several times slower than it could: "
                f"{package} is not installed (pip install 'laconic[{extra}]')",
                stacklevel=2,
            )
        else:
            chosen = {name: getattr(faster, name) for name in faster.__all__}
            found |= {name: _there(body) for name, body in chosen.items()} if device == "cuda" else chosen
    return SimpleNamespace(**found)


def _there(body: Callable[..., Any]) -> Callable[..., Any]:
    """Launch a body on the tensors' own device: Triton would launch on the current one, wherever they are."""

    @wraps(body)
    def launched(first: Tensor | Sequence[Tensor], *more: Any) -> Any:
        device = (first if isinstance(first, Tensor | Packed) else first[0]).device
        if device.index == torch.cuda.current_device():
            return body(first, *more)
        with torch.cuda.device(device):
            return body(first, *more)

    return launched


def _of(x: Tensor | Packed) -> Any:
    return bodies(x.device.type)


_HOMES = (messages, codes, blocks, block_rows, sparse_messages)


def _lists(name: str, x: Tensor, *given: Any) -> Any:
    """Process a list in one launch where there is a body for it, or its tensors one after another."""
    body = _of(x)
    whole = getattr(body, name, None)
    home = next(home for home in _HOMES if hasattr(home, name))
    return whole(*given) if whole is not None else getattr(home, name)(body, *given)


def bucket_scales(x: Tensor, bucket: int, norm: str) -> Tensor:
    found: Tensor = _of(x).bucket_scales(x, bucket, norm)
    return found


def shorten(x: Tensor, divisor: int, out: Tensor) -> None:
    _of(x).shorten(x, divisor, out)


def lengthen(short: Tensor, out: Tensor) -> None:
    _of(short).lengthen(short, out)


def pack_signs(x: Tensor) -> Tensor:
    bits: Tensor = _of(x).pack_signs(x)
    return bits


def add_signs(total: Tensor, bits: Tensor, scale: Tensor) -> None:
    _of(total).add_signs(total, bits, scale)


def feed_signs(x: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
    fed: tuple[Tensor, Tensor] = _of(x).feed_signs(x, error)
    return fed


def vote(rows: Tensor) -> Tensor:
    bits: Tensor = _of(rows).vote(rows)
    return bits


def quantize(x: Tensor, scales: Tensor, bucket: int, steps: int, key: int) -> Tensor:
    codes: Tensor = _of(x).quantize(x, scales, bucket, steps, key)
    return codes


def quantize_in_nibbles(x: Tensor, scales: Tensor, bucket: int, steps: int, key: int) -> Tensor:
    packed: Tensor = _of(x).quantize_in_nibbles(x, scales, bucket, steps, key)
    return packed


def add_levels(total: Tensor, codes: Tensor, scales: Tensor, bucket: int, steps: int) -> None:
    _of(total).add_levels(total, codes, scales, bucket, steps)


def add_levels_of_nibbles(total: Tensor, packed: Tensor, scales: Tensor, bucket: int, steps: int) -> None:
    _of(total).add_levels_of_nibbles(total, packed, scales, bucket, steps)


def select(x: Tensor, threshold: float | Tensor) -> tuple[Tensor, Tensor]:
    found: tuple[Tensor, Tensor] = _of(x).select(x, threshold)
    return found


def passing(x: Tensor, threshold: float | Tensor) -> tuple[Tensor, Tensor]:
    found: tuple[Tensor, Tensor] = _lists("passing", x, x, threshold)
    return found


def feed_selected(x: Tensor, error: Tensor, threshold: float | Tensor) -> tuple[Tensor, Tensor]:
    found: tuple[Tensor, Tensor] = _lists("feed_selected", x, x, error, threshold)
    return found


def passing_each(xs: Sequence[Tensor], thresholds: Sequence[float | Tensor] | Tensor) -> list[tuple[Tensor, Tensor]]:
    found: list[tuple[Tensor, Tensor]] = _lists("passing_each", xs[0], xs, thresholds)
    return found


def feed_selected_each(
    xs: Sequence[Tensor], errors: Sequence[Tensor], thresholds: Sequence[float | Tensor] | Tensor
) -> list[tuple[Tensor, Tensor]]:
    found: list[tuple[Tensor, Tensor]] = _lists("feed_selected_each", xs[0], xs, errors, thresholds)
    return found


def sampled_limit(x: Tensor, error: Tensor | None, count: int, k: int, key: int) -> Tensor:
    limit: Tensor = _of(x).sampled_limit(x, error, count, k, key)
    return limit


def largest(x: Tensor, k: int) -> Tensor:
    places: Tensor = _of(x).largest(x, k)
    return places


def mean_of_sparse(places: Sequence[Tensor], values: Sequence[Tensor], n: int, left_out: float) -> Tensor:
    mean: Tensor = _of(values[0]).mean_of_sparse(places, values, n, left_out)
    return mean


def encode_largest(
    xs: Sequence[Tensor], errors: Sequence[Tensor] | None, counts: Sequence[int], widths: Sequence[int]
) -> Tensor:
    message: Tensor = _lists("encode_largest", xs[0], xs, errors, counts, widths)
    return message


def encode_sampled(
    xs: Sequence[Tensor],
    errors: Sequence[Tensor] | None,
    samples: Sequence[tuple[int, int]],
    most: Sequence[int],
    widths: Sequence[int],
    keys: Sequence[int],
) -> Tensor:
    message: Tensor = _lists("encode_sampled", xs[0], xs, errors, samples, most, widths, keys)
    return message


def average_places(
    total: Tensor,
    rows: Tensor,
    lengths: Sequence[int],
    most: Sequence[int],
    widths: Sequence[int],
    counted: bool,
    left_out: float,
) -> None:
    _lists("average_places", total, total, rows, lengths, most, widths, counted, left_out)


def pack_numbers(codes: Tensor, bits: int) -> Tensor:
    packed: Tensor = _of(codes).pack_numbers(codes, bits)
    return packed


def unpack_numbers(packed: Tensor, bits: int, count: int) -> Tensor:
    codes: Tensor = _of(packed).unpack_numbers(packed, bits, count)
    return codes


def encode_signs(xs: Sequence[Tensor], errors: Sequence[Tensor]) -> Tensor:
    message: Tensor = _lists("encode_signs", xs[0], xs, errors)
    return message


def mean_of_signs(rows: Tensor, lengths: Sequence[int], out: Sequence[Tensor] | None = None) -> list[Tensor]:
    means: list[Tensor] = _lists("mean_of_signs", rows, rows, lengths, out)
    return means


def encode_levels(
    xs: Sequence[Tensor],
    errors: Sequence[Tensor] | None,
    bucket: int,
    steps: int,
    norm: str,
    keys: Sequence[int],
    shares: Sequence[float] | None = None,
) -> Tensor:
    message: Tensor = _lists("encode_levels", xs[0], xs, errors, bucket, steps, norm, keys, shares)
    return message


def encode_blocks(
    xs: Sequence[Tensor],
    errors: Sequence[Tensor] | None,
    how: BlockFormat,
    keys: Sequence[int],
    shares: Sequence[float] | None = None,
) -> Tensor:
    message: Tensor = _lists("encode_blocks", xs[0], xs, errors, how, keys, shares)
    return message


def mean_of_blocks(
    rows: Tensor,
    lengths: Sequence[int],
    how: BlockFormat,
    out: Sequence[Tensor] | None = None,
    shares: Sequence[float] | None = None,
) -> list[Tensor]:
    means: list[Tensor] = _lists("mean_of_blocks", rows, rows, lengths, how, out, shares)
    return means


def encode_block_rows(matrix: Tensor, how: BlockFormat, key: int) -> Tensor:
    stacked: Tensor = _lists("encode_block_rows", matrix, matrix, how, key)
    return stacked


def decode_block_rows(messages: Tensor, out: Tensor, how: BlockFormat) -> None:
    _lists("decode_block_rows", messages, messages, out, how)


def feed_short_memory(
    matrix: Tensor, memory: Tensor, how: BlockFormat, kept: BlockFormat, blend: float
) -> tuple[Tensor, Tensor]:
    found: tuple[Tensor, Tensor] = _lists("feed_short_memory", matrix, matrix, memory, how, kept, blend)
    return found


def norms(x: Tensor, bucket: int, norm: str) -> Tensor:
    return messages.norms(_of(x), x, bucket, norm)


def mean_of_levels(
    rows: Tensor,
    lengths: Sequence[int],
    bucket: int,
    steps: int,
    out: Sequence[Tensor] | None = None,
    shares: Sequence[float] | None = None,
) -> list[Tensor]:
    means: list[Tensor] = _lists("mean_of_levels", rows, rows, lengths, bucket, steps, out, shares)
    return means


def encode_trits(xs: Sequence[Tensor], errors: Sequence[Tensor] | None, sparsity: float) -> Tensor:
    message: Tensor = _lists("encode_trits", xs[0], xs, errors, sparsity)
    return message


def mean_of_trits(rows: Tensor, lengths: Sequence[int]) -> list[Tensor]:
    means: list[Tensor] = _lists("mean_of_trits", rows, rows, lengths)
    return means


def encode_columns(xs: Sequence[Tensor], errors: Sequence[Tensor] | None, columns: Sequence[int]) -> Tensor:
    message: Tensor = _lists("encode_columns", xs[0], xs, errors, columns)
    return message


def mean_of_columns(rows: Tensor, shapes: Sequence[tuple[int, int]]) -> list[Tensor]:
    means: list[Tensor] = _lists("mean_of_columns", rows, rows, shapes)
    return means


def encode_natural(xs: Sequence[Tensor], errors: Sequence[Tensor] | None, keys: Sequence[int]) -> Tensor:
    message: Tensor = _lists("encode_natural", xs[0], xs, errors, keys)
    return message


def decode_natural(packed: Tensor, count: int) -> Tensor:
    values: Tensor = _lists("decode_natural", packed, packed, count)
    return values


def mean_of_natural(rows: Tensor, lengths: Sequence[int]) -> list[Tensor]:
    means: list[Tensor] = _lists("mean_of_natural", rows, rows, lengths)
    return means


def encode_ternaries(x: Tensor, scale: Tensor, key: int, room: int) -> Tensor:
    packed: Tensor = _lists("encode_ternaries", x, x, scale, key, room)
    return packed


def ternaries_of(packed: Tensor, scale: Tensor, count: int) -> Tensor:
    values: Tensor = _of(packed).ternaries_of(packed, scale, count)
    return values


def sum_of_digits(rows: Tensor, count: int) -> Tensor:
    total: Tensor = _of(rows).sum_of_digits(rows, count)
    return total


def signs_of(bits: Tensor, count: int) -> Tensor:
    values: Tensor = _lists("signs_of", bits, bits, count)
    return values


def left_products(matrices: Sequence[Tensor], factors: Sequence[Tensor]) -> Packed:
    products: Packed = _of(matrices[0]).left_products(matrices, factors)
    return products


def right_products(matrices: Sequence[Tensor], factors: Sequence[Tensor]) -> Packed:
    products: Packed = _of(matrices[0]).right_products(matrices, factors)
    return products


def outer_products(
    lefts: Sequence[Tensor], rights: Sequence[Tensor], out: Sequence[Tensor] | None, rests: Sequence[Tensor] | None
) -> None:
    _of((out or rests or lefts)[0]).outer_products(lefts, rights, out, rests)


def replace_columns(kept: Sequence[Tensor], found: Sequence[Tensor]) -> None:
    _of(kept if isinstance(kept, Packed) else kept[0]).replace_columns(kept, found)


def orthogonalised(factors: Sequence[Tensor]) -> Packed:
    found: Packed = _of(factors if isinstance(factors, Packed) else factors[0]).orthogonalised(factors)
    return found


def round_randomly(xs: Sequence[Tensor], keys: Sequence[int]) -> Tensor:
    rounded: Tensor = _of(xs[0]).round_randomly(xs, keys)
    return rounded


def hadamard(x: Tensor) -> Tensor:
    z: Tensor = _of(x).hadamard(x)
    return z


def hadamard_blocks(
    xs: Sequence[Tensor],
    lengths: Sequence[int],
    block: int,
    out: Sequence[Tensor] | None = None,
    shares: Sequence[float] | None = None,
    rest: bool = False,
    turned: Turned = "",
) -> Sequence[Tensor]:
    found: Sequence[Tensor] = _of(xs[0]).hadamard_blocks(xs, lengths, block, out, shares, rest, turned)
    return found


def rotate(x: Tensor, key: int) -> Tensor:
    z: Tensor = _of(x).rotate(x, key)
    return z


def rotate_back(z: Tensor, key: int) -> Tensor:
    x: Tensor = _of(z).rotate_back(z, key)
    return x


for _name in __all__:
    if _name not in ("BlockFormat", "Packed", "TensorList", "integers", "rows_summed", "uniform"):
        _home = next((home for home in (*_HOMES, reference) if hasattr(home, _name)), None)
        globals()[_name].__doc__ = getattr(_home, _name, None).__doc__
