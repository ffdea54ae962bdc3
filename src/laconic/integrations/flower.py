"""Flower: rules, compressors and aggregation inside its apps, so that `flwr run` uses them with a SuperLink and
SuperNodes.

Two ways, in the order of what they ask for:

- `compression("topk(0.01)+ef")` is a mod for a ClientApp of one's own, which trains as it likes: what it sends back
  becomes the compressed change of the model. `RuleStrategy("fedopt / topk(0.01)+ef")` is the strategy that reads that.
- `client_app(...)` and `run_rule(grid, ...)` run any rule as it is: those that change what clients do, that send more
  than the model, that compress what is sent down, and asynchronous ones, which Flower has no strategies for.

What a client remembers lies in its context. It is replaced when the server says that the report to which it belongs was
taken. What a client says is believed of that client alone, and only after it was checked: a reply that is refused is
logged, and its client has dropped out of the round. Flower's interfaces move: this file and `flower_records.py` are all
that know them.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from torch import Tensor

from laconic.errors import ContractError, LaconicError, StrategyError
from laconic.federated.claims import Claims
from laconic.federated.client_memory import Memory
from laconic.federated.layout import Layout
from laconic.federated.messages import Wire
from laconic.federated.outcome import FederatedOutcome
from laconic.federated.partition import alike
from laconic.federated.population import Population
from laconic.federated.processes.clients import Clients, settled
from laconic.federated.processes.coordinator import Coordinator, outcome_of
from laconic.federated.reports import Reports
from laconic.federated.rule import Report, Rule, Sent, Server
from laconic.federated.selection import draw_of_round
from laconic.federated.strategy import FederatedStrategy
from laconic.federated.task import Task
from laconic.integrations.flower_records import OURS, from_records, payload_bytes, to_records
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import ActorMessage, Field

_LOGGER = logging.getLogger(__name__)
_ARRAYS = "arrays"
_MEMORY, _PENDING, _SEEN = "laconic.memory", "laconic.pending", "laconic.seen"
_LOOK_SECONDS = 0.2


class _InContext:
    """The memory of the one client of a context."""

    def __init__(self, context: Context, record: str) -> None:
        self._context, self._record = context, record

    def load(self, client: int) -> Memory:
        record = self._context.state.array_records.get(self._record)
        return (
            {} if record is None else {name: torch.from_numpy(array.numpy().copy()) for name, array in record.items()}
        )

    def save(self, client: int, memory: Memory) -> None:
        self._context.state[self._record] = ArrayRecord({n: Array(x.detach().cpu().numpy()) for n, x in memory.items()})


def _client_of(context: Context) -> int:
    number = context.node_config.get("partition-id")
    if not isinstance(number, int):
        raise LaconicError("a SuperNode says which client it is by --node-config partition-id=0")
    return number


# ---------------------------------------------------------------------------------------------- a mod and a strategy


def compression(words: str, seed: int = 0) -> Callable[[Message, Context, Callable[..., Message]], Message]:
    """Return a mod that sends the change of the model, compressed, in place of the trained model.

    - `words`: of a compressor, such as `topk(0.01)+ef`.
    - `seed`: of its draws, as the strategy has it.
    """
    compressor = FederatedStrategy.parse(f"fedavg / {words}").compressor

    def mod(message: Message, context: Context, call_next: Callable[..., Message]) -> Message:
        reply = call_next(message, context)
        if message.metadata.message_type != MessageType.TRAIN or reply.has_error():
            return reply
        start, end = (_tensors(content.array_records[_ARRAYS]) for content in (message.content, reply.content))
        told = message.content.config_records[OURS]
        number, version, taken = (int(told[name]) for name in ("number", "version", "taken"))  # type: ignore[arg-type]
        client, layout = _client_of(context), _layout(start)
        memory, pending = _InContext(context, _MEMORY), _InContext(context, _PENDING)
        own = settled(client, number, taken, memory, pending)
        change = layout.join(list(end.values())) - layout.join(list(start.values()))
        encoded, kept = Wire(compressor, layout, seed).encode({"change": change}, {}, client, version, own)
        if kept:
            pending.save(client, {"number": torch.tensor(number), **kept})
        fields, tensors = encoded.written()
        del reply.content[_ARRAYS]
        sent = ActorMessage("report", {**fields, "client": client, "number": number, "version": version}, tensors)
        for name, record in to_records(sent).items():
            reply.content[name] = record
        return reply

    return mod


class RuleStrategy(FedAvg):  # type: ignore[misc]
    """A strategy of Flower that aggregates by a rule, from ClientApps with the mod `compression`.

    - `sentence`: a federated sentence whose rule leaves training to clients, as fedavg and fedopt do, and whose
      structure is `server`; evaluation is that of Flower's FedAvg.
    - `seed`: of selection and of the compressor's draws.
    """

    def __init__(self, sentence: str, seed: int = 0, **flower: Any) -> None:
        super().__init__(**flower)
        self.strategy, self._seed = FederatedStrategy.parse(sentence), seed
        rule = self.strategy.rule
        if objection := self.strategy.simulated_only:
            raise StrategyError(objection)
        if type(rule).train is not Rule.train or type(rule).down is not Rule.down or rule.asynchronous:
            raise StrategyError(f"{rule.name} changes what clients do; use client_app and run_rule, which run any rule")
        self._server: Server | None = None
        self._layout: Layout | None = None
        self._names: list[str] = []
        self._taken: dict[int, int] = {}
        self._asked = 0
        self._claims = Claims()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        rule, nodes = self.strategy.rule, sorted(grid.get_node_ids())
        tensors = _tensors(arrays)
        self._names, self._layout = list(tensors), _layout(tensors)
        flat = self._layout.join(list(tensors.values()))
        if self._server is None:
            population = Population(alike(max(1, len(nodes)), 1))
            self._server = rule.begin(flat, population, self.strategy.setting(self._layout))
        draw = draw_of_round(self._seed, server_round - 1)
        count, _ = self.strategy.structure.wanted(rule.clients)
        chosen = rule.select(self._server, np.arange(len(nodes)), count, draw)
        found = []
        for place in chosen:
            told = {"number": server_round, "version": self._server.version, "taken": self._taken.get(nodes[place], -1)}
            content = RecordDict({_ARRAYS: arrays, "config": config, OURS: ConfigRecord(told)})
            found.append(Message(content=content, message_type=MessageType.TRAIN, dst_node_id=nodes[place]))
        self._asked = len(found)
        return found

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        assert self._server is not None and self._layout is not None
        reports: dict[int, Report] = {}
        for reply in replies:
            node = reply.metadata.src_node_id
            try:
                report = self._report(server_round, reply)
                if report.client in reports:
                    raise ContractError(f"client {report.client} has reported already")
                self._claims.claim(report.client, node)
            except LaconicError as error:
                _drop(node, error)
                continue
            reports[report.client] = report
        metrics = MetricRecord({"reports": len(reports), "dropped": self._asked - len(reports)})
        _, needed = self.strategy.structure.wanted(self.strategy.rule.clients)
        if len(reports) < needed:
            return None, metrics
        self._server = self.strategy.rule.aggregate(self._server, [reports[client] for client in sorted(reports)])
        self._taken |= {self._claims.sender_of[client]: server_round for client in reports}
        tensors = self._layout.split(self.strategy.rule.model(self._server))
        return ArrayRecord({name: Array(x.numpy()) for name, x in zip(self._names, tensors, strict=True)}), metrics

    def _report(self, server_round: int, reply: Message) -> Report:
        """Return the report of a reply, or raise where it is none of this round."""
        assert self._server is not None and self._layout is not None
        version = self._server.version
        told = _report_on(reply, number=server_round, version=version)
        if (client := told.number("client")) < 0:
            raise ContractError(f"it says that it is client {client}, and clients are numbered from 0 on")
        model = self._server.parameters
        reports = Reports(Wire(self.strategy.compressor, self._layout, self._seed), Sent({"change": model}))
        return reports.read(told, client, version, _samples(reply.content), {model.numel()}, {})


def _samples(content: RecordDict) -> int:
    """Return how many samples a client says that it has trained with; 1 where it does not say."""
    told = next((m["num-examples"] for m in content.metric_records.values() if "num-examples" in m), 1)
    if isinstance(told, list) or not 1 <= told < math.inf:
        raise ContractError(f"its num-examples is {told!r}, which is no number from 1 on")
    return int(told)


def _report_on(reply: Message, **about: Field) -> ActorMessage:
    """Return the report that a reply holds, or raise where it is none, or says of itself anything else than this."""
    told = from_records(_content(reply))
    if told.kind != "report" or any(told.fields.get(name) != value for name, value in about.items()):
        wanted = ", ".join(f"{name} {value}" for name, value in about.items())
        raise ContractError(f"it was asked for a report of {wanted}, and has sent something else")
    return told


def _content(reply: Message) -> RecordDict:
    """Return what a reply holds, or raise where it holds nothing."""
    if reply.has_error():
        raise ContractError(f"its app has failed: {reply.error.reason}")
    return reply.content


def _drop(node: int, why: LaconicError) -> None:
    """Say in the log why a node's reply counts for nothing."""
    _LOGGER.warning("the reply of node %d is refused, and its client has dropped out of the round: %s", node, why)


