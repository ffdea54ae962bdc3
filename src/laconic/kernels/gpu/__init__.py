"""Triton bodies: the same results as `reference`, to the bit, at the speed of a GPU's memory; a list of tensors in one
launch."""

from laconic.kernels.gpu.block_rotation import hadamard_blocks
from laconic.kernels.gpu.blocks import encode_block_rows, encode_blocks
from laconic.kernels.gpu.blocks_received import decode_block_rows, mean_of_blocks
from laconic.kernels.gpu.buckets import add_levels, add_levels_of_nibbles, bucket_scales, quantize
from laconic.kernels.gpu.columns import encode_columns
from laconic.kernels.gpu.columns_received import mean_of_columns
from laconic.kernels.gpu.exponents import decode_natural, encode_natural, mean_of_natural
from laconic.kernels.gpu.factors import left_products, right_products
from laconic.kernels.gpu.levels import encode_levels, mean_of_levels
from laconic.kernels.gpu.limits import sampled_limit
from laconic.kernels.gpu.means import mean_of_signs
from laconic.kernels.gpu.numbers import average_places, pack_numbers, unpack_numbers
from laconic.kernels.gpu.orthogonal import orthogonalised
from laconic.kernels.gpu.outer import outer_products, replace_columns
from laconic.kernels.gpu.rotation import hadamard, rotate, rotate_back
from laconic.kernels.gpu.rounding import round_randomly
from laconic.kernels.gpu.selection import feed_selected, feed_selected_each, passing, passing_each, select
from laconic.kernels.gpu.short_memory import feed_short_memory
from laconic.kernels.gpu.signs import encode_signs
from laconic.kernels.gpu.sparse_means import mean_of_sparse
from laconic.kernels.gpu.sparse_messages import encode_largest, encode_sampled
from laconic.kernels.gpu.ternaries import encode_ternaries, sum_of_digits, ternaries_of
from laconic.kernels.gpu.topk import largest
from laconic.kernels.gpu.trits import encode_trits, mean_of_trits
from laconic.kernels.gpu.votes import pack_signs, signs_of, vote

__all__ = [
    "add_levels",
    "add_levels_of_nibbles",
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
    "hadamard",
    "hadamard_blocks",
    "largest",
    "left_products",
    "mean_of_blocks",
    "mean_of_columns",
    "mean_of_levels",
    "mean_of_natural",
    "mean_of_signs",
    "mean_of_sparse",
    "mean_of_trits",
    "orthogonalised",
    "outer_products",
    "pack_numbers",
    "pack_signs",
    "passing",
    "passing_each",
    "quantize",
    "replace_columns",
    "right_products",
    "rotate",
    "rotate_back",
    "round_randomly",
    "sampled_limit",
    "select",
    "signs_of",
    "sum_of_digits",
    "ternaries_of",
    "unpack_numbers",
    "vote",
]
