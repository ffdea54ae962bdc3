"""Maximal-update parametrisation: good learning rates of a narrow model are good for a wide one (Yang et al., 2022)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from laconic.errors import ClusterError

if TYPE_CHECKING:
    from torch import nn


class Scaling(NamedTuple):
    """How a parameter of the wide model differs from plain initialisation and a plain step.

    - `init`: what its first values, of a standard deviation of one over the root of its inputs, are multiplied by.
    - `rate`: what its learning rate is multiplied by, for stochastic gradients.
    """

    init: float
    rate: float


def scaling(shape: tuple[int, ...], base: tuple[int, ...]) -> Scaling:
    """Return the scaling of one parameter from its shape in the wide and in the narrow model. Matrices between
    widths keep theirs; those that read the input, and biases, learn faster with the width; the one that writes the
    output starts smaller and learns more slowly.

    - `shape`: in the wide model; a matrix has its outputs first.
    - `base`: in the narrow one.
    """
    if len(shape) != len(base):
        raise ClusterError("the two models differ in more than their widths; build both with one function")
    grows = [wide / narrow for wide, narrow in zip(shape, base, strict=True)]
    if len(shape) == 1:
        return Scaling(1.0, grows[0])
    outputs, inputs = grows[:2]
    if inputs == 1:
        return Scaling(1.0, outputs)
    return Scaling(1.0, 1.0) if outputs != 1 else Scaling(inputs**-0.5, 1 / inputs)


def scale(model: nn.Module, base: nn.Module) -> dict[str, float]:
    """Scale the first values of a wide model in place, and return what the learning rate of each parameter is to be
    multiplied by, for stochastic gradients, so that the rates that suit the narrow model suit the wide one.

    - `model`: the wide model, initialised as torch does.
    - `base`: the narrow one.
    """
    import torch

    narrow = {name: tuple(p.shape) for name, p in base.named_parameters()}
    found: dict[str, float] = {}
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name not in narrow:
                raise ClusterError(f"{name} is not in the narrow model; build both with one function")
            init, found[name] = scaling(tuple(p.shape), narrow[name])
            p.mul_(init)
    return found
