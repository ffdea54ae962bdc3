"""Models from their definitions against the counts that are published of them."""

from __future__ import annotations

import pytest

from laconic.errors import LaconicError
from laconic.profile.zoo import MODELS, model
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


def test_counts_are_the_published_ones() -> None:
    facts = {(row["name"], row["field"]): float(row["value"]) for row in data.rows("ddl-benchmarks/inputs.csv")}
    for name in MODELS:
        assert len(model(name)) == facts[name, "tensors"]
        assert sum(t.elements for t in model(name)) == pytest.approx(facts[name, "parameters"], rel=2e-4)


def test_unknown_models_are_refused() -> None:
    with pytest.raises(LaconicError, match="no model 'ResNet-51'; known are"):
        model("ResNet-51")
