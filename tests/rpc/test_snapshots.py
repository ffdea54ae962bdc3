"""Actors on disk: a snapshot is complete or absent, and never holds anything that runs."""

from __future__ import annotations

import random
import resource
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from laconic.architecture.server.copy_buffers import Copies
from laconic.errors import LaconicError, WorkerLost
from laconic.rpc.envelope import Answer, Envelope
from laconic.rpc.frames import Malformed
from laconic.rpc.inbox import Inbox
from laconic.rpc.outbox import Outbox
from laconic.rpc.saver import Saver
from laconic.rpc.snapshots import Snapshots, read, tensor_bytes, write
from laconic.worker import ActorMessage
from tests.rpc.shards import push, shard, values

STATE = {
    "numbers": [1, -2, 3.5, True, None],
    "text": "ä",
    "deep": {"a": {"b": [torch.arange(5), {"c": torch.randn(3, 4).bfloat16()}]}},
    "empty": torch.empty(0, 3),
    "one": torch.tensor(2.5),
}


def alike(x: Any, y: Any) -> bool:
    if isinstance(x, torch.Tensor):
        return isinstance(y, torch.Tensor) and x.dtype == y.dtype and x.shape == y.shape and torch.equal(x, y)
    if isinstance(x, dict):
        return isinstance(y, dict) and x.keys() == y.keys() and all(alike(x[k], y[k]) for k in x)
    if isinstance(x, list):
        return isinstance(y, list) and len(x) == len(y) and all(map(alike, x, y))
    return type(x) is type(y) and x == y


def test_a_state_is_restored_bit_by_bit(tmp_path: Path) -> None:
    write(tmp_path / "s", STATE)
    assert alike(read(tmp_path / "s"), STATE)
    assert [path.name for path in tmp_path.iterdir()] == ["s"]
    assert tensor_bytes(STATE) == 40 + 24 + 4


def test_a_server_is_restored_with_its_optimizer_and_its_answers(tmp_path: Path) -> None:
    actor, outbox = shard(), Outbox(0, 0)
    inbox = Inbox(actor)
    for value in (1.0, 2.0):
        inbox.receive(outbox.add(push(value), writes=True))
    write(tmp_path / "s", inbox.state())
    again = shard()
    restored = Inbox(again, epoch=2)
    restored.restore(read(tmp_path / "s"))
    assert torch.equal(values(again), values(actor)) and restored.progress(0, 0) == (2, 2)
    third = outbox.add(push(3.0), writes=True)
    for mailbox in (inbox, restored):  # momentum included
        mailbox.receive(third)
    assert torch.equal(values(again), values(actor))


def test_nothing_but_data_can_be_saved(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="not function"):
        write(tmp_path / "s", {"f": alike})
    assert not list(tmp_path.iterdir())


