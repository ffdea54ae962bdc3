"""A module made of nothing but named parameters: for models of which only the tensors are known."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn


def add_parameter(
    root: nn.Module, name: str, parameter: nn.Parameter, make: Callable[[], nn.Module] = nn.Module
) -> nn.Module:
    """Register a parameter under its full dotted name, creating modules by `make`, and return its module."""
    *path, last = name.split(".")
    home = root
    for part in path:
        if part not in home._modules:
            home.add_module(part, make())
        home = home.get_submodule(part)
    home.register_parameter(last, parameter)
    return home