def _tensors(arrays: ArrayRecord) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array.numpy().copy()) for name, array in arrays.items()}


def _layout(tensors: Mapping[str, Tensor]) -> Layout:
    return Layout(tuple(TensorSpec(name, tuple(x.shape), torch.float32) for name, x in tensors.items()))


# ---------------------------------------------------------------------------------------------- any rule


def client_app(task: Task, population: Population, sentence: str, seed: int = 0) -> ClientApp:
    """Return a ClientApp that does what clients of a rule do; a SuperNode's `partition-id` says which client it is."""
    strategy = FederatedStrategy.parse(sentence)
    app = ClientApp()

    @app.query()  # type: ignore[untyped-decorator]
    def query(message: Message, context: Context) -> Message:
        return Message(RecordDict({OURS: ConfigRecord({"client": _client_of(context)})}), reply_to=message)

    @app.train()  # type: ignore[untyped-decorator]
    def train(message: Message, context: Context) -> Message:
        memory, pending, seen = (_InContext(context, record) for record in (_MEMORY, _PENDING, _SEEN))
        clients = Clients(task, population, strategy, seed, memory, pending)
        kept = seen.load(0)
        if kept:
            clients.edition, clients.seen = int(kept.pop("edition")), kept
        report = clients.answer(from_records(message.content))
        if strategy.structure.down != "none":
            seen.save(0, {"edition": torch.tensor(clients.edition), **clients.seen})
        return Message(to_records(report or ActorMessage("again")), reply_to=message)

    return app


