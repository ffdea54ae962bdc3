"""TensorBoard and Weights & Biases show what `laconic.log` was given, with bytes and times; both without a network."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from torch import nn

import laconic
from tests.integrations.scripts import needs

pytestmark = pytest.mark.long
STEPS = 5


def train() -> None:
    model: nn.Module = nn.Linear(13, 7)
    model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), "bf16+ef")
    report()
    for step in range(STEPS):
        optimizer.zero_grad()
        model(torch.ones(2, 13)).sum().backward()
        optimizer.step()
        laconic.log(loss=step + 10 * laconic.rank())


def report() -> None:
    raise NotImplementedError


@needs("tensorboard")
def test_tensorboard_shows_every_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from laconic.integrations.tensorboard import TensorBoardSink

    sinks = []

    def report_to_tensorboard() -> None:
        sinks.append(TensorBoardSink(tmp_path))
        laconic.report_to(sinks[-1])

    monkeypatch.setitem(globals(), "report", report_to_tensorboard)
    laconic.simulate(train, 2)
    for sink in sinks:
        sink._writer.flush()
    for rank in range(2):
        events = EventAccumulator(str(tmp_path / f"worker-{rank}"))
        events.Reload()
        losses = [(event.step, event.value) for event in events.Scalars("loss")]
        assert losses == [(step + 1, step + 10.0 * rank) for step in range(STEPS)]
        sent = [event.value for event in events.Scalars("laconic/sent_bytes")]
        assert len(sent) == STEPS and sent[0] > 0 and all(a < b for a, b in itertools.pairwise(sent))
        assert "laconic/step_seconds" in events.Tags()["scalars"]


@needs("wandb")
def test_weights_and_biases_shows_the_first_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    from laconic.integrations.wandb import WandbSink

    run = wandb.init(mode="offline", dir=str(tmp_path), project="laconic")

    def report_to_wandb() -> None:
        if laconic.rank() == 0:
            laconic.report_to(WandbSink(run))

    monkeypatch.setitem(globals(), "report", report_to_wandb)
    laconic.simulate(train, 2)
    summary = dict(run.summary)
    run.finish()
    assert summary["loss"] == STEPS - 1 and summary["laconic/step"] == STEPS
    assert summary["laconic/sent_bytes"] > 0 and summary["laconic/step_seconds"] > 0
    assert list(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))
