"""The rpc endpoint over real sockets: strangers, replays and kills."""

from __future__ import annotations

import random
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import zmq

from laconic.errors import ContractError, LaconicError, WorkerLost
from laconic.rpc.authentication import MessageAuthenticator, make_key
from laconic.rpc.control import Hello
from laconic.rpc.control import encode as encode_control
from laconic.rpc.endpoint import Endpoint
from laconic.rpc.envelope import Envelope
from laconic.rpc.frames import encode, wire_bytes
from laconic.rpc.keys import Keys, Pair
from laconic.worker import ActorMessage, Kind
from tests.fuzz.frames import KINDS, HostileMember
from tests.rpc.processes import endpoint, start
from tests.rpc.shards import ELEMENTS, push, shard, values
from tests.rpc.test_fuzz import corrupted, message_frames
from tests.rpc.world import Tagged

PULL = ActorMessage("pull")


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Keys.make().write(tmp_path / "keys")
    return tmp_path


def opened(stack: ExitStack, folder: Path, rank: int, **settings: Any) -> Endpoint:
    made = endpoint(folder, rank, **settings)
    stack.callback(made.close)
    return made


def refused_by(server: Endpoint) -> Any:
    assert server._server_loop is not None
    return server._server_loop.service.refused


def dealer(stack: ExitStack) -> zmq.Socket[Any]:
    made: zmq.Socket[Any] = stack.enter_context(zmq.Context()).socket(zmq.DEALER)
    stack.callback(made.close, 0)
    made.linger = 0
    return made


def until(condition: Any, seconds: float = 30.0) -> None:
    """Wait for a condition without sleeping, since what fulfils it runs in threads of this process."""
    context: zmq.Context[Any] = zmq.Context()
    waiting = context.socket(zmq.PULL)
    try:
        for _ in range(round(seconds / 0.01)):
            if condition():
                return
            waiting.poll(10)
        raise AssertionError("it did not happen")
    finally:
        context.destroy(linger=0)


def test_messages_are_answered_and_counted(stack: ExitStack, folder: Path) -> None:
    actor = shard()
    server, worker = opened(stack, folder, -1), opened(stack, folder, 0)
    server.host("s", actor)
    receipts = [worker.call("s", push(), writes=True) for _ in range(3)]
    assert [receipt.wait().fields["clock"] for receipt in receipts] == [1, 2, 3]
    (seen,) = worker.call("s", PULL, writes=False).wait().tensors
    assert torch.equal(seen, values(actor))
    sent = [wire_bytes("s", Envelope(0, 0, n, True, n, 0, push())) for n in (1, 2, 3)]
    ledger = worker._ledger
    assert ledger.sent_bytes(Kind.PAYLOAD) == sum(payload for payload, _ in sent)
    (asked,) = [wire_bytes("s", Envelope(0, 0, 1, False, 3, 0, PULL))]
    assert ledger.sent_bytes(Kind.CONTROL) == sum(other for _, other in sent) + asked[1]
    assert ledger.received_bytes(Kind.PAYLOAD) == seen.nbytes


def test_large_tensors_are_neither_copied_nor_changed_in_transit(stack: ExitStack, folder: Path) -> None:
    class Keeper(Tagged):
        def write(self, sender: int, message: ActorMessage) -> ActorMessage:
            self.kept = message.tensors
            return ActorMessage("kept")

        def read(self, sender: int, message: ActorMessage) -> ActorMessage:
            return ActorMessage("values", {}, self.kept)

    keeper = Keeper()
    server, worker = opened(stack, folder, -1), opened(stack, folder, 0)
    server.host("s", keeper)
    sent = (torch.randn(300_000), torch.randn(7, dtype=torch.float64), torch.arange(200_000, dtype=torch.int16))
    assert worker.call("s", ActorMessage("keep", {}, sent), writes=True).wait().kind == "kept"
    seen = worker.call("s", PULL, writes=False).wait().tensors
    assert all(torch.equal(x, y) and x.dtype == y.dtype for x, y in zip(sent, seen, strict=True))


