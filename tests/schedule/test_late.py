"""Averages that arrive in the next forward pass: whatever a script does in between, it trains as `sequential` does."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import laconic
from laconic.errors import ContractError
from laconic.network.network_tree import Network
from laconic.virtual.compute import Compute
from laconic.virtual.simulate import simulate

LATE = ["dear", "bytescheduler", "auto"]
Optimizer = torch.optim.Optimizer
Build = Callable[[], nn.Module]
Step = Callable[[nn.Module, Any, int], None]


def sgd(model: nn.Module) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 9), nn.Tanh(), nn.Linear(9, 3))


def batch(step: int) -> Tensor:
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(1000 * laconic.rank() + step))


def plain_step(model: nn.Module, optimizer: Any, step: int) -> None:
    model(batch(step)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def on_workers(body: Callable[[], Any], workers: int = 2) -> list[Any]:
    return simulate(body, workers, Network.flat(workers, 1e6, 1e-4), Compute(0.002, 0.004)).results


def trained(
    word: str, build: Build = mlp, step: Step = plain_step, make: Callable[[nn.Module], Optimizer] = sgd, steps: int = 9
) -> list[Tensor]:
    """The parameters of the first worker, who agrees with the other."""

    def body() -> list[Tensor]:
        torch.manual_seed(1)
        model: nn.Module = build()
        model, optimizer = laconic.distribute(model, make(model), f"bsp / {word}")
        for k in range(steps):
            step(model, optimizer, k)
        laconic.finish(model, optimizer)
        return [p.detach().clone() for p in model.parameters()]

    first, second = on_workers(body)
    assert all(map(torch.equal, first, second))
    return list(first)


def assert_the_same(word: str, *given: Any, **more: Any) -> None:
    for x, y in zip(trained(word, *given, **more), trained("sequential", *given, **more), strict=True):
        assert torch.equal(x, y)


# ------------------------------------------------------------------------------------------------ models


class Attends(nn.Module):
    """An attention reads its output projection's weight by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.unsqueeze(1).expand(-1, 3, -1)
        out: Tensor = self.head(self.attention(x, x, x)[0])
        return out


class Checkpointed(nn.Module):
    """Whose middle is computed again in backward."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(6, 9), nn.Linear(9, 9), nn.Linear(9, 3)
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        h = torch.tanh(checkpoint(self.middle, h, use_reentrant=self.reentrant))  # type: ignore[arg-type]
        out: Tensor = self.last(h)
        return out


class Recurrent(nn.Module):
    """One module that is called twice in a pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.again(torch.tanh(self.again(self.first(x)))))
        return out


BUILDS: dict[str, Build] = {
    "attention": Attends,
    "checkpointing": lambda: Checkpointed(False),
    "reentrant checkpointing": lambda: Checkpointed(True),
    "a module twice": Recurrent,
}


@pytest.mark.long
@pytest.mark.parametrize("word", LATE)
@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS.keys())
def test_every_kind_of_model(build: Build, word: str) -> None:
    assert_the_same(word, build)


# ------------------------------------------------------------------------------------------------ optimizers


def adam(model: nn.Module) -> Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=0.1)


def adamw_in_groups(model: nn.Module) -> Optimizer:
    """A layer whose tensors are of different groups; biases without decay and at another rate."""
    weights = [p for p in model.parameters() if p.dim() > 1]
    biases = [p for p in model.parameters() if p.dim() == 1]
    return torch.optim.AdamW([{"params": weights, "lr": 0.02}, {"params": biases, "lr": 0.005, "weight_decay": 0.0}])


@pytest.mark.long
@pytest.mark.parametrize("word", LATE)
@pytest.mark.parametrize("make", [adam, adamw_in_groups])
def test_every_kind_of_optimizer(make: Callable[[nn.Module], Optimizer], word: str) -> None:
    assert_the_same(word, make=make)


# ------------------------------------------------------------------------------------------------ loops


def clipped_step(model: nn.Module, optimizer: Any, step: int) -> None:
    model(batch(step)).square().mean().backward()
    norm = laconic.clip_grad_norm_(optimizer, 0.05)
    assert norm > 0.05
    optimizer.step()
    optimizer.zero_grad()


def accumulated_step(model: nn.Module, optimizer: Any, step: int) -> None:
    with model.no_sync():  # type: ignore[operator]
        for k in range(2):
            model(batch(100 + 3 * step + k)).square().mean().backward()
    plain_step(model, optimizer, step)


def zeroed_before_step(model: nn.Module, optimizer: Any, step: int) -> None:
    optimizer.zero_grad()
    model(batch(step)).square().mean().backward()
    optimizer.step()


def zeroed_in_place(model: nn.Module, optimizer: Any, step: int) -> None:
    model(batch(step)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)


def dropped_step(model: nn.Module, optimizer: Any, step: int) -> None:
    """Every third gradient is thrown away."""
    model(batch(step)).square().mean().backward()
    if step % 3 != 2:
        optimizer.step()
    optimizer.zero_grad()


def dropped_by_the_model(model: nn.Module, optimizer: Any, step: int) -> None:
    """The same, without the optimizer."""
    model(batch(step)).square().mean().backward()
    if step % 3 != 2:
        optimizer.step()
    model.zero_grad()


def looked_at_step(model: nn.Module, optimizer: Any, step: int) -> None:
    """An evaluation after each step sees what was learnt in it."""
    plain_step(model, optimizer, step)
    model.eval()
    with torch.no_grad():
        seen = model(batch(step))
    model.train()
    now = copy.deepcopy(model)
    assert torch.equal(now(batch(step)), seen)


