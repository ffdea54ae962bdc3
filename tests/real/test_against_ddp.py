"""Own loop against PyTorch DDP: the same bits with two workers, for every trap a model or a loop can set."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.real.pool import Pool, PoolRank
from tests.real.race import by_ddp, by_laconic, difference, sgd


def batch(rank: int, step: int, features: int = 12, count: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(10_000 * rank + step)
    return torch.randn(count, features, generator=draw), torch.randint(0, 5, (count,), generator=draw)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 5))


def plain_step(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int) -> None:
    x, y = batch(rank, step)
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


# ------------------------------------------------------------------------------------------------ traps


class Unused(nn.Module):
    """One branch that a rank skips now and then, one that nobody takes, one used by nobody in some steps."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.branch, self.never = nn.Linear(12, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.sometimes, self.head = nn.Linear(16, 16), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor, rank: int, step: int) -> Any:
        h = torch.tanh(self.trunk(x))
        if (rank + step) % 2:
            h = h + torch.tanh(self.branch(h))
        if step % 3 == 0:
            h = h + self.sometimes(h)
        return self.head(h)


def unused_step(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int) -> None:
    x, y = batch(rank, step)
    F.cross_entropy(model(x, rank, step), y).backward()
    optimizer.step()
    optimizer.zero_grad()


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.body, self.head = nn.Embedding(5, 16), nn.Linear(12, 16), nn.Linear(16, 5, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(torch.tanh(self.body(x) + self.embed(x.argmax(1) % 5)))


class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(12, 16), nn.Linear(16, 16), nn.Linear(16, 5)
        self.second.requires_grad_(False)
        self.head.bias.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))


class Odd(nn.Module):
    """Zero-size, zero-dimensional, transposed, channels-last and gappy parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.nothing = nn.Parameter(torch.empty(0, 3))
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.turned = nn.Parameter(torch.randn(16, 12).t())
        self.gappy = nn.Parameter(torch.randn(16, 32)[:, ::2])
        self.conv = nn.Conv2d(4, 4, 2).to(memory_format=torch.channels_last)
        self.head = nn.Linear(16 + 4, 5)

    def forward(self, x: torch.Tensor) -> Any:
        h = torch.tanh(x @ self.turned) @ self.gappy * self.scale + self.nothing.sum()
        image = self.conv(x.view(-1, 4, 1, 3).expand(-1, -1, 3, -1)).amax((2, 3))
        return self.head(torch.cat([h, image], 1))


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(12, 16), nn.BatchNorm1d(16), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(torch.relu(self.norm(self.first(x))))


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(12, 12), nn.Tanh()) for _ in range(3))
        self.head, self.reentrant = nn.Linear(12, 5), reentrant

    def forward(self, x: torch.Tensor) -> Any:
        x = x.requires_grad_()
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x)


class NonReentrant(Checkpointed):
    def __init__(self) -> None:
        super().__init__(reentrant=False)


class Reentrant(Checkpointed):
    def __init__(self) -> None:
        super().__init__(reentrant=True)


class Several(nn.Module):
    """Outputs in a nest of containers, several losses, one of them from a submodule's own forward."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.a, self.b = nn.Linear(12, 16), nn.Linear(16, 5), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> Any:
        h = torch.tanh(self.trunk(x))
        return {"a": self.a(h), "rest": [self.b(h), None, "text"]}


def several_step(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int) -> None:
    x, y = batch(rank, step)
    out = model(x)
    (F.cross_entropy(out["a"], y) + 0.5 * F.cross_entropy(out["rest"][0], y)).backward()
    optimizer.step()
    optimizer.zero_grad()


def accumulating_step(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int) -> None:
    with model.no_sync():
        for micro in range(2):
            x, y = batch(rank, 100 * step + micro)
            (F.cross_entropy(model(x), y) / 3).backward()
    x, y = batch(rank, 100 * step + 2)
    (F.cross_entropy(model(x), y) / 3).backward()
    optimizer.step()
    optimizer.zero_grad()


def twice_step(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int) -> None:
    for k in range(2):
        x, y = batch(rank, 100 * step + k)
        F.cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()


def keeping_step(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int) -> None:
    optimizer.zero_grad(set_to_none=False)
    x, y = batch(rank, step)
    F.cross_entropy(model(x), y).backward()
    optimizer.step()


def clipping_step(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int) -> None:
    x, y = batch(rank, step)
    (10 * F.cross_entropy(model(x), y)).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.3)
    optimizer.step()
    optimizer.zero_grad()


def closure_step(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int) -> None:
    x, y = batch(rank, step)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    optimizer.step(closure)


def evaluating_step(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int) -> None:
    plain_step(model, optimizer, rank, step)
    inner = getattr(model, "module", model)
    inner.eval()
    with torch.no_grad():
        if rank == 0:  # on one rank alone: must not wait for the others
            inner(batch(0, 7)[0])
    inner.train()


def hooked_step(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int) -> None:
    """A user's tensor hook sees and changes the local gradient, before it is averaged."""
    first = next(iter(model.parameters()))
    handle = first.register_hook(lambda g: g * (rank + 1))
    plain_step(model, optimizer, rank, step)
    handle.remove()


class Scaled:
    """GradScaler and autocast, with a real overflow now and then."""

    def __init__(self) -> None:
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=5)

    def __call__(self, model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int) -> None:
        x, y = batch(rank, step)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x).float(), y)
        if step % 11 == 3 and rank == 1:
            loss = loss * float("inf")
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        self.scaler.step(optimizer)
        self.scaler.update()
        optimizer.zero_grad()


