"""Models as their definitions give them: tensors in the order of the forward pass, and what their layers compute.

A definition is a function that lists layers; a layer lists its tensors. Operations are multiplications for one sample,
going forward; backward takes twice as many.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from laconic.errors import LaconicError


class Tensor(NamedTuple):
    """One parameter, and the multiplications of its part of the layer for one sample."""

    name: str
    shape: tuple[int, ...]
    operations: float

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


Model = list[Tensor]


def normed(name: str, width: int, places: int) -> Model:
    """A normalization: a scale and a shift for each channel, at so many places."""
    return [Tensor(f"{name}.{part}", (width,), width * places) for part in ("weight", "bias")]


def dense(name: str, inputs: int, outputs: int, places: int = 1) -> Model:
    """A matrix and its bias, applied at so many places."""
    return [
        Tensor(f"{name}.weight", (outputs, inputs), inputs * outputs * places),
        Tensor(f"{name}.bias", (outputs,), outputs * places),
    ]


def convolution(name: str, norm: str, inputs: int, outputs: int, kernel: int, side: int) -> Model:
    """A convolution without bias and its normalization, making images of side by side places."""
    shape = (outputs, inputs, kernel, kernel)
    weight = Tensor(f"{name}.weight", shape, math.prod(shape) * side * side)
    return [weight, *normed(norm, outputs, side * side)]


def resnet50(classes: int = 1000) -> Model:
    """ResNet-50 on images of 224 by 224: 161 tensors, 25.56 million parameters. Names are torchvision's."""
    found = convolution("conv1", "bn1", 3, 64, 7, 112)
    inputs = 64
    for stage, (width, blocks, side) in enumerate([(64, 3, 56), (128, 4, 28), (256, 6, 14), (512, 3, 7)], 1):
        for block in range(blocks):
            name = f"layer{stage}.{block}"
            found += convolution(f"{name}.conv1", f"{name}.bn1", inputs, width, 1, side)
            found += convolution(f"{name}.conv2", f"{name}.bn2", width, width, 3, side)
            found += convolution(f"{name}.conv3", f"{name}.bn3", width, 4 * width, 1, side)
            if block == 0:
                shortcut = f"{name}.downsample"
                found += convolution(f"{shortcut}.0", f"{shortcut}.1", inputs, 4 * width, 1, side)
            inputs = 4 * width
    return found + dense("fc", 2048, classes)


def bert(hidden: int, layers: int, sequence: int = 64, vocabulary: int = 30528, positions: int = 512) -> Model:
    """BERT with both heads of pre-training, with the names of `transformers`; the vocabulary is filled up to a
    multiple of 8.

    The output matrix is the word embedding: it is listed once, as the first tensor, whose gradient is complete when
    backward ends; its multiplications stand with the output's bias.
    """
    found = [
        Tensor(f"bert.embeddings.{name}_embeddings.weight", (count, hidden), hidden * sequence)
        for name, count in (("word", vocabulary), ("position", positions), ("token_type", 2))
    ]
    found += normed("bert.embeddings.LayerNorm", hidden, sequence)
    for layer in range(layers):
        found += _encoder(f"bert.encoder.layer.{layer}", hidden, sequence)
    found += dense("bert.pooler.dense", hidden, hidden)
    found += dense("cls.predictions.transform.dense", hidden, hidden, sequence)
    found += normed("cls.predictions.transform.LayerNorm", hidden, sequence)
    found += [Tensor("cls.predictions.bias", (vocabulary,), hidden * vocabulary * sequence)]
    return found + dense("cls.seq_relationship", hidden, 2)


def _encoder(name: str, hidden: int, sequence: int) -> Model:
    """Attention and the two dense layers after it; the products of attention stand with the values' matrix."""
    own = f"{name}.attention.self"
    query, key, value = (dense(f"{own}.{part}", hidden, hidden, sequence) for part in ("query", "key", "value"))
    value[0] = value[0]._replace(operations=value[0].operations + 2 * sequence * sequence * hidden)
    return [
        *query,
        *key,
        *value,
        *dense(f"{name}.attention.output.dense", hidden, hidden, sequence),
        *normed(f"{name}.attention.output.LayerNorm", hidden, sequence),
        *dense(f"{name}.intermediate.dense", hidden, 4 * hidden, sequence),
        *dense(f"{name}.output.dense", 4 * hidden, hidden, sequence),
        *normed(f"{name}.output.LayerNorm", hidden, sequence),
    ]


MODELS: dict[str, Callable[[], Model]] = {
    "ResNet-50": resnet50,
    "BERT-Base": lambda: bert(768, 12),
    "BERT-Large": lambda: bert(1024, 24),
}


@cache
def model(name: str) -> tuple[Tensor, ...]:
    """The tensors of a model by its name."""
    if name not in MODELS:
        raise LaconicError(f"no model {name!r}; known are {', '.join(MODELS)}")
    return tuple(MODELS[name]())
