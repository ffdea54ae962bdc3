"""The definition of every hot loop, in plain torch, which faster bodies must equal bit by bit.

All take flat float32 tensors on any device; there is one file for each family. Their calls are counted
(`laconic.kernels.fallbacks`).
"""

from laconic.kernels.fallbacks import counted
from laconic.kernels.reference.buckets import bucket_scales, in_buckets
from laconic.kernels.reference.casts import lengthen, shorten
from laconic.kernels.reference.factors import (
    left_products,
    orthogonalised,
    outer_products,
    replace_columns,
    right_products,
)
from laconic.kernels.reference.levels import add_levels, add_levels_of_nibbles, quantize, quantize_in_nibbles
from laconic.kernels.reference.numbers import pack_numbers, unpack_numbers
from laconic.kernels.reference.rotation import hadamard, hadamard_blocks, rotate, rotate_back
from laconic.kernels.reference.rounding import round_randomly
from laconic.kernels.reference.selection import largest, mean_of_sparse, sampled_limit, select
from laconic.kernels.reference.signs import add_signs, feed_signs, pack_signs, vote
from laconic.kernels.reference.ternaries import sum_of_digits, ternaries_of

__all__ = [
    "add_levels",
    "add_levels_of_nibbles",
    "add_signs",
    "bucket_scales",
    "feed_signs",
    "hadamard",
    "hadamard_blocks",
    "in_buckets",
    "largest",
    "left_products",
    "lengthen",
    "mean_of_sparse",
    "orthogonalised",
    "outer_products",
    "pack_numbers",
    "pack_signs",
    "quantize",
    "quantize_in_nibbles",
    "replace_columns",
    "right_products",
    "rotate",
    "rotate_back",
    "round_randomly",
    "sampled_limit",
    "select",
    "shorten",
    "sum_of_digits",
    "ternaries_of",
    "unpack_numbers",
    "vote",
]

for _name in __all__:
    if _name != "in_buckets":  # a view
        globals()[_name] = counted(globals()[_name])
