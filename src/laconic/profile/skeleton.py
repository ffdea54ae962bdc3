"""A module made of nothing but named parameters: for models of which only the tensors are known."""

from __future__ import annotations

from torch import nn


def plant(root: nn.Module, name: str, parameter: nn.Parameter) -> None:
    """Register a parameter under its full dotted name, with plain modules on the way."""
    *path, last = name.split(".")
    home = root
    for part in path:
        if part not in home._modules:
            home.add_module(part, nn.Module())
        home = home.get_submodule(part)
    home.register_parameter(last, parameter)
