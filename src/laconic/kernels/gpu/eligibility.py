"""Which tensors the Triton bodies take, for how many workers they are compiled, and how they divide."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_UNROLLED = 16  # workers whose messages are all loaded before the first is used


def plain(*tensors: Tensor) -> bool:
    """Tell whether these are contiguous float32 tensors; anything else goes to the reference."""
    return all(x.dtype == torch.float32 and x.is_contiguous() for x in tensors)


def unrolled(workers: int) -> int:
    """Return how many workers a body is compiled for; 0 means any number."""
    return workers if workers <= _UNROLLED else 0


@triton.jit
def averaged(total, workers, WORKERS: tl.constexpr):
    """Divide a sum by the number of workers. Where the inverse is exact a product has a quotient's bits, and takes a
    tenth of the time."""
    if WORKERS > 0 and WORKERS & (WORKERS - 1) == 0:
        return total * (1.0 / WORKERS)
    else:
        return tl.div_rn(total, tl.cast(workers, tl.float32))