def test_damage_is_noticed_wherever_it_is(tmp_path: Path) -> None:
    path, draw = tmp_path / "s", random.Random(0)
    write(path, STATE)
    whole = path.read_bytes()
    for _ in range(300):
        corrupted = bytearray(whole)
        if draw.random() < 0.3:
            corrupted = corrupted[: draw.randrange(len(whole))]
        else:
            corrupted[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        path.write_bytes(corrupted)
        with pytest.raises(Malformed):
            read(path)


def test_a_damaged_snapshot_gives_way_to_the_one_before(tmp_path: Path) -> None:
    kept = Snapshots(tmp_path / "actor")
    assert kept.newest() is None and kept.begin_epoch() == 1
    for n in range(4):
        kept.save({"n": n})
    files = sorted(path for path in (tmp_path / "actor").iterdir() if path.name != "epoch")
    assert len(files) == 2 and kept.newest() == {"n": 3}
    files[-1].write_bytes(files[-1].read_bytes()[:-1])
    again = Snapshots(tmp_path / "actor")
    assert again.newest() == {"n": 2} and again.begin_epoch() == 2


def test_a_worker_notices_that_durable_writes_are_gone() -> None:
    outbox = Outbox(0, 0)
    for number in (1, 2):
        outbox.add(ActorMessage("push"), writes=True)
        outbox.receive(Answer(0, 0, number, True, 1, number, number, ActorMessage("receipt")))
    assert outbox.is_safe
    with pytest.raises(WorkerLost, match="without 1 writes of worker 0"):
        outbox.receive(Answer(0, 0, 3, True, 2, 1, 1, None))


def test_states_are_saved_in_the_background_and_one_at_a_time(tmp_path: Path) -> None:
    done = threading.Semaphore(0)
    saver = Saver(Snapshots(tmp_path), 100, done.release)
    saver.wrote(99)
    assert not saver.due
    saver.wrote(1)
    assert saver.due
    saver.begin({"n": 1})
    saver.ask()
    assert saver.busy and not saver.due
    assert done.acquire(timeout=30)
    assert saver.finished() == {"n": 1} and saver.finished() is None
    assert saver.due  # what was asked for meanwhile
    saver.begin({"n": print})
    assert done.acquire(timeout=30)
    with pytest.raises(TypeError):
        saver.finished()
    saver.close()


def test_copies_keep_their_memory_while_a_view_exists() -> None:
    copies, tensor = Copies(), torch.arange(6.0).view(2, 3)
    first = copies.of(tensor)
    seen = first.view(torch.uint8).numpy().data
    tensor += 1
    second = copies.of(tensor)
    place = first.data_ptr()
    del first
    third = copies.of(tensor)
    assert place not in (second.data_ptr(), third.data_ptr()) and bytes(seen) == torch.arange(6.0).numpy().tobytes()
    del seen
    others = [np.empty(tensor.nbytes, dtype=np.uint8) for _ in range(16)]  # which take what was given back
    assert all(other.ctypes.data != place for other in others)
    assert copies.of(tensor).data_ptr() == place and torch.equal(second, tensor)


def test_a_read_that_waits_for_a_lost_life_is_answered() -> None:
    """A worker that restarts counts as lost in between, so that a read which waited for it is answered."""

    class Waiting:
        outgoing: list[tuple[str, ActorMessage]] = []  # noqa: RUF012
        lost = False

        def write(self, sender: int, message: ActorMessage) -> ActorMessage:
            return ActorMessage("receipt")

        def read(self, sender: int, message: ActorMessage) -> ActorMessage | None:
            return ActorMessage("values") if self.lost else None

        def lose(self, sender: int) -> None:
            self.lost = True

        def state(self) -> dict[str, Any]:
            return {}

        def restore(self, state: dict[str, Any]) -> None: ...

    inbox = Inbox(Waiting())
    inbox.receive(Envelope(1, 0, 1, True, 1, 0, ActorMessage("push")))
    assert inbox.receive(Envelope(0, 0, 1, False, 0, 0, ActorMessage("pull"))) == []
    answers = inbox.receive(Envelope(1, 1, 1, True, 1, 0, ActorMessage("push")))
    assert {(answer.to, answer.writes) for answer in answers} == {(0, False), (1, True)}


def test_a_snapshot_that_does_not_fit_is_refused_in_words_and_the_one_before_stays(tmp_path: Path) -> None:
    kept = Snapshots(tmp_path / "actor")
    kept.save({"value": torch.ones(4)})
    written = threading.Event()
    saver = Saver(kept, 1, written.set)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))  # as a full disk
    try:
        saver.begin({"value": torch.ones(4000)})
        assert written.wait(60)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    with pytest.raises(LaconicError, match=r"actor/snapshot\S* cannot be written .File too large."):
        saver.finished()
    saver.close()
    newest = kept.newest()
    assert newest is not None and newest["value"].tolist() == [1.0] * 4
    assert [path.name for path in (tmp_path / "actor").iterdir()] == ["snapshot.000000000001"]


def test_a_copy_is_where_its_tensor_is() -> None:
    """Memory is used again on the CPU only; a tensor without elements, or without memory here, is copied as it is."""
    assert Copies().of(torch.empty(3, 2, device="meta")).device.type == "meta"
    empty = torch.empty(0, 3, dtype=torch.float64)
    copied = Copies().of(empty)
    assert copied.shape == empty.shape and copied.dtype == empty.dtype
