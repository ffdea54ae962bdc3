"""What servers send to readers, compressed: how values change, with a memory of what each reader was not sent."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.architecture.server.compressed_reads import DeltaDecoder, DeltaEncoder
from laconic.errors import StrategyError
from laconic.runtime.meeting import Meeting
from laconic.strategy import Strategy
from laconic.values.tensor_spec import TensorSpec
from laconic.virtual.rpc import Fault
from laconic.worker import ActorMessage
from tests.compression.table import compressor
from tests.sync import serving
from tests.sync.test_replicas import STEPS, WORKERS, train

SPECS = (TensorSpec("w", (6, 4), torch.float32), TensorSpec("count", (), torch.int64))


def meeting(rank: int, step: int, name: str) -> Meeting:
    return Meeting(rank, 1, step, name)


@pytest.mark.long
@given(
    st.sampled_from(["topk(0.2)", "int8", "qsgd", "one_bit", "fp16"]),
    st.lists(st.sampled_from(["read", "read", "read", "lost", "late", "restart", "move"]), min_size=1, max_size=30),
    st.integers(0, 1000),
)
@settings(max_examples=80, deadline=None)
def test_the_server_knows_what_its_reader_holds(text: str, events: list[str], seed: int) -> None:
    """Whatever answers get lost, come twice or late, and whenever the server forgets: both sides add up the same
    payloads. An answer that is asked for again holds the values of when it was first given."""
    made, draw = compressor(text), torch.Generator().manual_seed(seed)
    readers, reader = DeltaEncoder(made, SPECS, meeting), DeltaDecoder(made, SPECS, meeting, 1)
    values = [torch.randn(6, 4, generator=draw), torch.tensor(0)]
    late: list[ActorMessage] = []
    answered: dict[tuple[DeltaEncoder, int], torch.Tensor] = {}
    for event in events:
        if event == "move":
            values = [values[0] + torch.randn(6, 4, generator=draw), values[1] + 1]
        elif event == "restart":
            readers = DeltaEncoder(made, SPECS, meeting)
        elif event == "late" and late:
            reader.decode(late.pop(0))
        else:
            expected = answered.setdefault((readers, reader.reads), values[1])
            message = ActorMessage("values", *copy.deepcopy(readers.encode(1, reader.reads, values)))
            late.append(message)
            if event == "read":
                decoded = reader.decode(message)
                known = readers._known[1].values
                assert all(torch.equal(a, b) for a, b in zip(decoded, known, strict=True))
                assert torch.equal(decoded[1], expected)  # what the compressor does not accept is sent as it is


@pytest.mark.parametrize("text", ["topk(0.2)", "int8", "one_bit"])
def test_answers_are_added_up_alike_on_both_sides(text: str) -> None:
    """Whether one is lost, comes twice or late, or the server is new: a reader holds what its server believes, and
    every answer brings it nearer to values that stand still."""
    made, draw = compressor(text), torch.Generator().manual_seed(4)
    server, reader = DeltaEncoder(made, SPECS, meeting), DeltaDecoder(made, SPECS, meeting, 1)
    values = [torch.randn(6, 4, generator=draw), torch.tensor(7)]
    answers: list[ActorMessage] = []

    def read(again: bool = False) -> float:
        answers.append(ActorMessage("values", *copy.deepcopy(server.encode(1, reader.reads, values))))
        held = reader.decode(answers[-1])
        if again:
            assert all(map(torch.equal, held, reader.decode(answers[-1]))), "what comes twice counts once"
        assert all(map(torch.equal, held, server._known[1].values))
        return float((held[0] - values[0]).norm())

    assert read() == 0.0 and answers[0].fields["plain"], "the first answer has the values themselves"
    values = [values[0] + torch.randn(6, 4, generator=draw), torch.tensor(8)]
    errors = [read(again=step == 2) for step in range(5)]
    assert 0 < errors[-1] < errors[0] / 2 or errors[-1] < 1e-3
    lost = ActorMessage("values", *copy.deepcopy(server.encode(1, reader.reads, values)))
    values = [values[0] + 1, torch.tensor(9)]
    repeated = ActorMessage("values", *server.encode(1, reader.reads, values))
    assert all(map(torch.equal, lost.tensors, repeated.tensors)), "who did not receive an answer gets it again"
    before, late = reader.decode(repeated), reader.decode(answers[1])
    assert all(map(torch.equal, before, late)), "an old answer changes nothing"
    server = DeltaEncoder(made, SPECS, meeting)
    assert read() == 0.0, "a server that knows no reader sends the values"


@pytest.mark.long
@pytest.mark.parametrize("text", ["topk(0.1)", "int8", "one_bit", "chunk_topk(k=1, chunk=8)+two_bit"])
def test_what_was_not_sent_is_sent_later(text: str) -> None:
    """Values that stand still are known to the last bits, however little is sent at a time."""
    made, values = compressor(text), [torch.randn(6, 4, generator=torch.Generator().manual_seed(3)), torch.tensor(0)]
    readers, reader = DeltaEncoder(made, SPECS, meeting), DeltaDecoder(made, SPECS, meeting, 0)
    reader.decode(ActorMessage("values", *readers.encode(0, 0, [torch.zeros(6, 4), torch.tensor(0)])))
    for _ in range(60):
        (messages, _) = reader.decode(ActorMessage("values", *readers.encode(0, reader.reads, values)))
    torch.testing.assert_close(messages, values[0], atol=2e-3, rtol=0)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.3)


@pytest.mark.long
def test_reads_of_a_tenth_train_as_well() -> None:
    """Four workers, asynchronous: answers are several times smaller and the loss is what whole answers lead to."""
    whole, _ = serving.train("asp / none / ps(shards=2)", 600, 4, sgd)
    short, _ = serving.train('asp / none / ps(shards=2, down="topk(0.1)")', 600, 4, sgd)
    received = [sum(w.ledger.received_bytes() for w in out.workers) for out in (whole, short)]
    assert received[1] < received[0] / 4
    assert sum(short.results) < 1.1 * sum(whole.results) + 0.02


@pytest.mark.long
def test_a_server_that_dies_tells_everything_once() -> None:
    out, acknowledged = train('asp / none / ps(shards=2, down="topk(0.3)")', (Fault(0.4, 0.7, 1),))
    assert acknowledged == [STEPS] * WORKERS and max(out.results) < 1.0


def test_a_memory_beside_the_servers_is_refused() -> None:
    with pytest.raises(StrategyError, match="remembers anyway"):
        Strategy.parse('asp / none / ps(down="topk+ef")')
    with pytest.raises(StrategyError, match="no compression alone"):
        Strategy.parse('asp / none / ps(down="local(4)")')
