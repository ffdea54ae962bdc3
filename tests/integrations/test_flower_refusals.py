"""Flower's nodes that send what no client sends: their clients drop out of the round, and the run goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: make test-flower")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from laconic.errors import ContractError, LaconicError
from laconic.federated.claims import Claims
from laconic.federated.layout import Layout
from laconic.federated.outcome import FederatedOutcome
from laconic.federated.simulate import simulate
from laconic.federated.strategy import FederatedStrategy
from laconic.integrations.flower import RuleStrategy, client_app, run_rule
from laconic.integrations.flower_records import OURS, from_records, to_records
from laconic.worker import ActorMessage
from tests.federated.processes.inside import Recorded, federation
from tests.integrations.flower_app import trains_as_it_likes
from tests.integrations.flower_inside import Inside, Meddle

CLIENTS, STEPS = 3, 3
NODES = {70: 0, 71: 1, 72: 2}
SPOILED = 71
WORDS = "topk(0.3)+ef"
setting = federation(STEPS, 0, clients=CLIENTS)

Spoil = Callable[[RecordDict], RecordDict | Error]


def sentence_of(words: str) -> str:
    return f"fedavg(clients={CLIENTS}) / {words}"


def by_rule(
    meddle: Meddle = lambda node, reply: None,
    nodes: dict[int, int] = NODES,
    words: str = WORDS,
    silent: tuple[int, ...] = (),
) -> FederatedOutcome:
    sentence = sentence_of(words)
    grid = Inside(client_app(setting.learned, setting.population, sentence), nodes, meddle, silent)
    task, population = setting.learned, setting.population
    patience = 0.05 if silent else 60
    return run_rule(grid, task, population, sentence, steps=STEPS, rate=setting.rate, patience=patience)


def by_strategy(meddle: Meddle, rounds: int = STEPS, words: str = WORDS) -> tuple[torch.Tensor, list[int]]:
    """Return the parameters, and how many clients dropped out of each round."""
    grid = Inside(trains_as_it_likes(setting, words, 0), NODES, meddle)
    model = setting.learned.build(0)
    arrays = ArrayRecord({name: Array(p.detach().numpy()) for name, p in model.named_parameters()})
    result = RuleStrategy(sentence_of(words), fraction_evaluate=0.0).start(grid, arrays, num_rounds=rounds, timeout=60)
    end = Layout.of(model).join([torch.from_numpy(array.numpy().copy()) for array in result.arrays.values()])
    dropped = [int(metrics["dropped"]) for _, metrics in sorted(result.train_metrics_clientapp.items())]  # type: ignore[arg-type]
    return end, dropped


def virtual(*took_part: tuple[int, ...], words: str = WORDS) -> torch.Tensor:
    """Return the parameters of virtual clients, of which these take part."""
    strategy = replace(FederatedStrategy.parse(sentence_of(words)), rule=Recorded(clients=CLIENTS, took_part=took_part))
    run = simulate(setting.learned, setting.population, strategy, len(took_part), rate=setting.rate)
    return run.parameters


def once(spoil: Spoil) -> Meddle:
    """Spoil the first reply of one node."""
    spoiled: list[int] = []

    def meddle(node: int, reply: Message) -> RecordDict | Error | None:
        if node != SPOILED or spoiled:
            return None
        spoiled.append(node)
        return spoil(reply.content)

    return meddle


def said(change: Callable[[ActorMessage], ActorMessage]) -> Spoil:
    """Change what a report says."""

    def spoil(content: RecordDict) -> RecordDict:
        changed = to_records(change(from_records(content)))
        for name, record in changed.items():
            content[name] = record
        return content

    return spoil


def field(name: str, value: Any) -> Spoil:
    return said(lambda told: replace(told, fields={**told.fields, name: value}))


def recorded(name: str, change: Callable[[bytes], bytes]) -> Spoil:
    """Change a part of the record beside the arrays."""

    def spoil(content: RecordDict) -> RecordDict:
        ours = content.config_records[OURS]
        ours[name] = change(ours[name])  # type: ignore[arg-type]
        return content

    return spoil


def payload(change: Callable[[bytes], bytes]) -> Spoil:
    """Change the bytes of the tensors."""

    def spoil(content: RecordDict) -> RecordDict:
        data = change(content.array_records["payload"]["payload"].data)
        array = Array(dtype="uint8", shape=(len(data),), stype="bytes", data=data)
        content["payload"] = ArrayRecord({"payload": array})
        return content

    return spoil


def filled(value: float) -> Spoil:
    """Put a value into every entry."""
    return said(lambda told: replace(told, tensors=tuple(torch.full_like(x, value) for x in told.tensors)))


def emptied(content: RecordDict) -> RecordDict:
    return RecordDict({"other": ConfigRecord({"x": 1})})


SPOILERS: dict[str, tuple[Spoil, str]] = {
    "truncated": (payload(lambda data: data[:-1]), "bytes of tensors"),
    "with bytes at the end": (payload(lambda data: data + b"1234"), "bytes of tensors"),
    "oversized": (said(lambda told: replace(told, tensors=(torch.zeros(9000), *told.tensors[1:]))), "more than the"),
    "of another length": (field("numels", [3]), "entries, where"),
    "of another vector": (field("vectors", ["other"]), "in place of change"),
    "of no client": (field("client", -5), "client"),
    "of another round": (field("number", 9), "report of"),
    "of another kind": (said(lambda told: replace(told, kind="join")), "report of"),
    "again, without an end": (said(lambda told: ActorMessage("again")), "report of"),
    "no header": (recorded("header", lambda header: b"\xc1" + header), "cannot be decoded"),
    "lengths that are none": (recorded("lengths", lambda lengths: b"\xc1"), "lengths of tensors"),
    "negative lengths": (recorded("lengths", lambda lengths: b"\x91\xff"), "lengths of tensors"),
    "nothing of ours": (emptied, "no records of laconic"),
    "an error": (lambda content: Error(7, "out of memory"), "out of memory"),
    "seconds": (field("seconds", float("nan")), "'seconds'"),
}


def drops_out(way: str, spoil: Spoil, why: str, logged: pytest.LogCaptureFixture, words: str = WORDS) -> None:
    """Check that a round goes on without the client whose reply is spoiled, and that the log says why."""
    if way == "rule":
        outcome = by_rule(once(spoil), words=words)
        found, lost = outcome.parameters, [step.lost for step in outcome.steps]
        assert lost == [(1,), (), ()] and [step.clients for step in outcome.steps] == [(0, 2), (0, 1, 2), (0, 1, 2)]
    else:
        found, dropped = by_strategy(once(spoil), words=words)
        assert dropped == [1, 0, 0]
    said = [record.getMessage() for record in logged.records if record.name == "laconic.integrations.flower"]
    assert len(said) == 1 and f"node {SPOILED}" in said[0] and why in said[0]
    torch.testing.assert_close(found, virtual((0, 2), (0, 1, 2), (0, 1, 2), words=words), rtol=0, atol=0)


@pytest.mark.parametrize("way", ["rule", "strategy"])
@pytest.mark.parametrize("name", SPOILERS)
def test_a_client_whose_reply_is_refused_drops_out_of_the_round(
    way: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    drops_out(way, *SPOILERS[name], caplog)


@pytest.mark.parametrize("way", ["rule", "strategy"])
@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_entries_that_are_no_numbers_are_refused(way: str, value: float, caplog: pytest.LogCaptureFixture) -> None:
    drops_out(way, filled(value), "no numbers", caplog, words="none")


@pytest.mark.parametrize("told", [-3, 0, float("nan"), float("inf"), [5]])
def test_a_client_that_trained_with_no_number_of_samples_drops_out_of_the_round(told: Any) -> None:
    def spoil(content: RecordDict) -> RecordDict:
        content["metrics"] = MetricRecord({"num-examples": told})
        return content

    found, dropped = by_strategy(once(spoil))
    assert dropped == [1, 0, 0]
    torch.testing.assert_close(found, virtual((0, 2), (0, 1, 2), (0, 1, 2)), rtol=0, atol=0)


def test_a_round_without_a_report_leaves_the_model_as_it_was() -> None:
    replies: list[int] = []

    def meddle(node: int, reply: Message) -> RecordDict | Error | None:
        replies.append(node)
        return filled(float("nan"))(reply.content) if len(replies) <= CLIENTS else None

    found, dropped = by_strategy(meddle, rounds=2, words="none")
    assert dropped == [CLIENTS, 0]
    torch.testing.assert_close(found, virtual((0, 1, 2), words="none"), rtol=0, atol=0)


def test_a_report_in_the_name_of_another_client_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    drops_out("rule", field("client", 2), "client 1", caplog)


def test_a_number_belongs_to_the_node_that_claimed_it_first(caplog: pytest.LogCaptureFixture) -> None:
    """In the second round the first node that replies says that it is the client of the second."""
    replies: list[int] = []

    def meddle(node: int, reply: Message) -> RecordDict | Error | None:
        replies.append(node)
        as_another = node == 70 and replies.count(node) == 2
        return field("client", 1)(reply.content) if as_another else None

    found, dropped = by_strategy(meddle)
    assert dropped == [0, 1, 0] and "says that it is client 1" in caplog.text
    torch.testing.assert_close(found, virtual((0, 1, 2), (1, 2), (0, 1, 2)), rtol=0, atol=0)


def test_a_client_that_cannot_use_the_changes_is_sent_the_whole_model() -> None:
    replies: list[int] = []

    def meddle(node: int, reply: Message) -> RecordDict | Error | None:
        replies.append(node)
        lacks = node == SPOILED and replies.count(node) == 2
        return to_records(ActorMessage("again")) if lacks else None

    words = f"{WORDS} / server(down=int8)"
    outcome = by_rule(meddle, words=words)
    assert replies.count(SPOILED) == STEPS + 1 and all(step.lost == () for step in outcome.steps)
    torch.testing.assert_close(outcome.parameters, virtual(*[(0, 1, 2)] * STEPS, words=words), rtol=0, atol=0)


@pytest.mark.parametrize("number", [0, 3, -1])
def test_nodes_that_are_one_too_many_take_no_part(number: int, caplog: pytest.LogCaptureFixture) -> None:
    outcome = by_rule(lambda node, reply: None, {**NODES, 99: number})
    assert "node 99 takes no part" in caplog.text
    torch.testing.assert_close(outcome.parameters, virtual(*[(0, 1, 2)] * STEPS), rtol=0, atol=0)


def test_nodes_that_never_reply_are_lost_and_the_others_go_on() -> None:
    outcome = by_rule(words="none / server(minimum=0.5)", silent=(SPOILED,))
    assert [step.lost for step in outcome.steps] == [(1,), (), ()]
    torch.testing.assert_close(outcome.parameters, virtual(*[(0, 2)] * STEPS, words="none"), rtol=0, atol=0)


@pytest.mark.parametrize("silent", [(71, 72), (70, 71, 72)])
def test_where_too_few_nodes_reply_the_run_ends_with_an_error(silent: tuple[int, ...]) -> None:
    left = CLIENTS - len(silent)
    with pytest.raises(LaconicError, match=rf"step \d of {STEPS} cannot be made: {left} of {CLIENTS} clients are left"):
        by_rule(words="none / server(minimum=0.5)", silent=silent)


def test_a_sender_is_one_client_and_a_client_one_sender() -> None:
    claims = Claims()
    for client, sender in ((0, 5), (1, 6), (0, 5)):
        claims.claim(client, sender)
    with pytest.raises(ContractError, match="node 6 says that it is client 0, which node 5 is"):
        claims.claim(0, 6)
    with pytest.raises(ContractError, match="node 5 says that it is client 2, and was client 0 before"):
        claims.claim(2, 5)
    claims.claim(2, 7)
    assert claims.sender_of == {0: 5, 1: 6, 2: 7}
