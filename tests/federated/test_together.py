"""Clients of a round that train at once: what they learn is what they learn one after another."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from laconic.errors import LaconicError
from laconic.federated.local import Work
from laconic.federated.simulate import simulate
from laconic.federated.together import Meeting, TogetherTrainer, padded
from tests.federated.digits import digits
from tests.federated.test_device import SENTENCES, clients, on


@pytest.mark.parametrize("sentence", SENTENCES)
def test_together_clients_learn_what_they_learn_one_after_another(sentence: str) -> None:
    """Clients hold unequal numbers of samples, so that some have more steps than others, and a shorter last batch."""
    alone, together = (
        simulate(digits(), clients(), sentence, 3, rate=0.2, evaluate_every=3, together=most) for most in (1, 4)
    )
    torch.testing.assert_close(alone.parameters, together.parameters, rtol=0, atol=1e-5)
    assert [step.clients for step in alone.steps] == [step.clients for step in together.steps]
    assert alone.up_bytes.tolist() == together.up_bytes.tolist()
    assert alone.steps[-1].scores["loss"] == pytest.approx(together.steps[-1].scores["loss"], rel=1e-4)


def test_all_steps_of_a_round_are_one_computation_each(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    shards = clients().shards
    trainer = TogetherTrainer(digits(), 0, most=6)
    compute = trainer._steps
    monkeypatch.setattr(
        trainer, "_steps", lambda samples, weights: (sizes.append(len(samples)), compute(samples, weights))[1]
    )
    work = Work(epochs=1, batch=20, rate=0.1)
    draw = np.random.default_rng(0)
    parts = [
        lambda c=c: trainer.descend(trainer.start, work.batches(shards[c], draw), work) for c in range(len(shards))
    ]
    done = trainer.at_once(parts)
    steps = sorted(work.steps_made(len(shards[c])) for c in range(len(shards)))
    assert [one.steps for one in done] == [work.steps_made(len(shards[c])) for c in range(len(shards))]
    assert sizes == [sum(own > step for own in steps) for step in range(steps[-1])] and sizes[0] == 6


def test_more_clients_than_are_stacked_train_in_turns() -> None:
    alone, together = (
        simulate(digits(), clients(), "fedavg(6, batch=20)", 2, rate=0.2, together=most) for most in (1, 4)
    )
    torch.testing.assert_close(alone.parameters, together.parameters, rtol=0, atol=1e-5)


def test_batches_are_filled_up_with_samples_that_do_not_count() -> None:
    samples, weights = padded([[np.array([5, 6, 7]), np.array([8])], [np.array([9, 10])]])
    assert samples.tolist() == [[[5, 6, 7], [9, 10, 9]], [[8, 8, 8], [0, 0, 0]]]
    assert weights.sum(2).tolist() == [[1.0, 1.0], [1.0, 0.0]]
    assert weights[0, 1].tolist() == [0.5, 0.5, 0.0]


def test_the_error_of_one_client_ends_the_round_and_all_threads() -> None:
    before = threading.active_count()

    def part(number: int) -> int:
        if number == 1:
            raise ValueError("this client has no samples")
        return meeting.ask(number)  # type: ignore[arg-type, return-value]

    meeting = Meeting(lambda asked: [10 * number for number in asked])  # type: ignore[misc, operator]
    with pytest.raises(ValueError, match="no samples"):
        meeting.run([lambda n=n: part(n) for n in range(3)])
    assert threading.active_count() == before


def test_an_error_of_the_computation_reaches_who_asked() -> None:
    def fails(asked: object) -> list[object]:
        raise RuntimeError("out of memory")

    meeting = Meeting(fails)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="out of memory"):
        meeting.run([lambda: meeting.ask(0)] * 2)  # type: ignore[arg-type]


def test_a_task_that_knows_no_loss_of_a_sample_is_refused() -> None:
    class Task:
        def build(self, seed: int) -> nn.Module:
            return nn.Linear(2, 2)

        def loss(self, model: nn.Module, samples: Tensor) -> Tensor:
            return model(torch.zeros(1, 2)).sum()

        def evaluate(self, model: nn.Module) -> dict[str, float]:
            return {}

    with pytest.raises(LaconicError, match="give Task a method `losses"):
        simulate(Task(), clients(), "fedavg(3, batch=20)", 1, rate=0.1, together=2)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize(
    "sentence", ["fedavg(3, batch=20)", "scaffold(3, batch=20)", "fedbuff(2, batch=20, at_work=4)"]
)
def test_together_clients_on_a_device_learn_the_same(sentence: str, recorded: bool) -> None:
    here = simulate(digits(), clients(), sentence, 12, rate=0.2)
    there = simulate(on(digits(), "cuda"), clients(), sentence, 12, rate=0.2, recorded=recorded, together=4)
    torch.testing.assert_close(here.parameters, there.parameters, rtol=1e-3, atol=1e-3)
