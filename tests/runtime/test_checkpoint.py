"""Checkpoints: what one strategy has saved another continues, and what cannot be read is refused in a sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import laconic
from laconic.errors import ContractError
from laconic.sync.tensor_lists import kept


def started(strategy: str, seed: int = 1, momentum: float = 0.9) -> Any:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3))
    return laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum), strategy)


def trained(model: nn.Module, optimizer: Any, steps: int) -> None:
    for _ in range(steps):
        k = optimizer.session.steps
        x = torch.randn(4, 6, generator=torch.Generator().manual_seed(1000 * laconic.rank() + k))
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def values(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def saved(folder: Path, strategy: str, workers: int = 2) -> list[Tensor]:
    """Every worker's parameters after three steps, which are saved."""

    def body() -> Tensor:
        model, optimizer = started(strategy)
        trained(model, optimizer, 3)
        laconic.checkpoint(folder, model, optimizer, note="here")
        return values(model)

    return laconic.simulate(body, workers).results


# ------------------------------------------------------------------------------------------ another strategy


@pytest.mark.parametrize(
    ("after", "workers"), [("local(2)", 2), ("local(2)", 3), ("bf16+ef", 2), ("bsp until step 2, then local(2)", 2)]
)
def test_another_strategy_takes_model_optimizer_and_step_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], after: str, workers: int
) -> None:
    expected = saved(tmp_path, "bsp")[0]

    def body() -> tuple[Tensor, int, bool]:
        model, optimizer = started(after, seed=9)
        assert laconic.resume(tmp_path, model, optimizer) == {"note": "here"}
        found = values(model), optimizer.session.steps, bool(optimizer.state)
        trained(model, optimizer, 3)
        laconic.finish(model, optimizer)
        assert not torch.equal(values(model), found[0])
        return found

    for parameters, steps, has_momentum in laconic.simulate(body, workers).results:
        assert torch.equal(parameters, expected) and steps == 3 and has_momentum
    notice = capsys.readouterr().err
    assert notice.count("was written by `bsp") == 1 and "model, optimizer and step are taken over" in notice


def test_a_rule_that_remembers_parameters_begins_with_those_it_has_taken_over(tmp_path: Path) -> None:
    saved(tmp_path, "bsp")

    def body() -> bool:
        model, optimizer = started("slowmo(2)", seed=9)
        laconic.resume(tmp_path, model, optimizer)
        (tier,) = optimizer.session.partitions[0].tiers
        points = kept(tier.sync_state, "point", range(4))
        return all(map(torch.equal, points, model.parameters())) and int(tier.sync_state["began"]) == 3

    assert laconic.simulate(body, 2).results == [True, True]


def test_workers_models_that_differ_meet_in_their_mean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = saved(tmp_path, "local(8)")
    assert not torch.equal(first, second)

    def body() -> Tensor:
        model, optimizer = started("bsp", seed=9)
        laconic.resume(tmp_path, model, optimizer)
        return values(model)

    for found in laconic.simulate(body, 3).results:
        torch.testing.assert_close(found, (first + second) / 2)
    assert "the mean of the workers' models goes on" in capsys.readouterr().err


def test_a_setting_that_the_old_strategy_had_taken_over_is_the_optimizers_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(tmp_path, "bsp / dgc")

    def body() -> float:
        model, optimizer = started("bsp", seed=9, momentum=0.8)
        laconic.resume(tmp_path, model, optimizer)
        return float(optimizer.param_groups[0]["momentum"])

    assert laconic.simulate(body, 2).results == [0.8, 0.8]
    assert "the memory in it is dropped" in capsys.readouterr().err


def test_gradients_in_flight_do_not_reach_the_parameters_that_are_loaded(tmp_path: Path) -> None:
    def body() -> bool:
        model, optimizer = started("bsp / dear")
        trained(model, optimizer, 4)
        laconic.checkpoint(tmp_path, model, optimizer)
        expected = values(model)
        trained(model, optimizer, 2)
        laconic.resume(tmp_path, model, optimizer)
        model(torch.ones(1, 6))
        return torch.equal(values(model), expected)

    assert laconic.simulate(body, 2).results == [True, True]


# ------------------------------------------------------------------------------------------ what cannot be read


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def turned_into_text(path: Path) -> None:
    path.write_text("not a checkpoint")


def replaced_by_a_model(path: Path) -> None:
    torch.save(nn.Linear(2, 2), path)


def replaced_by_another_dict(path: Path) -> None:
    torch.save({"epoch": 3}, path)


def replaced_by_an_incomplete_one(path: Path) -> None:
    torch.save({"format": 2}, path)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    "damage",
    [cut, emptied, turned_into_text, replaced_by_a_model, replaced_by_another_dict, replaced_by_an_incomplete_one],
)
def test_a_damaged_checkpoint_is_refused_in_a_sentence_on_every_rank(
    tmp_path: Path, damage: Callable[[Path], None], rank: int
) -> None:
    saved(tmp_path, "bsp")
    damage(tmp_path / "step-000000003-0" / f"rank-{rank}.pt")

    def body() -> str:
        with pytest.raises(laconic.LaconicError) as refused:
            laconic.resume(tmp_path, *started("bsp"))
        return str(refused.value)

    messages = laconic.simulate(body, 2).results
    for reader, message in enumerate(messages):
        assert "checkpoint" in message or "another rank cannot read" in message
        assert "weights_only" not in message and "pickle" not in message
        if rank in (0, reader):
            assert f"rank-{rank}.pt" in message


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"step-000000009-0", b"../elsewhere"])
def test_a_pointer_to_nothing_is_refused(tmp_path: Path, content: bytes) -> None:
    saved(tmp_path, "bsp", workers=1)
    (tmp_path / "latest").write_bytes(content)
    with pytest.raises(ContractError, match="names no checkpoint beside it"):
        laconic.simulate(lambda: laconic.resume(tmp_path, *started("bsp")), 1)


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, "bsp")

    def body() -> None:
        model = nn.Linear(6, 3)
        laconic.resume(tmp_path, *laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1)))

    with pytest.raises(ContractError, match=r"is of another model than this run's Linear: .*Missing key"):
        laconic.simulate(body, 2)


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(b"")
    with pytest.raises(ContractError, match=r"model\.pt is a file: give the folder"):
        laconic.simulate(lambda: laconic.resume(tmp_path / "model.pt", *started("bsp")), 1)