def run_rule(
    grid: Grid,
    task: Task,
    population: Population,
    sentence: str,
    *,
    steps: int,
    rate: float,
    seed: int = 0,
    patience: float = 600.0,
    counted: Callable[[int, int], None] | None = None,
) -> FederatedOutcome:
    """Train with the nodes of a grid, one for each client, and return what came of it: the same as on virtual clients.

    - `patience`: seconds after which a node that does not reply counts as lost, and for which nodes are waited for.
      Where so many are lost that no further step can be made, an error says so.
    - `counted`: is called with the bytes of every message down and of its reply, payloads alone.
    """
    strategy = FederatedStrategy.parse(sentence)
    coordinator = Coordinator(task, population, strategy, steps=steps, rate=rate, seed=seed, processes=len(population))
    nodes = _nodes(grid, len(population), patience)
    for client in sorted(nodes):
        coordinator.write(client, ActorMessage("join"))
    editions, flying = dict.fromkeys(nodes, -1), dict[str, _Asked]()
    number, began = coordinator.current, time.monotonic()
    while not coordinator.is_done:
        busy = {asked.client for asked in flying.values()}
        for client in [client for client in nodes if client not in busy]:
            work = coordinator.read(client, ActorMessage("work", {"edition": editions[client]}))
            if work is not None and work.kind != "done":
                question = Message(content=to_records(work), message_type=MessageType.TRAIN, dst_node_id=nodes[client])
                for pushed in grid.push_messages([question]):
                    flying[pushed] = _Asked(client, nodes[client], work, time.monotonic())
        if not flying and not coordinator.is_done:  # nothing that could come would begin a round
            raise LaconicError(
                f"step {coordinator.made + 1} of {steps} cannot be made: {coordinator.left} of {len(nodes)} clients "
                f"are left, and the others did not reply within {patience:g} s"
            )
        replies = list(grid.pull_messages(list(flying)))
        for reply in replies:
            asked = flying.pop(reply.metadata.reply_to_message_id)
            editions[asked.client] = _taken_in(coordinator, asked, reply)
            if counted is not None and reply.has_content():
                counted(asked.work.nbytes, payload_bytes(reply.content))
        now = time.monotonic()
        for pushed in [pushed for pushed, asked in flying.items() if now - asked.since > patience]:
            coordinator.lose(flying.pop(pushed).client)
        if coordinator.current != number:
            number, began = coordinator.current, now
        elif number is not None and now - began > strategy.structure.deadline:
            coordinator.write(-1, ActorMessage("close", {"round": number}))
        if not replies:
            time.sleep(_LOOK_SECONDS)
    answer = coordinator.read(-1, ActorMessage("outcome"))
    assert answer is not None
    return outcome_of(answer)