def test_what_an_actor_refuses_is_an_answer(stack: ExitStack, folder: Path) -> None:
    class Strict(Tagged):
        def write(self, sender: int, message: ActorMessage) -> ActorMessage:
            raise ContractError("not today")

    server, worker = opened(stack, folder, -1), opened(stack, folder, 0)
    server.host("s", Strict())
    answer = worker.call("s", push(), writes=True).wait()
    assert (answer.kind, answer.fields["why"]) == ("refused", "not today")


def test_one_server_loop_serves_several_actors_and_workers(stack: ExitStack, folder: Path) -> None:
    server = opened(stack, folder, -1)
    workers = [opened(stack, folder, rank) for rank in range(3)]
    actors = {f"s/{k}": Tagged() for k in range(2)}
    for address, actor in actors.items():
        server.host(address, actor)
    calls = [
        worker.call(address, ActorMessage("push", {"name": f"{rank}/0", "number": n}), writes=True)
        for n in range(1, 21)
        for rank, worker in enumerate(workers)
        for address in actors
    ]
    for call in calls:
        assert call.wait().kind == "receipt"
    assert all(actor.counts == {"0/0": 20, "1/0": 20, "2/0": 20} for actor in actors.values())


@pytest.mark.long
def test_workers_wait_for_each_other_and_not_for_the_silent(stack: ExitStack, folder: Path) -> None:
    """A read waits until enough was written, or until a worker that fell silent is given up."""
    server, worker, other = (opened(stack, folder, rank) for rank in (-1, 0, 1))
    server.host("s", Tagged())
    ask = ActorMessage("pull", {"name": "0/0", "total": 1})
    waiting = worker.call("s", ask, writes=False)
    worker.call("s", ActorMessage("pull", {"name": "0/0", "total": 0}), writes=False).wait()
    assert not waiting.done()
    other.call("s", ActorMessage("push", {"name": "1/0", "number": 1}), writes=True).wait()
    waiting.wait()
    waiting = worker.call("s", ActorMessage("pull", {"name": "0/0", "total": 9}), writes=False)
    other.close()
    waiting.wait()


def test_actors_send_messages_to_actors(stack: ExitStack, folder: Path) -> None:
    """Each message arrives once, before the snapshot that holds the write which caused it."""

    class Gossip(Tagged):
        def write(self, sender: int, message: ActorMessage) -> ActorMessage:
            if sender >= 0:
                self.outgoing.append(("b", message))
            return super().write(sender, message)

    first, second = opened(stack, folder, -1), opened(stack, folder, -2)
    worker, other = opened(stack, folder, 0), Tagged()
    first.host("a", Gossip(), every_bytes=1)
    second.host("b", other)
    for number in range(1, 11):
        worker.call("a", ActorMessage("push", {"name": "0/0", "number": number}), writes=True).wait()
    worker.leave()
    assert other.counts == {"0/0": 10}


def test_a_worker_that_leaves_is_safe_and_not_missed(stack: ExitStack, folder: Path) -> None:
    server, worker = opened(stack, folder, -1), opened(stack, folder, 0)
    server.host("s", shard(), every_bytes=1 << 40)
    worker.call("s", push(), writes=True).wait()
    worker.leave()
    server.serve_until_done(1)
    again = shard()
    restarted = opened(stack, folder, -1)
    restarted.host("s", again)  # from the snapshot that the worker asked for
    expected = shard()
    expected.write(0, push())
    assert torch.equal(values(again), values(expected))


