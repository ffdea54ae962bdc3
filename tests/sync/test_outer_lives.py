"""Rules with an outer optimizer through a run's life: saved and resumed, followed by another phase, on both engines."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import laconic
from tests.real.pool import Pool
from tests.sync.rounds import WORKERS, Run, adamw, simulated, train
from tests.virtual.test_equivalence import on_processes, train_among, two_of
from tests.virtual.test_equivalence import train as script

RULES = [
    "slowmo(period=4)",
    "diloco(period=4)",
    "overlap_local_sgd(period=4)",
    "streaming_diloco(period=6, fragments=3, overlap=2)",
    "streaming_diloco(period=6, fragments=3, overlap=2) / e3m0+ef",
]


@pytest.mark.long
@pytest.mark.parametrize("strategy", RULES)
def test_a_resumed_run_ends_with_the_bits_of_an_undisturbed_one(strategy: str, tmp_path: Path) -> None:
    """Saved in the middle of a round, with something in flight where the rule has it so."""

    def save(run: Run, step: int) -> None:
        if step == 7:
            laconic.checkpoint(tmp_path, run.model, run.optimizer, step=step)

    whole = laconic.simulate(lambda: train(strategy, 15, adamw, after=save), WORKERS).results
    rest = laconic.simulate(lambda: train(strategy, 15, adamw, checkpoint=tmp_path), WORKERS).results
    for a, b in zip(whole, rest, strict=True):
        assert len(b.path) == 15 - 7
        assert torch.equal(a.path[-1], b.path[-1]) and torch.equal(a.remembered("point"), b.remembered("point"))


@pytest.mark.parametrize("strategy", RULES)
def test_when_the_phase_is_over_workers_meet_in_the_mean(strategy: str) -> None:
    """Where something is in flight, they receive it first."""
    runs = simulated(f"{strategy} until step 7, then bsp", 9, adamw)
    assert all(torch.equal(run.path[6], runs[0].path[6]) for run in runs)
    if "streaming" not in strategy:
        mean = torch.stack([run.path[-1] for run in simulated(strategy, 7, adamw)]).mean(dim=0)
        torch.testing.assert_close(runs[0].path[6], mean, rtol=0, atol=1e-12)


def test_rounds_are_counted_from_where_the_rule_begins() -> None:
    runs = simulated("bsp until step 3, then diloco(period=4)", 12, adamw)
    together = [all(torch.equal(run.path[step], runs[0].path[step]) for run in runs) for step in range(12)]
    assert [step + 1 for step, same in enumerate(together) if same] == [1, 2, 3, 7, 11]


@pytest.mark.parametrize("strategy", RULES)
def test_a_finished_model_is_one_and_can_go_on(strategy: str) -> None:
    def finished() -> list[torch.Tensor]:
        run = train(strategy, 13, adamw, after=lambda run, step: step == 7 and laconic.finish(run.model, run.optimizer))
        laconic.finish(run.model, run.optimizer)
        return [p.detach().clone() for p in run.model.parameters()]

    first, *others = laconic.simulate(finished, WORKERS).results
    assert all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("strategy", RULES)
def test_real_processes_agree_with_virtual_workers(pool: Pool, strategy: str) -> None:
    real = pool.run(two_of, strategy, workers=2)
    virtual = laconic.simulate(lambda: train_among(strategy, None), workers=2).results
    assert all(torch.equal(a, b) for a, b in zip(real, virtual, strict=True))


@pytest.mark.long
def test_four_processes_send_as_much_as_four_virtual_workers(pool: Pool) -> None:
    strategy = "streaming_diloco(period=4, fragments=2, overlap=1) / e3m0"
    real, virtual = pool.run(on_processes, strategy, workers=4), laconic.simulate(lambda: script(strategy), 4).results
    for (a, sent), (b, counted) in zip(real, virtual, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3)
        assert sent == counted > 0


@pytest.mark.parametrize("steps", [8, 9])
@pytest.mark.parametrize("rule", RULES[:4])
def test_finish_sends_nothing_where_all_workers_are_at_the_point(rule: str, steps: int) -> None:
    def work() -> tuple[list[torch.Tensor], float]:
        model: torch.nn.Module = torch.nn.Sequential(
            torch.nn.Linear(7, 5), torch.nn.Linear(5, 4), torch.nn.Linear(4, 3)
        )
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), 0.1)
        model, optimizer = laconic.distribute(model, optimizer, rule)
        draw = torch.Generator().manual_seed(laconic.rank())
        for _ in range(steps):
            model(torch.randn(4, 7, generator=draw)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        before = laconic.traffic().sent_bytes
        laconic.finish(model, optimizer)
        return [p.detach().clone() for p in model.parameters()], laconic.traffic().sent_bytes - before

    results = laconic.simulate(work, 3).results
    for parameters, _ in results:
        torch.testing.assert_close(parameters, results[0][0], rtol=0, atol=0)
    silent = steps % 4 == 0 and rule.startswith(("slowmo", "diloco"))
    assert all((sent == 0) == silent for _, sent in results)


def test_a_fragment_in_flight_is_merged_before_a_run_ends() -> None:
    """With `merge=0` a worker drops what it did during the exchange: the end is the mean of what was sent."""

    def work() -> tuple[torch.Tensor, torch.Tensor]:
        model: torch.nn.Module = torch.nn.Linear(7, 3)
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), 0.1)
        rule = "streaming_diloco(period=4, fragments=1, overlap=3, merge=0, lr=1.0, momentum=0.0)"
        model, optimizer = laconic.distribute(model, optimizer, rule)
        draw = torch.Generator().manual_seed(laconic.rank())
        sent = torch.zeros(3, 7)
        for step in range(5):
            model(torch.randn(4, 7, generator=draw)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 3:
                sent = model.weight.detach().clone()
        laconic.finish(model, optimizer)
        return sent, model.weight.detach().clone()

    results = laconic.simulate(work, 3).results
    mean = torch.stack([sent for sent, _ in results]).mean(0)
    for _, ended in results:
        torch.testing.assert_close(ended, mean, rtol=0, atol=1e-6)
