"""The kind of a model is told from its layers, and what cannot be told is `other`."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from laconic.profile.zoo import MODELS, model
from laconic.runtime.parameters import Parameters
from laconic.values.model_kind import model_kind
from laconic.values.tensor_spec import TensorSpec


def kind(module: nn.Module) -> str:
    parameters = Parameters.of(module, gather_sparse=True)
    return model_kind(parameters.specs, parameters.sparse_names)


@pytest.mark.parametrize("name", MODELS)
def test_models_of_the_zoo(name: str) -> None:
    tensors = [TensorSpec(tensor.name, tensor.shape, torch.float32) for tensor in model(name)]
    assert model_kind(tensors) == ("convolutional" if name in ("ResNet-50", "VGG-16") else "transformer")


def test_modules_of_torch() -> None:
    assert kind(nn.TransformerEncoderLayer(16, 2, 32)) == "transformer"
    assert kind(nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(64, 10))) == "convolutional"
    assert kind(nn.Sequential(nn.Conv1d(1, 4, 3), nn.Linear(64, 10))) == "convolutional"
    assert kind(nn.Sequential(nn.Linear(32, 96), nn.LayerNorm(96), nn.Linear(96, 4))) == "classifier"
    assert kind(nn.Sequential(nn.Embedding(1000, 8), nn.Linear(8, 4))) == "recommender"
    assert kind(nn.Sequential(nn.EmbeddingBag(4, 2, sparse=True), nn.Linear(64, 64))) == "recommender"
    assert kind(nn.Sequential(nn.Embedding(4, 2), nn.Linear(64, 64))) == "other"
    assert kind(nn.LSTM(8, 8)) == "other"


def test_attention_counts_before_convolutions_and_embeddings() -> None:
    patches = nn.ModuleDict({"patches": nn.Conv2d(3, 16, 4), "attention": nn.MultiheadAttention(16, 2)})
    assert kind(patches) == "transformer"
    assert kind(nn.ModuleDict({"words": nn.Embedding(5000, 8), "qkv": nn.Linear(8, 24)})) == "transformer"


def test_tensors_without_names_tell_nothing_but_their_kernels() -> None:
    def traced(*shapes: tuple[int, ...]) -> list[TensorSpec]:
        return [TensorSpec(f"gradient{k}.{shape}", shape, torch.float32) for k, shape in enumerate(shapes)]

    assert model_kind(traced((64, 64), (64,))) == "other"
    assert model_kind(traced((64, 3, 3, 3), (64,))) == "convolutional"