def two_passes_step(model: nn.Module, optimizer: Any, step: int) -> None:
    """One loss of two forward passes, as a contrastive one."""
    (model(batch(step)) - model(batch(50 + step))).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def interrupted_step(model: nn.Module, optimizer: Any, step: int) -> None:
    """Every other forward pass is tried with something that does not fit, first."""
    if step % 2:
        with pytest.raises(RuntimeError):
            model(torch.zeros(4, 7))
        with pytest.raises(RuntimeError, match="later on"):
            _fail_inside(model, batch(step))
    plain_step(model, optimizer, step)


def _fail_inside(model: nn.Module, x: Tensor) -> None:
    def fail(*ignored: Any) -> None:
        raise RuntimeError("later on")

    handle = model[2].register_forward_pre_hook(fail)  # type: ignore[index]
    try:
        model(x)
    finally:
        handle.remove()


STEPS = [
    clipped_step,
    accumulated_step,
    zeroed_before_step,
    zeroed_in_place,
    dropped_step,
    dropped_by_the_model,
    looked_at_step,
    two_passes_step,
    interrupted_step,
]


@pytest.mark.parametrize("word", LATE)
@pytest.mark.parametrize("step", STEPS)
def test_every_kind_of_loop(step: Step, word: str) -> None:
    assert_the_same(word, step=step)


# ------------------------------------------------------------------------------------------------ between steps


@pytest.mark.long
@pytest.mark.parametrize("word", LATE)
def test_what_is_asked_for_after_a_step_is_up_to_date(word: str) -> None:
    """The model's state, the optimizer's, and what `undistribute` leaves behind."""

    def body(of: str) -> list[list[Tensor]]:
        torch.manual_seed(1)
        model: nn.Module = mlp()
        model, optimizer = laconic.distribute(model, sgd(model), f"bsp / {of}")
        found = []
        for k in range(9):
            plain_step(model, optimizer, k)
            if k % 2:
                found.append([x.clone() for x in model.state_dict().values()])
            elif k == 4:
                state = optimizer.state_dict()["state"]
                found.append([state[i]["momentum_buffer"].clone() for i in sorted(state)])
        model, plain = laconic.undistribute(model, optimizer)
        assert isinstance(plain, torch.optim.SGD)
        found.append([p.detach().clone() for p in model.parameters()])
        model(batch(0)).sum().backward()  # by itself from now on
        plain.step()
        return found

    for found, expected in zip(on_workers(lambda: body(word)), on_workers(lambda: body("sequential")), strict=True):
        for some, others in zip(found, expected, strict=True):
            assert all(map(torch.equal, some, others))


@pytest.mark.long
@pytest.mark.parametrize("word", LATE)
def test_a_copy_runs_by_itself(word: str) -> None:
    """Taken in the middle of a step, used, and the original goes on."""

    def step(model: nn.Module, optimizer: Any, k: int) -> None:
        plain_step(model, optimizer, k)
        if k % 3 == 0:
            other = copy.deepcopy(model)
            own = torch.optim.SGD(other.parameters(), lr=0.1)
            other(batch(k)).sum().backward()
            own.step()
            assert not torch.equal(next(other.parameters()), next(model.parameters()))

    assert_the_same(word, step=step)


@pytest.mark.parametrize("word", LATE)
def test_a_scaler_is_refused(word: str) -> None:
    def body() -> None:
        model: nn.Module = mlp()
        model, optimizer = laconic.distribute(model, sgd(model), f"bsp / {word}")
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(F.mse_loss(model(batch(0)), torch.zeros(4, 3))).backward()
        with pytest.raises(ContractError, match="GradScaler needs the averaged gradient right after backward"):
            scaler.step(optimizer)

    on_workers(body)


def clipped_by_norm(model: nn.Module) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 0.05)


def clipped_by_value(model: nn.Module) -> None:
    nn.utils.clip_grad_value_(model.parameters(), 0.05)


def changed_by_hand(model: nn.Module) -> None:
    last = list(model.parameters())[-1]
    assert last.grad is not None
    last.grad.mul_(0.5)


def replaced(model: nn.Module) -> None:
    for p in model.parameters():
        p.grad = None if p.grad is None else p.grad.clamp(-0.1, 0.1)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        *((clipped_by_norm, word) for word in LATE),
        *((change, "dear") for change in (clipped_by_value, changed_by_hand, replaced)),
    ],
)
def test_a_gradient_that_is_changed_before_its_average_has_arrived_is_refused(
    change: Callable[[nn.Module], None], word: str
) -> None:
    def body() -> None:
        model: nn.Module = mlp()
        model, optimizer = laconic.distribute(model, sgd(model), f"bsp / {word}")
        with pytest.raises(ContractError, match=r"clip with laconic\.clip_grad_norm_\(optimizer, max_norm\)"):
            for k in range(9):
                model(batch(k)).square().mean().backward()
                change(model)
                optimizer.step()
                optimizer.zero_grad()

    on_workers(body)


@pytest.mark.long
def test_auto_without_late_averages_takes_a_scaler() -> None:
    def body() -> Tensor:
        torch.manual_seed(1)
        model: nn.Module = mlp()
        model, optimizer = laconic.distribute(model, sgd(model), "bsp / auto(false)")
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for k in range(8):
            scaler.scale(model(batch(k)).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return next(model.parameters()).detach().clone()

    first, second = on_workers(body)
    assert torch.equal(first, second)
    torch.testing.assert_close(first, trained("sequential", steps=8)[0], rtol=1e-6, atol=1e-7)
