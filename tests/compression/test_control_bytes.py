"""All that a step sends, through every architecture that carries a compressor: the payload that it promises, and beside
it no more control bytes than its architecture promises."""

from __future__ import annotations

import pytest
import torch

import laconic
from laconic import registry
from laconic.compression.base import Compressor
from laconic.compression.optional import prices_of, settling_of
from laconic.errors import StrategyError
from laconic.real.connect import connect
from laconic.strategy import Sentence, Strategy, Word
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import GatherRagged, Kind
from tests.compression.table import OfShapes

SHAPES = [(45,), (1,), (9, 7), (3, 5, 3), (130,)]
"""Small tensors of odd sizes, for which control bytes count most."""
ARCHITECTURES = ["allreduce", "allreduce(order=rank)", "ps(2)"]
WORKERS = 3
SHORT = [f"bsp / {codec} / {how}" for codec in ("power_sgd", "three_lc") for how in ARCHITECTURES]
"""Messages of known and of unknown length: what a change must pass."""


def sentences() -> list[str]:
    """Every compressor of tensors, with default knobs, through every architecture that carries it."""
    found = []
    for entry in registry.entries("compression"):
        if entry.kind != "word" or entry.target.wraps or Word(entry.name).make().meets == "edge":  # type: ignore[union-attr]
            continue
        for architecture in ARCHITECTURES:
            text = f"bsp / {entry.name} / {architecture}"
            try:
                Strategy.parse(text)
            except StrategyError:
                continue
            found.append(text)
    return found


def sent_in_a_step(text: str, steps: int) -> tuple[float, float]:
    """Payload and control bytes that all workers send in the last of so many steps."""

    def body() -> tuple[float, float]:
        ledger, model = connect().ledger, OfShapes(SHAPES)
        model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=0.01), text)
        before = after = (0.0, 0.0)
        for step in range(steps):
            before = after
            model(100 * step + laconic.rank()).backward()
            optimizer.step()
            optimizer.zero_grad()
            after = ledger.sent_bytes(Kind.PAYLOAD), ledger.sent_bytes(Kind.CONTROL)
        return after[0] - before[0], after[1] - before[1]

    results = laconic.simulate(body, WORKERS).results
    return sum(payload for payload, _ in results), sum(control for _, control in results)


def promised(text: str) -> tuple[float, float, bool]:
    """Payload and control bytes of all workers; and whether payloads' lengths are exchanged."""
    sentence = Strategy.parse(text)
    assert isinstance(sentence, Sentence)
    compressor, architecture = sentence.compressor, sentence.architecture.make()
    assert isinstance(compressor, Compressor)
    specs = [TensorSpec(f"tensors.{i}", shape, torch.float32) for i, shape in enumerate(SHAPES)]
    compressed = [prices_of(compressor, spec, WORKERS) for spec in specs if compressor.accepts(spec)]
    dense = sum(spec.nbytes for spec in specs if not compressor.accepts(spec))
    payload = architecture.sent_bytes(dense, WORKERS) + sum(
        architecture.sent_bytes(nbytes, WORKERS, how) for prices in compressed for how, nbytes in prices
    )
    if not architecture.collective:
        payload += 4 * len(SHAPES)  # the flags
    ragged = GatherRagged in compressor.asks
    rounds = max((len(prices) for prices in compressed), default=0)
    return WORKERS * payload, WORKERS * architecture.control_bytes(len(SHAPES), WORKERS, rounds, ragged), ragged


@pytest.mark.parametrize(
    "text", [pytest.param(text, marks=() if text in SHORT else pytest.mark.long) for text in sentences()]
)
def test_a_step_sends_what_is_promised_and_bounded_control(text: str) -> None:
    compressor = Strategy.parse(text).compressor  # type: ignore[union-attr]
    payload, control = sent_in_a_step(text, settling_of(compressor) + 2)
    expected, bound, ragged = promised(text)
    values_decide = ragged or getattr(compressor, "ragged", False)
    assert payload == pytest.approx(expected, abs=1e-3) or (values_decide and payload < expected)
    assert 0 < control <= bound + 1e-3
    if "ps" not in text and not ragged and "rank" not in text:
        assert control == pytest.approx(bound, abs=1e-3), "nothing but the flags"


def test_where_every_payload_is_ragged_the_promise_is_what_is_sent() -> None:
    """Every worker's flags, and to each other worker a length for each tensor."""
    text = "bsp / three_lc(least=1) / allreduce"
    _, control = sent_in_a_step(text, 2)
    _, bound, ragged = promised(text)
    assert ragged and control == pytest.approx(bound) == pytest.approx(WORKERS * (5 * 4 * 2 * 2 / 3 + 5 * 8 * 2))
