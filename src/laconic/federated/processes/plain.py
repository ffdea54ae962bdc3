"""What a rule keeps, as plain data that a snapshot can hold: numbers, text, tensors, and containers of them."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from laconic.errors import LaconicError
from laconic.places import class_at

_KIND, _HELD = "is", "holds"


def to_plain(value: Any) -> Any:
    """Return a value as plain data, which `from_plain` turns back; what cannot be is refused."""
    if value is None or isinstance(value, bool | int | float | str | Tensor):
        return value
    if isinstance(value, list):
        return [to_plain(one) for one in value]
    if isinstance(value, tuple):
        return {_KIND: "tuple", _HELD: [to_plain(one) for one in value]}
    if isinstance(value, dict):
        return {_KIND: "dict", _HELD: [[to_plain(name), to_plain(one)] for name, one in value.items()]}
    if isinstance(value, np.ndarray):
        return {_KIND: "array", _HELD: torch.from_numpy(np.ascontiguousarray(value))}
    if isinstance(value, np.generic):
        return to_plain(value.item())
    if is_dataclass(value) and not isinstance(value, type):
        kind = type(value)
        held = {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
        return {_KIND: f"{kind.__module__}:{kind.__qualname__}", _HELD: held}
    raise LaconicError(
        f"a rule keeps a {type(value).__name__}, which no snapshot holds; keep numbers, text and tensors"
    )


def from_plain(value: Any) -> Any:
    """Return the value that `to_plain` made plain."""
    if isinstance(value, list):
        return [from_plain(one) for one in value]
    if not isinstance(value, dict):
        return value
    held = value[_HELD]
    if value[_KIND] == "tuple":
        return tuple(from_plain(one) for one in held)
    if value[_KIND] == "dict":
        return {from_plain(name): from_plain(one) for name, one in held}
    if value[_KIND] == "array":
        return held.numpy()
    kind: Any = class_at(value[_KIND])
    return kind(**{name: from_plain(one) for name, one in held.items()})
