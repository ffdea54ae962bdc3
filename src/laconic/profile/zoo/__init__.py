"""The model zoo: models' tensors in the order of the forward pass, and the operations of their layers.

A definition is a function that lists layers; a layer lists its tensors. Operations are multiplications for one sample
in the forward pass; backward takes twice as many.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

from laconic.profile.name_lookup import pick
from laconic.profile.zoo.language import bert, gpt2, llama
from laconic.profile.zoo.layers import Kind, Model, Tensor, convolution, dense, normed
from laconic.profile.zoo.vision import resnet50, vgg16

__all__ = [
    "MODELS",
    "Kind",
    "Model",
    "Tensor",
    "bert",
    "canonical",
    "convolution",
    "dense",
    "gpt2",
    "llama",
    "model",
    "normed",
    "resnet50",
    "vgg16",
]

_LLAMA3 = {"sequence": 8192, "vocabulary": 128256}
MODELS: dict[str, Callable[[], Model]] = {
    "ResNet-50": resnet50,
    "VGG-16": vgg16,
    "BERT-Base": partial(bert, 768, 12),
    "BERT-Large": partial(bert, 1024, 24),
    "GPT-2": partial(gpt2, 768, 12),
    "GPT-2-Medium": partial(gpt2, 1024, 24),
    "GPT-2-Large": partial(gpt2, 1280, 36),
    "GPT-2-XL": partial(gpt2, 1600, 48),
    "Llama-2-7B": partial(llama, 4096, 11008, 32, 32, 32),
    "Llama-2-13B": partial(llama, 5120, 13824, 40, 40, 40),
    "Llama-2-70B": partial(llama, 8192, 28672, 80, 64, 8),
    "Llama-3-8B": partial(llama, 4096, 14336, 32, 32, 8, **_LLAMA3),
    "Llama-3-70B": partial(llama, 8192, 28672, 80, 64, 8, **_LLAMA3),
}
_ALIASES = {"gpt2small": "GPT-2", "bert": "BERT-Base", "resnet": "ResNet-50", "vgg": "VGG-16"}


def canonical(name: str) -> str:
    """Return a model's name as in `MODELS`; case and punctuation do not matter."""
    return pick("model", name, MODELS, _ALIASES)


@cache
def model(name: str) -> tuple[Tensor, ...]:
    """Return the tensors of a model by its name."""
    return tuple(MODELS[canonical(name)]())