def test_a_run_that_is_continued_finds_its_servers_as_its_checkpoint_left_them(stack: ExitStack, folder: Path) -> None:
    server, worker = endpoint(folder, -1), endpoint(folder, 0)
    server.host("s", shard(), every_bytes=1 << 40)
    for _ in range(3):
        worker.call("s", push(), writes=True).wait()
    worker.make_durable()
    worker.call("s", push(), writes=True).wait()  # after the checkpoint, and nobody holds it on disk
    worker.close()
    server.close()  # both are killed

    resumed, late = opened(stack, folder, -1, resumes=True), opened(stack, folder, 0, life=1 << 20)
    resumed.host("s", shard())
    expected = shard()
    for _ in range(3):
        expected.write(0, push())
    (seen,) = late.call("s", PULL, writes=False).wait().tensors
    assert torch.equal(seen, values(expected))
    expected.write(0, push())
    late.call("s", push(), writes=True).wait()  # with the momentum of the earlier ones
    (seen,) = late.call("s", PULL, writes=False).wait().tensors
    assert torch.equal(seen, values(expected))
    with pytest.raises(LaconicError, match="holds no snapshot of what this server serves"):
        resumed.host("another", shard())


def test_a_worker_of_the_past_is_turned_away(stack: ExitStack, folder: Path) -> None:
    server, new = opened(stack, folder, -1), opened(stack, folder, 0, life=1)
    server.host("s", Tagged())
    new.call("s", ActorMessage("push", {"name": "0/1", "number": 1}), writes=True).wait()
    for life, why in ((0, "started again since"), (1, "another process already sends")):
        with pytest.raises(WorkerLost, match=why):
            opened(stack, folder, 0, life=life).call("s", PULL, writes=False).wait()


# ---------------------------------------------------------------------------------------------- strangers


def test_without_the_runs_keys_nobody_is_admitted(stack: ExitStack, folder: Path) -> None:
    actor = shard()
    server = opened(stack, folder, -1)
    server.host("s", actor)
    own = Keys.read(folder / "keys")
    wrong_worker = Keys(Pair(own.servers.public, ""), Pair.make())
    wrong_server = Keys(Pair.make(), own.workers)
    for keys in (wrong_worker, wrong_server):
        stranger = opened(stack, folder, 0, keys=keys, unreachable_seconds=1.0)
        with pytest.raises(WorkerLost, match="was silent"):
            stranger.call("s", push(), writes=True).wait()
    until(lambda: refused_by(server)["Stranger"])
    assert not values(actor).any() and not server._server_loop.service.sessions  # type: ignore[union-attr]


@pytest.mark.long
def test_garbage_and_corrupted_frames_on_live_sockets_change_nothing(stack: ExitStack, folder: Path) -> None:
    """Strangers connect to both ports; one of them has a connection for tensors, but not the session's key."""
    actor = shard()
    server, worker = opened(stack, folder, -1), opened(stack, folder, 0)
    server.host("s", actor)
    first = worker.call("s", push(0.5), writes=True)
    first.wait()
    before = values(actor)
    assert server._server_loop is not None
    service, refused = server._server_loop.service, refused_by(server)
    control_port, draw = int(server._server_loop.endpoint.rpartition(":")[2]), random.Random(4)
    for port in (control_port, service.port):
        for garbage in (b"GET / HTTP/1.0\r\n\r\n", draw.randbytes(5000), b"\xff" + bytes(8) + b"\x7f" + bytes(500)):
            with socket.create_connection(("127.0.0.1", port)) as raw:
                raw.sendall(garbage)
    plain, guessing, inside = (dealer(stack) for _ in range(3))
    (session,) = service.sessions.values()
    guessing.plain_username, guessing.plain_password = session.name.hex().encode(), b"guess"
    inside.plain_username, inside.plain_password = session.name.hex().encode(), session.password.encode()
    inside.sndhwm = 0
    plain.connect(server._server_loop.endpoint)
    with suppress(zmq.Again):  # who is turned away at once has nowhere to send to
        plain.send(encode_control(Hello(1, 7, 0, b"", ["s"])), zmq.NOBLOCK)
    for stranger in (plain, guessing, inside):
        stranger.connect(f"tcp://127.0.0.1:{service.port}")
        forged = MessageAuthenticator.of_worker(session.name, make_key()).sign(message_frames(2))
        with suppress(zmq.Again):
            stranger.send_multipart(forged, 0 if stranger is inside else zmq.NOBLOCK)
    authenticator = MessageAuthenticator.of_worker(session.name, make_key())
    for _ in range(3000):
        inside.send_multipart(corrupted(list(map(bytes, authenticator.sign(message_frames(2)))), draw) or [b""])
    until(lambda: refused["AuthenticationError"] + refused["Malformed"] >= 3001)
    until(lambda: refused["Stranger"] >= 1)
    assert torch.equal(values(actor), before) and set(service.sessions) == {session.name}
    (seen,) = worker.call("s", PULL, writes=False).wait().tensors
    assert torch.equal(seen, before)


