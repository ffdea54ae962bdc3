"""Schedules among real processes: what reaches servers, when it leaves, and how many collectives there are."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import laconic
from laconic.real.connect import connect
from laconic.real.recording import Recording
from laconic.real.worker import RealWorker
from laconic.rpc.envelope import Answer, Envelope
from tests.real.pool import Pool, PoolRank
from tests.real.race import by_laconic, difference, sgd
from tests.real.test_against_ddp import batch, mlp, plain_step
from tests.real.test_bsp import versus_one_worker

PATIENCE_SECONDS = 30.0
WORKERS = 4


class Passed(NamedTuple):
    """A message that an actor's inbox received or answered."""

    goes_in: bool
    worker: int
    kind: str
    round: int
    nbytes: int


class Meter:
    """The messages in and out of the actors that this process hosts, in the order of their serving thread."""

    def __init__(self) -> None:
        self.log: list[Passed] = []
        self._more = threading.Condition()

    def watch(self, inbox: Any) -> None:
        rounds: dict[tuple[int, int], int] = {}
        receive = inbox.receive

        def metered(envelope: Envelope) -> list[Answer]:
            message = envelope.message
            turn = message.number("round", -1)
            if not envelope.writes:
                rounds[envelope.sender, envelope.number] = turn
            answers: list[Answer] = receive(envelope)
            sent = [(a, a.message) for a in answers if not a.writes and a.message is not None]
            with self._more:
                self.log.append(Passed(True, envelope.sender, message.kind, turn, message.nbytes))
                self.log += [Passed(False, a.to, x.kind, rounds[a.to, a.number], x.nbytes) for a, x in sent]
                self._more.notify_all()
            return answers

        inbox.receive = metered

    def count(self, worker: int, kind: str) -> int:
        return sum(p.goes_in and (p.worker, p.kind) == (worker, kind) for p in self.log)

    def until(self, worker: int, kind: str, count: int, patience_seconds: float) -> bool:
        """Wait for this many messages of this kind from this worker; return whether they arrived."""
        with self._more:
            return self._more.wait_for(lambda: self.count(worker, kind) >= count, patience_seconds)

    def nbytes(self, goes_in: bool, kind: str) -> int:
        return sum(p.nbytes for p in self.log if (p.goes_in, p.kind) == (goes_in, kind))


@contextmanager
def metered(
    member: PoolRank, model: nn.Module, strategy: str
) -> Iterator[tuple[nn.Module, torch.optim.Optimizer, Meter]]:
    """A model at work with a meter before the servers that live in this process."""
    worker = connect()
    assert isinstance(worker, RealWorker)
    before = set() if worker.endpoint._server_loop is None else set(worker.endpoint._server_loop.service.mailboxes)
    model, optimizer = laconic.distribute(model, sgd(model.parameters()), strategy, process_group=member.process_group)
    meter = Meter()
    if worker.endpoint._server_loop is not None:
        mailboxes = worker.endpoint._server_loop.service.mailboxes
        for address in set(mailboxes) - before:
            meter.watch(mailboxes[address].inbox)
    dist.barrier(member.process_group)
    yield model, optimizer, meter
    laconic.finish(model, optimizer)
    dist.barrier(member.process_group)
    laconic.undistribute(model, optimizer)


# ------------------------------------------------------------------------------------------------ bytes


def served_bytes(member: PoolRank, shards: int, steps: int = 3) -> tuple[int, int, int, int]:
    model = mlp()
    weights, flags = sum(p.nbytes for p in model.parameters()), 4 * len(list(model.parameters()))
    with metered(member, model, f"bsp / none / ps({shards}) / sequential") as (model, optimizer, meter):
        for step in range(steps):
            plain_step(model, optimizer, member.rank, step)
        dist.barrier(member.process_group)
        return steps * weights, steps * flags, meter.nbytes(True, "contribute"), meter.nbytes(False, "sum")


@pytest.mark.technique("bsp_ps", check=1)
@pytest.mark.parametrize("shards", [1, 2, 4])
def test_each_server_receives_and_sends_its_share(pool: Pool, shards: int) -> None:
    """The bytes of tensors in each server's messages; beside the model's, a flag for each parameter, and a part's
    length is rounded to whole elements."""
    found = pool.run(served_bytes, shards, workers=WORKERS)
    for rank, (weights, flags, came, went) in enumerate(found):
        share = WORKERS * weights / shards if rank < shards else 0
        more = WORKERS * flags / shards + 4 * WORKERS * 3
        assert share <= came <= share + more
        assert share <= went <= share + more
    assert sum(came for _, _, came, _ in found) == WORKERS * (found[0][0] + found[0][1])


@pytest.mark.long
@pytest.mark.technique("bsp_ps", check=2)
def test_synchronous_servers_are_one_worker_with_a_large_batch(pool: Pool) -> None:
    assert max(pool.run(versus_one_worker, "bsp_ps", False, workers=WORKERS)) <= 1e-5


def trained(member: PoolRank, strategy: str, steps: int = 12) -> dict[str, Tensor]:
    return by_laconic(member, mlp, plain_step, steps, strategy=strategy)


