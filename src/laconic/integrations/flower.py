"""Flower: rules, compressors and aggregation inside its apps, so that `flwr run` uses them with a SuperLink and
SuperNodes.

Two ways, in the order of what they ask for:

- `compression("topk(0.01)+ef")` is a mod for a ClientApp of one's own, which trains as it likes: what it sends back
  becomes the compressed change of the model. `RuleStrategy("fedopt / topk(0.01)+ef")` is the strategy that reads that.
- `client_app(...)` and `run_rule(grid, ...)` run any rule as it is: those that change what clients do, that send more
  than the model, that compress what is sent down, and asynchronous ones, which Flower has no strategies for.

What a client remembers lies in its context. It is replaced when the server says that the report to which it belongs was
taken. Flower's interfaces move: this file is all that knows them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from torch import Tensor

from laconic.errors import LaconicError, StrategyError
from laconic.federated.client_memory import Memory
from laconic.federated.layout import Layout
from laconic.federated.messages import Message as Encoded
from laconic.federated.messages import Wire
from laconic.federated.outcome import FederatedOutcome
from laconic.federated.partition import alike
from laconic.federated.population import Population
from laconic.federated.processes.clients import Clients, settled
from laconic.federated.processes.coordinator import Coordinator, outcome_of
from laconic.federated.rule import Report, Rule, Server
from laconic.federated.selection import draw_of_round
from laconic.federated.strategy import FederatedStrategy
from laconic.federated.task import Task
from laconic.rpc.envelope import Envelope
from laconic.rpc.frames import Limits, decode_envelope, encode
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import ActorMessage

_OURS, _ARRAYS = "laconic", "arrays"
_MEMORY, _PENDING, _SEEN = "laconic.memory", "laconic.pending", "laconic.seen"
_LOOK_SECONDS = 0.2


# ---------------------------------------------------------------------------------------------- records


def to_records(message: ActorMessage) -> RecordDict:
    """Return a message as Flower's records: a header, and one array with the bytes of all its tensors."""
    header, *tensors = encode("", Envelope(0, 0, 1, True, 0, 0, message))
    lengths = msgspec.msgpack.encode([len(tensor) for tensor in tensors])
    data = b"".join(tensors)
    payload = ArrayRecord({"payload": Array(dtype="uint8", shape=(len(data),), stype="bytes", data=data)})
    return RecordDict({_OURS: ConfigRecord({"header": bytes(header), "lengths": lengths}), "payload": payload})


def from_records(content: RecordDict) -> ActorMessage:
    """Return the message of some records, or raise where they are none of ours."""
    ours = content.config_records.get(_OURS)
    payload = content.array_records.get("payload")
    if ours is None or payload is None or "payload" not in payload:
        raise LaconicError("a reply has no records of laconic: give the ClientApp the mod `compression`")
    header, lengths = ours.get("header"), ours.get("lengths")
    if not isinstance(header, bytes) or not isinstance(lengths, bytes):
        raise LaconicError("a reply has records of laconic that are damaged")
    data, frames, begin = memoryview(bytearray(payload["payload"].data)), [header], 0
    for length in msgspec.msgpack.decode(lengths, type=list[int]):
        frames.append(data[begin : begin + length])  # type: ignore[arg-type]
        begin += length
    return decode_envelope(frames, Limits())[1].message


