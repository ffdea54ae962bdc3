"""What Triton bodies share: draws by place, sums by halving, the location of a tile, numbers at any byte.

Every body is launched with `enable_fp_fusion=False`: a product that is added is rounded twice, as on CPUs.
"""

from __future__ import annotations

import triton
import triton.language as tl

from laconic.kernels import draws

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))
"""Whether Triton's interpreter runs these bodies, which knows no PTX."""
FIRST, SECOND = tl.constexpr(draws.FIRST), tl.constexpr(draws.SECOND)
SHIFT_1, SHIFT_2, SHIFT_3 = (tl.constexpr(s) for s in draws.SHIFTS)
REST = tl.constexpr(32 - draws.BITS)
(STIR_1, TIMES_1), (STIR_2, TIMES_2) = (map(tl.constexpr, pair) for pair in draws.STIRRING)


@triton.jit
def key_of(keys, number):
    """Return `draws.halves` of a tensor's key, which is given itself or stands in a table."""
    if keys.dtype.is_ptr():
        key = tl.load(keys + number).to(tl.uint64, bitcast=True)
    else:
        key = (tl.full([], 0, tl.int64) + keys).to(tl.uint64, bitcast=True)
    key = (key ^ (key >> STIR_1)) * TIMES_1
    key = (key ^ (key >> STIR_2)) * TIMES_2
    key ^= key >> 31
    return (key & 0xFFFFFFFF).to(tl.uint32), (key >> 32).to(tl.uint32)


@triton.jit
def draw(place, low, high):
    """Return `draws.at` of these places: whole numbers of 24 bits."""
    h = place.to(tl.uint32) ^ low.to(tl.uint32)
    h = (h ^ (h >> SHIFT_1)) * FIRST + high.to(tl.uint32)
    h = (h ^ (h >> SHIFT_2)) * SECOND
    return ((h ^ (h >> SHIFT_3)) >> REST).to(tl.int32)


@triton.jit
def _halved(x, ROWS: tl.constexpr, WIDTH: tl.constexpr, REST: tl.constexpr):
    """Sum [ROWS, WIDTH, REST] to [ROWS, REST]. A sum of two is the same in either order: Triton's reduction may make
    it."""
    for k in tl.static_range(16):
        if (WIDTH >> k) > 1:
            x = tl.sum(tl.reshape(x, [ROWS, 2, (WIDTH >> (k + 1)) * REST]), axis=1)
    return tl.reshape(x, [ROWS, REST])


@triton.jit
def block_summed(x, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Return the sum of each row in the order of `sums`; a row is no longer than a block."""
    LAST: tl.constexpr = 4 if WIDTH >= 4 else WIDTH
    FIRST: tl.constexpr = WIDTH // 128 if WIDTH >= 128 else 1
    MIDDLE: tl.constexpr = WIDTH // (FIRST * LAST)
    x = _halved(x, ROWS, FIRST, MIDDLE * LAST)
    x = _halved(x, ROWS * MIDDLE, LAST, 1)
    return tl.reshape(_halved(x, ROWS, MIDDLE, 1), [ROWS])


@triton.jit
def summed(x, ROWS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Return the sum of each row in the order of `sums`, for rows that may be longer than a block."""
    if WIDTH > BLOCK:
        EACH: tl.constexpr = WIDTH // BLOCK
        return block_summed(block_summed(x, ROWS * EACH, BLOCK), ROWS, EACH)
    else:
        return block_summed(x, ROWS, WIDTH)


@triton.jit
def located(tiles, firsts, lengths, TILE: tl.constexpr, LISTED: tl.constexpr):
    """Return this program's tensor number, where its tile begins there, and the tensor's length."""
    tile = tl.program_id(0)
    number = tl.full([], 0, tl.int32)
    if LISTED:
        number = tl.load(tiles + tile)
        return number, (tile - tl.load(firsts + number)).to(tl.int64) * TILE, tl.load(lengths + number)
    else:
        return number, tile.to(tl.int64) * TILE, tl.full([], 0, tl.int64) + lengths  # where it is 1, a constant


@triton.jit
def pointed(table, number, LISTED: tl.constexpr, ALIGNED: tl.constexpr):
    """Return a tensor's own pointer: from the table of a list, or the tensor itself."""
    if LISTED:
        pointer = tl.load(table + number).to(tl.pointer_type(tl.float32))
        if ALIGNED:
            pointer = tl.multiple_of(pointer, 16)
        return pointer
    else:
        return table


@triton.jit
def loaded(pointer, i, rest, MASKED: tl.constexpr):
    """Load elements i of a tile, with zeros from `rest` on. Full tiles need no mask, without which loads are 16 bytes
    wide."""
    if MASKED:
        return tl.load(pointer + i, mask=i < rest, other=0.0)
    else:
        return tl.load(pointer + i)


@triton.jit
def stored(pointer, i, rest, x, MASKED: tl.constexpr):
    """Store elements i of a tile, up to `rest`."""
    if MASKED:
        tl.store(pointer + i, x, mask=i < rest)
    else:
        tl.store(pointer + i, x)


@triton.jit
def widened(x):
    """Return values as float32. Triton's interpreter takes a bfloat16 that is subnormal for another number."""
    if INTERPRETED and x.dtype == tl.bfloat16:
        return (x.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    else:
        return x.to(tl.float32)


@triton.jit
def narrowed(x, pointer):
    """Return float32 values in the type that a pointer points to, the nearest ones. Triton's interpreter cuts those of
    bfloat16 off."""
    if INTERPRETED and pointer.dtype.element_ty == tl.bfloat16:
        bits = x.to(tl.uint32, bitcast=True)
        nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return tl.where(x == x, nearest, 0x7FC0).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        return x.to(pointer.dtype.element_ty)


@triton.jit
def finite(x):
    """Return x with zero in place of values that are not finite: an overflow must not be remembered for ever."""
    return tl.where(tl.abs(x) < float("inf"), x, 0.0)


@triton.jit
def number_at(pointer):
    """Return the float32 in four bytes, wherever they begin."""
    word = tl.load(pointer).to(tl.uint32)
    for k in tl.static_range(1, 4):
        word |= tl.load(pointer + k).to(tl.uint32) << (8 * k)
    return word.to(tl.float32, bitcast=True)


@triton.jit
def put_number(pointer, x, mask):
    """Store a float32 in four bytes, wherever they begin, with one NaN pattern for all devices."""
    word = tl.where(x == x, x, float("nan")).to(tl.uint32, bitcast=True)
    for k in tl.static_range(4):
        tl.store(pointer + k, (word >> (8 * k)).to(tl.uint8), mask=mask)


@triton.jit
def packed(codes, COUNT: tl.constexpr, EACH: tl.constexpr):
    """Pack codes of 8/EACH bits, EACH of them to a byte, the first in its lowest place."""
    rows = tl.reshape(codes, [COUNT // EACH, EACH])
    return tl.sum(rows << (tl.arange(0, EACH) * (8 // EACH))[None, :], axis=1).to(tl.uint8)