@pytest.mark.technique("bsp_a2a", check=3)
def test_servers_and_all_reduces_train_the_same_model(pool: Pool) -> None:
    a2a, served = (pool.run(trained, name, workers=WORKERS) for name in ("bsp_a2a", "bsp_ps"))
    assert max(difference(x, y) for x, y in zip(a2a, served, strict=True)) <= 1e-5


# ------------------------------------------------------------------------------------------------ when things leave


def pushed_during_backward(member: PoolRank, strategy: str, patience_seconds: float) -> bool:
    """Whether a push of rank 0 is at the server when its first layer's gradients come, which wait for it."""
    model = mlp()
    seen: list[bool] = []
    pushed: list[int] = []  # before this step

    def hook(parameter: Tensor) -> None:
        if pushed and not seen:
            seen.append(meter.until(0, "contribute", pushed[0] + 1, patience_seconds))

    for parameter in model[0].parameters():  # type: ignore[operator, index]
        parameter.register_post_accumulate_grad_hook(hook)  # before laconic's own: this gradient has not left
    with metered(member, model, strategy) as (model, optimizer, meter):
        plain_step(model, optimizer, member.rank, 0)
        if member.rank == 0:
            pushed.append(meter.count(0, "contribute"))
        plain_step(model, optimizer, member.rank, 1)
    return member.rank > 0 or seen[0]


@pytest.mark.technique("wfbp_ps", check=3)
def test_the_first_push_leaves_before_backward_ends(pool: Pool) -> None:
    """And the model is that of one push after backward, where nothing has left by then."""
    assert all(pool.run(pushed_during_backward, "wfbp_ps", PATIENCE_SECONDS, workers=WORKERS))
    assert not pool.run(pushed_during_backward, "bsp_ps", 0.0, workers=WORKERS)[0]
    early, late = (pool.run(trained, name, workers=WORKERS) for name in ("wfbp_ps", "bsp_ps"))
    assert max(difference(x, y) for x, y in zip(early, late, strict=True)) <= 1e-5


def streamed(member: PoolRank, strategy: str) -> list[Passed]:
    """What one server sees of one large tensor, whose gradient is sent in frames of 64 KiB."""
    model: nn.Module = nn.Linear(512, 512, bias=False)  # 16 frames
    with metered(member, model, strategy) as (model, optimizer, meter):
        model(torch.full((1, 512), 1.0 + member.rank)).sum().backward()
        optimizer.step()
        laconic.finish(model, optimizer)
        dist.barrier(member.process_group)
        return meter.log


@pytest.mark.technique("mercury", check=3)
@pytest.mark.parametrize("word", ["p3(16384)", "bytescheduler(16384, credit=32768)"])
def test_a_server_answers_the_first_frames_while_the_last_are_still_to_come(pool: Pool, word: str) -> None:
    """Real servers add frames of one tensor, offset by offset, and return each sum at once."""
    log, *_ = pool.run(streamed, f"bsp / none / ps / {word}", workers=WORKERS)
    frames = [place for place, p in enumerate(log) if p.goes_in and p.kind == "contribute"]
    assert len(frames) == WORKERS * 16 and all(log[place].nbytes >= 65536 for place in frames)
    first = min(log[place].round for place in frames)
    answered = [place for place, p in enumerate(log) if not p.goes_in and (p.kind, p.round) == ("sum", first)]
    assert len(answered) == WORKERS and min(answered) < max(frames)
    overtaken = [place for place, p in enumerate(log) if not p.goes_in and p.kind == "sum" and place < max(frames)]
    assert len(overtaken) >= WORKERS * 8, "not only the first of them"


# ------------------------------------------------------------------------------------------------ how many there are


def many() -> nn.Module:
    """Two hundred small tensors."""
    return nn.Sequential(nn.Linear(12, 4), *(nn.Linear(4, 4) for _ in range(98)), nn.Linear(4, 5))


def counted(member: PoolRank, strategy: str, steps: int = 8) -> tuple[int, Tensor]:
    """How many all-reduces the last step starts, and what was learnt; plans are made in the first six."""
    torch.manual_seed(3)
    model = many()
    worker = connect()
    assert isinstance(worker, RealWorker)
    model, optimizer = laconic.distribute(model, sgd(model.parameters()), strategy, process_group=member.process_group)
    try:
        for step in range(steps):
            if step == steps - 1:
                worker.recording = Recording(member.rank)
            x, y = batch(member.rank, step)
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        spans = worker.recording.timeline.of(member.rank, "communication")  # type: ignore[union-attr]
    finally:
        worker.recording = None
    learnt = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    laconic.undistribute(model, optimizer)
    return sum(span.arguments["operation"] == "all_reduce" for span in spans), learnt


@pytest.mark.long
@pytest.mark.technique("mg_wfbp", check=3)
def test_merged_gradients_need_fewer_all_reduces(pool: Pool) -> None:
    """The same model from fewer collectives. That the step is shorter, too, is for a benchmark to say."""
    alone, merged = (pool.run(counted, f"bsp / {word}", workers=WORKERS) for word in ("wfbp(0)", "mg_wfbp"))
    for (many_calls, expected), (calls, learnt) in zip(alone, merged, strict=True):
        assert many_calls == 200 and 1 <= calls < 100
        torch.testing.assert_close(learnt, expected, rtol=1e-5, atol=1e-6)