class Scheduled:
    def __init__(self) -> None:
        self.scheduler: Any = None

    def __call__(self, model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int) -> None:
        if self.scheduler is None:
            self.scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=60)
        plain_step(model, optimizer, rank, step)
        self.scheduler.step()


class Compiled:
    """`torch.compile` after distribute (whole-graph eager backend: no C++ compiler needed here)."""

    def __init__(self) -> None:
        self.compiled: Any = None

    def __call__(self, model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int) -> None:
        if self.compiled is None:
            self.compiled = torch.compile(model, backend="aot_eager")
        plain_step(self.compiled, optimizer, rank, step)


def groups(parameters: Any) -> torch.optim.Optimizer:
    parameters = list(parameters)
    return torch.optim.SGD(
        [
            {"params": parameters[:2], "lr": 0.2},
            {"params": parameters[2:4], "momentum": 0.5, "weight_decay": 0.1},
            {"params": parameters[4:]},
        ],
        lr=0.05,
    )


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01)


def fused(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01, fused=True)


def trainable_only(parameters: Any) -> torch.optim.Optimizer:
    return sgd([p for p in parameters if p.requires_grad])


def bf16() -> nn.Module:
    return mlp().to(torch.bfloat16)


def bf16_step(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int) -> None:
    x, y = batch(rank, step)
    F.cross_entropy(model(x.to(torch.bfloat16)).float(), y).backward()
    optimizer.step()
    optimizer.zero_grad()


class Mixed(nn.Module):
    """Two dtypes in one model."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(12, 16), nn.Linear(16, 16).double(), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> Any:
        return self.c(torch.tanh(self.b(torch.tanh(self.a(x)).double())).float())


class SparseEmbedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(50, 6, sparse=True), nn.Linear(72, 5)

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.table((x.abs() * 20).long() % 50).flatten(1))


def plain_sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "adamw": {"optimizer": adamw},
    "parameter groups": {"optimizer": groups},
    "frozen": {"build": Frozen, "optimizer": trainable_only},
    "frozen, in the optimizer": {"build": Frozen},
    "unused on one rank and on all": {"build": Unused, "step": unused_step, "ddp": {"find_unused_parameters": True}},
    "tied weights": {"build": Tied},
    "accumulation": {"step": accumulating_step},
    "two backwards": {"step": twice_step},
    "kept gradients": {"step": keeping_step},
    "scheduler": {"step": Scheduled},
    "clipping": {"step": clipping_step},
    "scaler and autocast": {"step": Scaled},
    "batch norm": {"build": Normed},
    "evaluation on one rank": {"build": Normed, "step": evaluating_step},
    "bf16": {"build": bf16, "step": bf16_step},
    "two dtypes": {"build": Mixed},
    "odd parameters": {"build": Odd},
    "sparse embedding": {"build": SparseEmbedding, "optimizer": plain_sgd},
    "closure": {"step": closure_step},
    "checkpointing": {"build": NonReentrant},
    "reentrant checkpointing": {"build": Reentrant},
    "several outputs": {"build": Several, "step": several_step},
    "fused optimizer": {"optimizer": fused},
    "tensor hooks": {"step": hooked_step},
    "compiled": {"step": Compiled},
}


def race(member: PoolRank, case: str, strategy: str, steps: int, double: bool) -> float:
    given = CASES[case]
    build, make_step = given.get("build", mlp), given.get("step", plain_step)
    optimizer = given.get("optimizer", sgd)

    def made() -> nn.Module:
        return build().double() if double else build()

    def step_of() -> Any:
        return make_step() if isinstance(make_step, type) else make_step

    if double:
        torch.set_default_dtype(torch.float64)
    try:
        ours = by_laconic(member, made, step_of(), steps, optimizer, strategy)
        torch._dynamo.reset()
        theirs = by_ddp(member, made, step_of(), steps, optimizer, **given.get("ddp", {}))
    finally:
        torch.set_default_dtype(torch.float32)
        torch._dynamo.reset()
    return difference(theirs, ours)


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.long if case == "compiled" else ()) for case in CASES]
)
@pytest.mark.parametrize("steps", [12, pytest.param(50, marks=pytest.mark.long)])
def test_two_workers_have_the_bits_of_ddp(pool: Pool, case: str, steps: int) -> None:
    assert pool.run(race, case, "bsp", steps, False, workers=2) == [0.0, 0.0]


@pytest.mark.parametrize("strategy", ["bsp / allreduce(rank)", "bsp / sequential", "wfbp_a2a", "bsp / wfbp(2KiB)"])
def test_two_workers_have_the_bits_of_ddp_whatever_the_words(pool: Pool, strategy: str) -> None:
    assert pool.run(race, "unused on one rank and on all", strategy, 50, False, workers=2) == [0.0, 0.0]


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["bsp", "bsp / allreduce(rank)", "bsp / sequential"])
@pytest.mark.parametrize("case", ["plain", "adamw", "unused on one rank and on all", "odd parameters"])
def test_four_workers_agree_with_ddp_in_float64(pool: Pool, case: str, strategy: str) -> None:
    differences = pool.run(race, case, strategy, 50, True, workers=4)
    assert max(differences) <= 1e-9


def test_the_comparison_can_fail(pool: Pool) -> None:
    assert min(pool.run(race, "plain", "cast_fp16", 5, False, workers=2)) > 1e-6
