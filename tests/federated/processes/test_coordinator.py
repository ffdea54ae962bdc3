"""The server of processes with clients, message by message: the virtual run's parameters, whoever fails, whenever."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from laconic.errors import LaconicError
from laconic.federated.outcome import FederatedOutcome
from laconic.federated.processes.coordinator import Coordinator, outcome_of
from laconic.federated.processes.plain import from_plain
from laconic.federated.rule import Rule
from laconic.federated.simulate import simulate
from laconic.federated.strategy import FederatedStrategy
from laconic.registry import entries
from laconic.worker import ActorMessage, Field
from tests.federated.processes.inside import Paused, Recorded, World, federation

EF = "fedavg(clients=3) / topk(0.3)+ef"
SENTENCES = [
    "fedavg(clients=3) / none / server",
    "fedavg(clients=3) / qsgd / server(down=int8)",
    'scaffold(clients=4) / topk(0.3)+ef / server(down="topk(0.4)")',
    "fednova(clients=2, epochs=2)",
    "fedopt(clients=3, optimizer=yogi)",
    "fedprox(clients=3, epochs=2, mu=0.5)",
    "apf(clients=6, every=1)",
    "apf(clients=6, every=1, threshold=0.9)",  # most rest from the second round on
    "apf_sharp(clients=6, every=1)",
    "apf_pp(clients=6, every=1)",
    "amble(clients=3)",
    "fl_unlearning(clients=3)",
    "fedbuff(1, at_work=1) / topk(0.3)+ef",
    'fedavg(clients=3) / stc(0.3)+ef / server(down="stc(0.3)")',
    "scaffold(clients=3) / stc(0.2)+ef",
]


def outcome(server: Coordinator) -> FederatedOutcome:
    answer = server.read(99, ActorMessage("outcome"))
    assert answer is not None
    return outcome_of(answer)


@pytest.mark.parametrize("sentence", SENTENCES)
@pytest.mark.parametrize("seed", [0, 3])
def test_a_rule_gives_the_parameters_of_its_virtual_run(sentence: str, seed: int) -> None:
    setting = federation(6, seed)
    virtual = simulate(setting.learned, setting.population, sentence, 6, rate=setting.rate, seed=seed)
    for processes, order in ((6, lambda turn: turn), (2, lambda turn: turn * 7 // 3)):
        world = World(setting, sentence, processes)
        world.run(order)
        real = outcome(world.server)
        torch.testing.assert_close(real.parameters, virtual.parameters, rtol=0, atol=0)
        assert [step.clients for step in real.steps] == [step.clients for step in virtual.steps]
        assert (real.up_bytes == virtual.up_bytes).all()
        if processes == 6:  # clients of one process share what it has received
            assert (real.down_bytes == virtual.down_bytes).all()


REFUSED = {
    "aafl",
    "adagq",
    "aqg",
    "astw_fedavg",
    "dp_fedavg",
    "fab_topk",
    "fast",
    "fedch",
    "feddd",
    "fedlamp",
    "qsfl",
    "resfed",
}


def test_what_runs_on_virtual_clients_alone_is_refused_beforehand() -> None:
    rules = [
        entry.name
        for entry in entries("federated")
        if isinstance(entry.target, type) and issubclass(entry.target, Rule)
    ]
    assert {name for name in rules if FederatedStrategy.parse(name).simulated_only} == REFUSED < set(rules)
    setting = federation(6, 0)
    for sentence in (*sorted(REFUSED), "fedavg / fixed_point / secagg", "fedavg / none / hierarchy"):
        with pytest.raises(LaconicError, match="runs on virtual clients alone"):
            World(setting, sentence, 2)


@pytest.mark.parametrize("sentence", [EF, "scaffold(clients=3) / qsgd / server(down=int8)"])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_process_killed_before_or_after_any_of_its_reports_changes_nothing(sentence: str, seed: int) -> None:
    setting = federation(5, seed)
    whole = World(setting, sentence, 2)
    whole.run()
    for killed_at in range(5):
        for is_sent in (False, True):
            world = World(setting, sentence, 2)
            reports = 0

            def kill(message: ActorMessage, world: World = world, at: int = killed_at, sent: bool = is_sent) -> None:
                nonlocal reports
                if message.kind == "report":
                    reports += 1
                    if reports == at + 1:
                        if sent:
                            world.server.write(1, message)
                        raise Paused

            world.lines[1].meddle = kill
            for turn in range(100):
                if world.server.is_done:
                    break
                before = reports
                world.turn(turn % 2)
                if turn % 2 and before < killed_at + 1 <= reports:
                    world.processes[1] = world.started(1)
            assert world.server.is_done and reports > killed_at
            torch.testing.assert_close(
                outcome(world.server).parameters, outcome(whole.server).parameters, rtol=0, atol=0
            )


@pytest.mark.parametrize("sentence", [EF, "scaffold(clients=3) / qsgd / server(down=int8)", "fedbuff(2, at_work=3)"])
def test_all_that_is_on_disk_leads_to_the_same_model(sentence: str, tmp_path: Path) -> None:
    setting = federation(5, 2)
    whole = World(setting, sentence, 2)
    whole.run()
    for turns in (1, 2, 4, 7):
        world = World(setting, sentence, 2)
        for turn in range(turns):
            world.turn(turn % 2)
        path, memories = world.snapshot(tmp_path / f"at{turns}"), copy.deepcopy(world.memories)
        world.run()  # what comes after the snapshot is lost
        world.server, world.memories = world.restarted(path), memories
        world.processes = [world.started(number) for number in range(2)]
        world.run(lambda turn, first=turns: turn + int(first))
        torch.testing.assert_close(outcome(world.server).parameters, outcome(whole.server).parameters, rtol=0, atol=0)


def in_the_middle(sentence: str = EF, processes: int = 3, rounds: int = 4) -> tuple[World, ActorMessage]:
    """Return a run in its first round, and a report that is about to be sent by process 0."""
    world = World(federation(rounds, 0), sentence, processes)
    caught: list[ActorMessage] = []

    def catch(message: ActorMessage) -> None:
        if message.kind == "report":
            caught.append(message)
            raise Paused

    for number in range(1, processes):
        world.lines[number].meddle = lambda message: None if message.kind == "join" else _pause()
        world.turn(number)
        world.lines[number].meddle = lambda message: None
    world.lines[0].meddle = catch
    world.turn(0)
    world.lines[0].meddle = lambda message: None
    return world, caught[0]


def _pause() -> None:
    raise Paused


def shown(server: Coordinator) -> str:
    return repr(server.state()["round"]) + repr(server.state()["counts"])


def test_a_report_counts_once() -> None:
    world, report = in_the_middle()
    assert _kind(world, 0, report) == "received"
    before = shown(world.server)
    assert _kind(world, 0, report) == "refused"
    assert shown(world.server) == before
    world.run()
    assert _kind(world, 0, report) == "refused"  # long after its round
    assert all(len(set(step.clients)) == len(step.clients) == 3 for step in outcome(world.server).steps)


@pytest.mark.parametrize(
    "spoiled",
    [
        lambda m: replace(m, fields={**m.fields, "client": m.number("client") + 1}),  # of another process
        lambda m: replace(m, fields={**m.fields, "client": 600}),
        lambda m: replace(m, fields={**m.fields, "model": "0" * 32}),
        lambda m: replace(m, fields={**m.fields, "model": None, "version": 7}),  # nobody has sent such a version
        lambda m: replace(m, fields={**m.fields, "number": -1}),
        lambda m: replace(m, kind="settlement"),
    ],
)
def test_who_may_not_report_changes_nothing(spoiled: Callable[[ActorMessage], ActorMessage]) -> None:
    world, report = in_the_middle()
    before = shown(world.server)
    assert _kind(world, 0, spoiled(report)) == "refused"
    assert _kind(world, 1, report) == "refused"  # in another's name
    assert shown(world.server) == before


NAN = float("nan")


def _saying(name: str, value: Field, message: ActorMessage) -> ActorMessage:
    """Return the message with another value of a field, and without it for None."""
    fields = {**message.fields, name: value}
    return replace(message, fields={n: x for n, x in fields.items() if x is not None})


def _with_a_mask(message: ActorMessage) -> ActorMessage:
    fields = {**message.fields, "masks": ["own"], "bits": [8]}
    return replace(message, fields=fields, tensors=(*message.tensors, torch.zeros(1, dtype=torch.uint8)))


def _longer(message: ActorMessage) -> ActorMessage:
    return replace(message, tensors=(torch.cat([message.tensors[0]] * 500), *message.tensors[1:]))


@pytest.mark.parametrize(
    ("spoiled", "why"),
    [
        (_longer, "more than the"),
        (lambda m: replace(m, tensors=m.tensors[1:]), "do not fit together"),
        (lambda m: replace(m, tensors=tuple(x[:-1] for x in m.tensors)), "client"),
        (lambda m: replace(m, tensors=tuple(torch.full_like(x, 255) for x in m.tensors)), "client"),
        (lambda m: replace(m, fields={**m.fields, "vectors": ["other"]}), "in place of change"),
        (lambda m: replace(m, fields={**m.fields, "numels": [1 << 40]}), "entries, where"),
        (lambda m: replace(m, fields={**m.fields, "words": [-1, 2]}), "do not fit together"),
        (lambda m: replace(m, fields={**m.fields, "words": "many"}), "is a list of"),
        (lambda m: replace(m, fields={**m.fields, "names": ["loss"], "values": [NAN]}), "not finite"),
        (_with_a_mask, "in place of change"),
        *((partial(_saying, "fetched", value), "'fetched'") for value in (-1, 1 << 40, 2.0, "many", None)),
        *((partial(_saying, "seconds", value), "'seconds'") for value in (-1.0, 1e9, NAN, float("inf"), [1.0])),
        (partial(_saying, "training", 1e6), "'training'"),  # for longer than its whole part took
    ],
)
def test_a_spoiled_report_is_refused_and_the_round_ends_without_it(
    spoiled: Callable[[ActorMessage], ActorMessage], why: str
) -> None:
    world, report = in_the_middle(rounds=2)
    answer = world.server.write(0, spoiled(report))
    assert answer is not None and answer.kind == "refused" and why in str(answer.fields["why"])
    client = report.number("client")
    _, up, down = from_plain(world.server.state()["counts"])
    assert up[client] == down[client] == 0
    world.run()
    steps = outcome(world.server).steps
    assert client not in steps[0].clients and client in steps[0].lost and len(steps[0].clients) == 2
    same_as_recorded(world)


def test_a_report_with_entries_that_are_no_numbers_is_refused() -> None:
    world, report = in_the_middle("fedavg(clients=3)")
    answer = world.server.write(0, replace(report, tensors=tuple(x * float("inf") for x in report.tensors)))
    assert answer is not None and "no numbers" in str(answer.fields["why"])


TELL_NUMBERS = [
    "fednova(clients=3, epochs=2)",
    "fednova(clients=3, momentum=0.5)",
    "adaptive_fl(clients=3, budget=1e6)",
]


@pytest.mark.parametrize("sentence", TELL_NUMBERS)
@pytest.mark.parametrize("value", [0.0, -1.0, 1e30, -1e300])
def test_no_number_that_a_client_tells_ends_the_server(sentence: str, value: float) -> None:
    """What it cannot have found is refused, and what it may have found (a loss) leads to numbers."""
    names = in_the_middle(sentence)[1].fields["names"]
    assert isinstance(names, list) and names
    for place, name in enumerate(names):
        world, report = in_the_middle(sentence, rounds=3)
        values = list(report.fields["values"])  # type: ignore[call-overload]
        values[place] = value
        told = world.server.write(0, replace(report, fields={**report.fields, "values": values}))
        assert told is not None and (told.kind == "received" or repr(name) in str(told.fields["why"]))
        world.run()
        assert outcome(world.server).parameters.isfinite().all()


@pytest.mark.parametrize("sentence", TELL_NUMBERS[:2])
@pytest.mark.parametrize("times", [0.5, 1.01, 2.0])
def test_a_client_cannot_count_for_more_steps_than_it_was_given(sentence: str, times: float) -> None:
    world, report = in_the_middle(sentence)
    (weight,) = report.fields["values"]  # type: ignore[misc]
    answer = world.server.write(0, replace(report, fields={**report.fields, "values": [times * float(weight)]}))
    assert answer is not None and answer.kind == "refused" and "'weight'" in str(answer.fields["why"])


def test_a_client_that_fails_is_given_up_in_the_round_in_which_it_failed_alone() -> None:
    world, report = in_the_middle()
    client = report.number("client")
    before = shown(world.server)
    world.server.write(0, ActorMessage("failed", {"client": client, "number": report.number("number") + 1}))
    world.server.write(1, ActorMessage("failed", {"client": client, "number": report.number("number")}))  # of another
    assert shown(world.server) == before
    world.server.write(0, ActorMessage("failed", {"client": client, "number": report.number("number")}))
    world.run()
    steps = outcome(world.server).steps
    assert client in steps[0].lost and len(steps[0].clients) == 2
    same_as_recorded(world)


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_round_ends_without_those_that_are_lost(lost: int) -> None:
    world, report = in_the_middle()
    world.server.write(0, report)
    world.server.lose(lost)
    del world.processes[lost]
    world.run()
    steps = outcome(world.server).steps
    assert len(steps) == 4
    assert all(client % 3 != lost for step in steps[1:] for client in step.clients)
    same_as_recorded(world)


def test_a_round_below_the_minimum_is_repeated_and_nobody_remembers_it() -> None:
    world, report = in_the_middle("fedavg(clients=3) / topk(0.3)+ef / server(minimum=1)")
    world.server.write(0, report)
    world.server.lose(1)
    world.server.lose(2)
    for number in (1, 2):
        world.processes[number] = world.started(number)
    world.run()
    steps = outcome(world.server).steps
    assert steps[0].clients == () and report.number("client") in steps[0].late
    assert all(len(step.clients) == 3 for step in steps[1:])
    same_as_recorded(world)


def test_a_deadline_closes_a_round_with_what_has_come() -> None:
    world, report = in_the_middle()
    world.server.write(0, report)
    assert _kind(world, 0, ActorMessage("close", {"round": 0})) == "refused"  # a client has no say in it
    world.server.write(-1, ActorMessage("close", {"round": 0}))
    world.server.write(-1, ActorMessage("close", {"round": 0}))  # once more changes nothing
    world.run()
    steps = outcome(world.server).steps
    assert steps[0].clients == (report.number("client"),) and len(steps) == 4 and len(steps[1].clients) == 3
    same_as_recorded(world)


def _kind(world: World, number: int, message: ActorMessage) -> str:
    """Return the kind of the answer; what is refused by an error is answered so by the inbox."""
    from laconic.rpc.envelope import Envelope
    from laconic.rpc.inbox import Inbox

    (answer, *_) = Inbox(world.server).receive(Envelope(number, 0, 1, True, 0, 0, message))
    assert answer.message is not None
    return answer.message.kind


def same_as_recorded(world: World) -> None:
    """Check that the parameters are those of a virtual run among the clients that took part."""
    found = outcome(world.server)
    took_part = tuple(step.clients for step in found.steps if step.clients)
    strategy = FederatedStrategy.parse(world.sentence)
    rule = Recorded(clients=strategy.rule.clients, took_part=took_part)
    setting = world.setting
    virtual = simulate(
        setting.learned,
        setting.population,
        replace(strategy, rule=rule, structure=replace(strategy.structure, minimum=0.0)),
        len(took_part),
        rate=setting.rate,
        seed=setting.seed,
    )
    torch.testing.assert_close(found.parameters, virtual.parameters, rtol=0, atol=0)