def test_a_hostile_member_changes_nothing_and_the_honest_one_goes_on(stack: ExitStack, folder: Path) -> None:
    """It has the keys and a session; `bench/fuzz_frames.py` sends a million messages of the same kinds."""
    actor = shard(momentum=0.0)
    server, honest = opened(stack, folder, -1), opened(stack, folder, 0)
    server.host("s", actor)
    hostile = HostileMember(folder, seed=0)
    stack.callback(hostile.close)
    for number in range(1, 4):
        hostile.send(700)
        honest.call("s", push(), writes=True).wait()
        assert torch.equal(values(actor), torch.full((ELEMENTS,), -number / 2))
    assert min(hostile.sent.values()) > 0 and len(hostile.sent) == len(KINDS)
    until(lambda: refused_by(server).total() > 1000)


def test_a_recorded_message_is_not_accepted_again(stack: ExitStack, folder: Path) -> None:
    actor = shard()
    server, worker = opened(stack, folder, -1), opened(stack, folder, 0)
    server.host("s", actor)
    worker.call("s", push(), writes=True).wait()
    before = values(actor)
    assert server._server_loop is not None and worker._client_loop is not None
    service = server._server_loop.service
    (session,), (connection,) = service.sessions.values(), worker._client_loop._connections.values()
    assert connection.authenticator is not None
    recorded = MessageAuthenticator(session.name, connection.authenticator.sending_key, b"").sign(
        encode("s", Envelope(0, 0, 1, True, 1, 0, push()))
    )
    inside = dealer(stack)
    inside.plain_username, inside.plain_password = session.name.hex().encode(), session.password.encode()
    inside.connect(f"tcp://127.0.0.1:{service.port}")
    inside.send_multipart(recorded)
    until(lambda: service.refused["AuthenticationError"] == 1)
    assert torch.equal(values(actor), before)


# ---------------------------------------------------------------------------------------------- kills


@pytest.mark.long
def test_a_killed_server_loses_nothing(stack: ExitStack, folder: Path) -> None:
    """Some writes are in a snapshot when it dies, some are only acknowledged, and some are in flight."""
    running: list[subprocess.Popen[str]] = [start(folder, every_bytes=500)]

    def end() -> None:
        for process in running:
            process.kill()
            process.wait()

    stack.callback(end)
    workers = [opened(stack, folder, rank) for rank in range(2)]
    steps, total = 30, 0
    for step in range(steps):
        calls = [worker.call("s", push(100.0 * rank + step), writes=True) for rank, worker in enumerate(workers)]
        total += 100 + 2 * step
        if step == 13:
            running[-1].kill()
            running[-1].wait()
            running.append(start(folder, every_bytes=500))
        if step % 3 == 0:
            assert all(call.wait().kind == "receipt" for call in calls)
    for worker in workers:
        assert worker.call("s", PULL, writes=False).wait().fields["clock"] == steps  # its own are all there
    seen = workers[0].call("s", PULL, writes=False).wait()
    assert seen.fields["version"] == 2 * steps  # and each once
    assert torch.equal(seen.tensors[0], torch.full((ELEMENTS,), -total / 2))
    for worker in workers:
        worker.leave()
    assert running[-1].wait(30) == 0