def payload_bytes(content: RecordDict) -> int:
    """Return the bytes of a message that are a compressor's, or the model's."""
    return sum(len(array.data) for record in content.array_records.values() for array in record.values())


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
        told = message.content.config_records[_OURS]
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
            content = RecordDict({_ARRAYS: arrays, "config": config, _OURS: ConfigRecord(told)})
            found.append(Message(content=content, message_type=MessageType.TRAIN, dst_node_id=nodes[place]))
        return found

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        assert self._server is not None and self._layout is not None
        reports: dict[int, Report] = {}
        nodes: dict[int, int] = {}
        wire = Wire(self.strategy.compressor, self._layout, self._seed)
        for reply in replies:
            if reply.has_error():
                continue
            told = from_records(reply.content)
            client = told.number("client")
            if client in reports or told.number("version") != self._server.version:
                continue
            vectors = wire.decode(Encoded.read(told.fields, told.tensors), client, self._server.version)
            samples = next((m["num-examples"] for m in reply.content.metric_records.values() if "num-examples" in m), 1)
            reports[client] = Report(client, self._server.version, int(samples), vectors, {})  # type: ignore[arg-type]
            nodes[client] = reply.metadata.src_node_id
        _, needed = self.strategy.structure.wanted(self.strategy.rule.clients)
        if len(reports) < needed:
            return None, None
        self._server = self.strategy.rule.aggregate(self._server, [reports[client] for client in sorted(reports)])
        self._taken |= dict.fromkeys(nodes.values(), server_round)
        tensors = self._layout.split(self.strategy.rule.model(self._server))
        return ArrayRecord({name: Array(x.numpy()) for name, x in zip(self._names, tensors, strict=True)}), None


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
        return Message(RecordDict({_OURS: ConfigRecord({"client": _client_of(context)})}), reply_to=message)

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
    - `counted`: is called with the bytes of every message down and of its reply, payloads alone.
    """
    strategy = FederatedStrategy.parse(sentence)
    coordinator = Coordinator(task, population, strategy, steps=steps, rate=rate, seed=seed, processes=len(population))
    nodes = _nodes(grid, len(population), patience)
    for client in sorted(nodes):
        coordinator.write(client, ActorMessage("join"))
    editions, flying = dict.fromkeys(nodes, -1), dict[str, tuple[int, int, float]]()
    number, began = coordinator.current, time.monotonic()
    while not coordinator.is_done:
        busy = {client for client, *_ in flying.values()}
        for client in [client for client in nodes if client not in busy]:
            work = coordinator.read(client, ActorMessage("work", {"edition": editions[client]}))
            if work is not None and work.kind != "done":
                asked = Message(content=to_records(work), message_type=MessageType.TRAIN, dst_node_id=nodes[client])
                for pushed in grid.push_messages([asked]):
                    flying[pushed] = client, work.nbytes, time.monotonic()
        replies = list(grid.pull_messages(list(flying)))
        for reply in replies:
            client, fetched, _ = flying.pop(reply.metadata.reply_to_message_id)
            editions[client] = _taken_in(coordinator, client, reply, editions[client])
            if counted is not None and reply.has_content():
                counted(fetched, payload_bytes(reply.content))
        now = time.monotonic()
        for pushed in [pushed for pushed, (_, _, since) in flying.items() if now - since > patience]:
            coordinator.lose(flying.pop(pushed)[0])
        if coordinator.current != number:
            number, began = coordinator.current, now
        elif number is not None and now - began > strategy.structure.deadline:
            coordinator.write(-1, ActorMessage("close", {"round": number}))
        if not replies:
            time.sleep(_LOOK_SECONDS)
    answer = coordinator.read(-1, ActorMessage("outcome"))
    assert answer is not None
    return outcome_of(answer)


def _taken_in(coordinator: Coordinator, client: int, reply: Message, edition: int) -> int:
    """Hand a reply to the coordinator, and return which edition of the model its client has seen."""
    try:
        report = None if reply.has_error() else from_records(reply.content)
    except LaconicError:
        report = None
    if report is None:
        coordinator.write(client, ActorMessage("failed", {"client": client}))
        return -1
    if report.kind == "again":
        return -1
    coordinator.write(client, report)
    return report.number("edition", edition)


def _nodes(grid: Grid, count: int, patience: float) -> dict[int, int]:
    """Return the node of every client, when all are there."""
    found: dict[int, int] = {}
    asked: dict[int, str] = {}
    end = time.monotonic() + patience
    while len(found) < count:
        for node in grid.get_node_ids():
            if node not in asked:
                question = Message(content=RecordDict(), message_type=MessageType.QUERY, dst_node_id=node)
                (asked[node],) = grid.push_messages([question])
        waits = [pushed for node, pushed in asked.items() if node not in found.values()]
        for reply in grid.pull_messages(waits):
            if reply.has_content():
                found[int(reply.content.config_records[_OURS]["client"])] = reply.metadata.src_node_id  # type: ignore[arg-type]
        if time.monotonic() > end:
            raise LaconicError(f"{len(found)} of {count} clients have a node after {patience:g} s: start the others")
        if len(found) < count:
            time.sleep(_LOOK_SECONDS)
    return found
