"""Where the Triton bodies are tested: on a GPU, or in Triton's interpreter on the CPU; and inputs that are hard."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="without Triton there are no bodies for GPUs: pip install 'laconic[gpu]'")
gpu = pytest.importorskip("laconic.kernels.gpu", exc_type=ImportError)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KINDS = ["normal", "heavy", "sparse", "constant", "zero", "infinite", "nan"]


def tensor(kind: str, n: int, seed: int = 0) -> torch.Tensor:
    """On the device the bodies run on."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(n, generator=draw)
    if kind == "heavy":
        x = x**5
    elif kind == "sparse":
        x = x * (torch.rand(n, generator=draw) < 0.01)
    elif kind in ("constant", "zero"):
        x = torch.full((n,), 0.3 if kind == "constant" else 0.0)
    elif kind in ("infinite", "nan"):
        x[n // 3] = float("-inf" if kind == "infinite" else "nan")
    return x.to(DEVICE)


def misaligned(x: torch.Tensor, by: int = 1) -> torch.Tensor:
    """The same values, beginning so many elements behind a multiple of 16 bytes."""
    room = torch.empty(x.numel() + 4, dtype=x.dtype, device=x.device)
    return room[by : by + x.numel()].copy_(x)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """In type, shape and bits; what is not a number is like any other that is not."""
    a, b = a.cpu(), b.cpu()
    return a.dtype == b.dtype and np.array_equal(a.numpy(), b.numpy(), equal_nan=a.is_floating_point())


class poisoned:
    """Within it, new memory is full of what no body would write, so that an element that nobody writes is seen."""

    def __enter__(self) -> None:
        self._mode = torch.are_deterministic_algorithms_enabled()
        self._fill = torch.utils.deterministic.fill_uninitialized_memory
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = True  # floats become nan, whole numbers the largest

    def __exit__(self, *_: object) -> None:
        torch.use_deterministic_algorithms(self._mode)
        torch.utils.deterministic.fill_uninitialized_memory = self._fill
