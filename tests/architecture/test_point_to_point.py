"""One worker encodes and one server decodes: with every compressor what the sender takes its message for."""

from __future__ import annotations

import pytest
import torch

from laconic import registry
from laconic.architecture.ps import ParameterServer
from laconic.architecture.server.point_to_point import decode_one, encode_one
from laconic.compression.optional import refusal_of_receiver
from laconic.errors import StrategyError
from laconic.federated.strategy import FederatedStrategy
from laconic.language.word import Word
from laconic.strategy import Strategy
from tests.architecture.servers import meeting
from tests.compression.table import compressor, meet, spec_of, tensor


@pytest.mark.parametrize(
    "text", ["none", "bf16", "topk(0.2)", "topk(0.2, index=golomb)", "qsgd", "one_bit", "power_sgd(1)", "three_lc"]
)
def test_a_server_decodes_what_its_sender_would(text: str) -> None:
    """Through all three kinds of requests: what is received is the result of an exchange of one."""
    made, x = compressor(text), tensor("normal", (24, 20), seed=5)
    meet_of_one = meeting(0, 3, "x")
    payload, outcome = encode_one(made, x.clone(), made.init(spec_of(x)), meet_of_one)
    (alone,) = meet(made, [x], step=3)
    assert torch.equal(outcome.result, alone.result)
    received = decode_one(made, spec_of(x), payload, meet_of_one)
    assert received.shape == x.shape and torch.equal(received, alone.result)


def sentences_of_encodings() -> list[str]:
    """Every word of compression alone, and every wrapper of the first word that it can wrap, but those whose messages
    several workers make together."""
    words = [Word(e.name) for e in registry.entries("compression") if e.kind == "word"]
    alone = [str(word) for word in words if not word.technique.wraps]
    wrapped = [
        next((chain for inner in ("int8", "qsgd", "randk(0.1)", "topk(0.2)") if parses(chain := f"{inner}+{word}")), "")
        for word in words
        if word.technique.wraps
    ]
    return [
        text
        for text in (*alone, *filter(None, wrapped))
        if set(compressor(text).asks) <= set(ParameterServer.carries or ())
    ]


def parses(text: str) -> bool:
    try:
        compressor(text)
    except StrategyError:
        return False
    return True


@pytest.mark.parametrize("text", sentences_of_encodings())
def test_a_server_decodes_later_messages_or_refuses_the_compression(text: str) -> None:
    """Messages of five steps, each decoded by itself, are what the sender takes them for; where they are changes of
    what both sides remember, the compression is refused."""
    made, x = compressor(text), tensor("normal", (24, 20), seed=5)
    state, same = made.init(spec_of(x)), []
    for step in range(5):
        at = meeting(step, 3, "x")
        payload, outcome = encode_one(made, x * (1 + step) + tensor("normal", (24, 20), seed=step), state, at)
        state = outcome.state
        try:
            same.append(torch.equal(decode_one(made, spec_of(x), payload, at), outcome.result))
        except RuntimeError:  # the payload has another length than the receiver's step
            same.append(False)
    assert all(same) == (refusal_of_receiver(made) is None), same


@pytest.mark.parametrize("text", ["int8+ef21", "qsgd+diana", "randk(0.1)+marina", "ac_sgd", "intsgd", "alternating"])
def test_servers_refuse_messages_that_only_who_remembers_can_decode(text: str) -> None:
    with pytest.raises(StrategyError, match="decodes each message by itself"):
        Strategy.parse(f"asp / {text} / parameter_server")
    with pytest.raises(StrategyError, match="decodes each message by itself"):
        FederatedStrategy.parse(f"fedavg / {text}")
