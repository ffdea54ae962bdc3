"""Models from their definitions against the counts that are published of them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from laconic.errors import LaconicError
from laconic.profile.zoo import MODELS, canonical, gpt2, llama, model, vgg16
from tests import data


@pytest.mark.parametrize(
    ("name", "tensors", "parameters", "giga"),
    [("ResNet-50", 161, 25_557_032, 7.7), ("BERT-Base", 206, 110_111_042, 14), ("BERT-Large", 398, 336_232_258, 43)],
)
def test_counts_are_the_definitions(name: str, tensors: int, parameters: int, giga: float) -> None:
    """ResNet-50's parameters and operations are torchvision's 25,557,032 and 4.1 billion multiplications, with
    normalizations; BERT's are those of both heads at a vocabulary of 30,528 and 64 tokens."""
    found = model(name)
    assert (len(found), sum(tensor.elements for tensor in found)) == (tensors, parameters)
    assert len({tensor.name for tensor in found}) == tensors
    assert 2e-9 * sum(tensor.operations for tensor in found) == pytest.approx(giga, rel=0.02)


PUBLISHED = {
    "vgg16": (32, 138_357_544),
    "gpt2": (148, 124_439_808),
    "gpt2-medium": (292, 354_823_168),
    "gpt2-large": (436, 774_030_080),
    "gpt2-xl": (580, 1_557_611_200),
    "llama2-7b": (291, 6_738_415_616),
    "llama2-13b": (363, 13_015_864_320),
    "llama2-70b": (723, 68_976_648_192),
    "llama3-8b": (291, 8_030_261_248),
    "llama3-70b": (723, 70_553_706_496),
}


@pytest.mark.parametrize(("name", "counts"), PUBLISHED.items())
def test_counts_are_exact(name: str, counts: tuple[int, int]) -> None:
    found = model(name)
    assert (len(found), sum(tensor.elements for tensor in found)) == counts
    assert len({tensor.name for tensor in found}) == len(found)
    assert all(tensor.operations > 0 and tensor.kept >= 0 and tensor.moved >= 0 for tensor in found)


@pytest.mark.parametrize(
    ("name", "giga"), [("vgg16", 15.47), ("gpt2", 124.3 + 2 * 12 * 768 * 1024**2 / 1e9 + 1.5), ("llama2-7b", 31500)]
)
def test_multiplications_are_about_parameters_times_tokens(name: str, giga: float) -> None:
    """VGG-16's are published; a language model's are its matrices' elements for each token, and attention's products
    (for Llama-2-7B at 4096 tokens: 6.6 billion and 1.07 billion for each token)."""
    assert 1e-9 * sum(tensor.operations for tensor in model(name)) == pytest.approx(giga, rel=0.02)


def shapes_of(module: nn.Module) -> list[tuple[int, ...]]:
    return [tuple(parameter.shape) for parameter in module.parameters()]


def test_vgg16_is_the_module() -> None:
    layers: list[nn.Module] = []
    inputs = 3
    with torch.device("meta"):
        for width in (64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512):
            layers.append(nn.Conv2d(inputs, width, 3))
            inputs = width
        layers += [nn.Linear(512 * 49, 4096), nn.Linear(4096, 4096), nn.Linear(4096, 1000)]
        assert shapes_of(nn.Sequential(*layers)) == [tensor.shape for tensor in vgg16()]


def test_gpt2_is_the_module() -> None:
    """Without names: an embedding of words and one of places, blocks, a last normalization."""
    with torch.device("meta"):
        layers: list[nn.Module] = [nn.Embedding(50257, 64), nn.Embedding(1024, 64)]
        for _ in range(2):
            layers += [nn.LayerNorm(64), nn.Linear(64, 192), nn.Linear(64, 64)]
            layers += [nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(256, 64)]
        assert shapes_of(nn.Sequential(*layers, nn.LayerNorm(64))) == [tensor.shape for tensor in gpt2(64, 2)]


def test_llama_is_the_module() -> None:
    """Eight heads of 8 share two of keys and values."""
    with torch.device("meta"):
        layers: list[nn.Module] = [nn.Embedding(100, 64)]
        for _ in range(2):
            layers += [nn.RMSNorm(64), *(nn.Linear(64, n, bias=False) for n in (64, 16, 16, 64)), nn.RMSNorm(64)]
            layers += [*(nn.Linear(64, 160, bias=False) for _ in range(2)), nn.Linear(160, 64, bias=False)]
        layers += [nn.RMSNorm(64), nn.Linear(64, 100, bias=False)]
        found = llama(64, 160, 2, 8, 2, sequence=16, vocabulary=100)
        assert shapes_of(nn.Sequential(*layers)) == [tensor.shape for tensor in found]


def test_counts_are_the_published_ones() -> None:
    facts = {(row["name"], row["field"]): float(row["value"]) for row in data.rows("ddl-benchmarks/inputs.csv")}
    for name in ("ResNet-50", "BERT-Base", "BERT-Large"):
        assert len(model(name)) == facts[name, "tensors"]
        assert sum(t.elements for t in model(name)) == pytest.approx(facts[name, "parameters"], rel=2e-4)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("resnet50", "ResNet-50"),
        ("VGG_16", "VGG-16"),
        ("bert-base", "BERT-Base"),
        ("gpt2", "GPT-2"),
        ("GPT-2 small", "GPT-2"),
        ("gpt2-xl", "GPT-2-XL"),
        ("llama2-7b", "Llama-2-7B"),
        ("Llama 3 70B", "Llama-3-70B"),
    ],
)
def test_names_as_people_type_them(typed: str, meant: str) -> None:
    assert canonical(typed) == meant
    assert model(typed) is model(typed)


def test_every_name_is_its_own() -> None:
    assert [canonical(name) for name in MODELS] == list(MODELS)


def test_unknown_models_are_refused() -> None:
    with pytest.raises(LaconicError, match=r"no model 'ResNet-51'; known are.*did you mean ResNet-50"):
        model("ResNet-51")
    with pytest.raises(LaconicError, match="did you mean Llama-3-8B"):
        model("lama3_8b")
