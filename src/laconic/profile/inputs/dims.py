"""Shapes and dtypes of tensors in traces, where they were recorded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from laconic.profile.inputs.trace import Event

DTYPES = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "c10::half": "float16",
    "bfloat16": "bfloat16",
    "c10::bfloat16": "bfloat16",
    "long int": "int64",
    "long": "int64",
    "int": "int32",
    "unsigned char": "uint8",
    "byte": "uint8",
    "char": "int8",
    "signed char": "int8",
    "bool": "bool",
}
WIDTHS = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2}


def inputs_of(event: Event) -> Iterator[tuple[tuple[int, ...], str]]:
    """Yield shape and dtype of each input tensor of an event, those of lists one by one, if they were recorded."""
    dims, types = event.args.get("input dims"), event.args.get("input type")
    if not isinstance(dims, list):
        return
    types = types if isinstance(types, list) else []
    for index, shape in enumerate(dims):
        kind = str(types[index]) if index < len(types) else ""
        if kind in ("Scalar", "ScalarList", "") and index < len(types):
            continue
        if is_shape(shape):
            yield tuple(shape), dtype_of(kind)
        elif isinstance(shape, list):
            yield from ((tuple(each), dtype_of(kind)) for each in shape if is_shape(each))


def dtype_of(name: str) -> str:
    """Return the torch dtype of a type name in a trace; unknown names count as float32."""
    return DTYPES.get(name.lower(), "float32")


def is_shape(value: Any) -> bool:
    """Return whether a value is a list of non-negative integers."""
    return isinstance(value, list) and all(isinstance(n, int) and n >= 0 for n in value)