@dataclass(frozen=True)
class _Asked:
    """Work that was sent to a client's node, and when."""

    client: int
    node: int
    work: ActorMessage
    since: float

    def report(self, reply: Message) -> ActorMessage | None:
        """Return the report on this work, or nothing where the client asks for the whole model, or raise where neither
        has come."""
        if reply.metadata.src_node_id != self.node:
            raise ContractError(f"client {self.client} is node {self.node}")
        if self.work.kind == "changes" and from_records(_content(reply)).kind == "again":
            return None
        return _report_on(reply, **self.about)

    @property
    def about(self) -> dict[str, Field]:
        """What a report on this work says of itself."""
        return {name: self.work.fields[name] for name in ("client", "number")}


def _taken_in(coordinator: Coordinator, asked: _Asked, reply: Message) -> int:
    """Hand a reply to the coordinator, and return which edition of the model its client has seen; one whose reply is
    refused is waited for no longer."""
    seen = -1
    try:
        report = asked.report(reply)
        if report is None:
            return seen
        seen = asked.work.number("edition")
        answer = coordinator.write(asked.client, report)
        if answer is not None and answer.kind == "refused":
            raise ContractError(str(answer.fields["why"]))
    except LaconicError as error:
        _drop(asked.node, error)
        coordinator.write(asked.client, ActorMessage("failed", asked.about))
    return seen


def _nodes(grid: Grid, count: int, patience: float) -> dict[int, int]:
    """Return the node of every client, when all are there."""
    claims = Claims()
    asked: dict[int, str] = {}
    answered: set[str] = set()
    end = time.monotonic() + patience
    while len(claims.sender_of) < count:
        for node in grid.get_node_ids():
            if node not in asked:
                question = Message(content=RecordDict(), message_type=MessageType.QUERY, dst_node_id=node)
                (asked[node],) = grid.push_messages([question])
        for reply in grid.pull_messages([pushed for pushed in asked.values() if pushed not in answered]):
            answered.add(reply.metadata.reply_to_message_id)
            try:
                claims.claim(_number_in(reply, count), reply.metadata.src_node_id)
            except LaconicError as error:
                _LOGGER.warning("node %d takes no part: %s", reply.metadata.src_node_id, error)
        if time.monotonic() > end:
            found = len(claims.sender_of)
            raise LaconicError(f"{found} of {count} clients have a node after {patience:g} s: start the others")
        if len(claims.sender_of) < count:
            time.sleep(_LOOK_SECONDS)
    return claims.sender_of


def _number_in(reply: Message, count: int) -> int:
    """Return which client a node says it is."""
    ours = _content(reply).config_records.get(OURS)
    number = None if ours is None else ours.get("client")
    if not isinstance(number, int) or not 0 <= number < count:
        raise ContractError(f"it says that it is client {number!r}, and clients are numbered from 0 to {count - 1}")
    return number
