"""A device that is not there: tensors in this process's memory that count as lying on a GPU.

Under the mode, `x.to("cuda")` returns a copy that says it is there, and so does whatever is made of it. An operation on
tensors of both places is refused, as CUDA refuses it, and so is reading one of them as an array. So it shows, without a
GPU, where a tensor was left behind; it cannot show what kernels of a GPU compute.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

_THERE, _HERE = torch.device("cuda", 0), torch.device("cpu")
_BETWEEN = (Tensor.copy_, Tensor.data.__set__, torch._has_compatible_shallow_copy_type)  # type: ignore[attr-defined]
"""Operations that take tensors of both."""


class PretendedDevice(TorchFunctionMode):
    """While it is active, "cuda" is a device."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[int, Any] = {}  # storages that count as there; each is kept, so that no other has its place

    def is_there(self, x: Tensor) -> bool:
        return x.untyped_storage().data_ptr() in self._kept

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        places = {self.is_there(x) for x in tensors if x.dim()}
        there = any(map(self.is_there, tensors))
        if func == Tensor.device.__get__:  # type: ignore[attr-defined]
            return _THERE if there else _HERE
        if func in (Tensor.numpy, Tensor.__array__) and there:
            raise TypeError("a tensor on a device is not read as an array")
        if func in (Tensor.to, Tensor.cpu, Tensor.cuda):
            return self._moved(func, args, kwargs)
        if len(places) > 1 and func not in _BETWEEN:
            name = getattr(func, "__name__", func)
            raise RuntimeError(
                f"{name} has tensors of two devices: {[(tuple(x.shape), self.is_there(x)) for x in tensors]}"
            )
        if (device := kwargs.get("device")) is not None:
            kwargs["device"], there = _HERE, torch.device(device).type == "cuda"
        return self._placed(func(*args, **kwargs), there)

    def _moved(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Tensor:
        """Carry out `x.to(…)`: a copy where the place changes."""
        x: Tensor = args[0]
        rest = [*args[1:], *kwargs.values()]
        wanted = [torch.device(a) for a in rest if isinstance(a, torch.device | str)]
        wanted += [_THERE] if func is Tensor.cuda else [_HERE] if func is Tensor.cpu else []
        there = wanted[0].type == "cuda" if wanted else self.is_there(x)
        types = [a for a in rest if isinstance(a, torch.dtype)]
        result = x.to(*types) if types else x
        if there != self.is_there(x):
            result = result.clone() if result is x else result
        return self._placed(result, there)

    def _placed(self, result: Any, there: bool) -> Any:
        for x in tree_leaves(result):
            if isinstance(x, Tensor) and there and (at := x.untyped_storage().data_ptr()):
                self._kept[at] = x.untyped_storage()
        return result
