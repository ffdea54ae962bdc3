"""Equal virtual workers share memory and steps, and nobody can tell: bits are those of workers on their own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

import laconic
from laconic.virtual import copy_on_write as memory
from laconic.virtual import sharing
from laconic.virtual.script import run_script
from laconic.virtual.setup import VirtualSetup
from laconic.virtual.sharing import Family, Replica
from laconic.virtual.snapshot import Snapshot

pytestmark = pytest.mark.skipif(not memory.available(), reason="sharing needs Linux's /proc/self/pagemap")

OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "sgd": lambda p: optim.SGD(p, lr=0.1),
    "momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adamw": lambda p: optim.AdamW(p, lr=0.01),
    "adagrad": lambda p: optim.Adagrad(p, lr=0.1),
    "rprop": lambda p: optim.Rprop(p, lr=0.01),
    "fused": lambda p: optim.Adam(p, lr=0.01, fused=True),
    "nesterov": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, foreach=True),
    "tensor rate": lambda p: optim.Adam(p, lr=torch.tensor(0.01)),
}


def build() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(40, 60), nn.Tanh(), nn.Linear(60, 3))


def train(make: Callable[[Any], optim.Optimizer], meddle: Callable[[int, nn.Module, Any], None], steps: int) -> Any:
    def run() -> list[Tensor]:
        model = build()
        model, optimizer = laconic.distribute(model, make(model.parameters()))
        alias = model[0].weight.data  # sees every step, as it does among processes
        for step in range(steps):
            x = torch.randn(4, 40, generator=torch.Generator().manual_seed(100 * step + laconic.rank()))
            model(x).square().mean().backward()
            meddle(step, model, optimizer)
            optimizer.step()
            optimizer.zero_grad()
            assert torch.equal(alias, model[0].weight)
        state = [v for p in model.parameters() for v in optimizer.state[p].values() if isinstance(v, Tensor)]
        return [t.detach().clone() for t in (*model.parameters(), *state)]

    return run


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    yield lambda: monkeypatch.setattr(Replica, "possible", staticmethod(lambda optimizer, parameters: False))


def nothing(step: int, model: nn.Module, optimizer: Any) -> None:
    pass


def clipping(step: int, model: nn.Module, optimizer: Any) -> None:
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)


def own_gradients(step: int, model: nn.Module, optimizer: Any) -> None:
    """The script of one rank changes its gradients: it must go its own way from there."""
    if laconic.rank() == 1 and step == 2:
        model[0].weight.grad.mul_(2)


def own_parameters(step: int, model: nn.Module, optimizer: Any) -> None:
    if laconic.rank() == 2 and step == 1:
        model[0].weight.data[0, 0] = 7.0


def everyone_clamps(step: int, model: nn.Module, optimizer: Any) -> None:
    for p in model.parameters():
        p.data.mul_(0.9)


def own_rate(step: int, model: nn.Module, optimizer: Any) -> None:
    optimizer.param_groups[0]["lr"] = 0.001 * (1 + (laconic.rank() == 0 and step == 3))


def reloading(step: int, model: nn.Module, optimizer: Any) -> None:
    if step == 2:
        optimizer.load_state_dict(optimizer.state_dict())
    if step == 3:
        model.load_state_dict({k: v + 1 for k, v in model.state_dict().items()})


def own_state(step: int, model: nn.Module, optimizer: Any) -> None:
    """Another memory under the same tensor."""
    if laconic.rank() == 1 and step == 3:
        for value in optimizer.state[model[0].weight].values():
            value.data = torch.zeros_like(value)


def wrapped_step(step: int, model: nn.Module, optimizer: Any) -> None:
    """What hangs on the optimizer's own step is everybody's."""
    if step == 0:
        original = optimizer.base.step

        def step_and_nudge() -> None:
            original()
            model[2].bias.data.add_(laconic.rank())

        optimizer.base.step = step_and_nudge


def late_gradients(step: int, model: nn.Module, optimizer: Any) -> None:
    """The last layer's gradients, and so its state, come after the third step only; the first layer's state stays."""
    if step < 3:
        for p in model[2].parameters():
            p.grad = None
    if step == 2:
        model.held = [next(iter(optimizer.state[model[0].weight].values()))]
    if step == 5:
        assert any(value is model.held[0] for value in optimizer.state[model[0].weight].values())


MEDDLERS = [
    nothing, clipping, own_gradients, own_parameters, everyone_clamps, own_rate, reloading, own_state, wrapped_step,
    late_gradients,
]  # fmt: skip


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_every_optimizer_gives_the_bits_of_workers_on_their_own(make: Any, alone: Callable[[], None]) -> None:
    shared = laconic.simulate(train(make, nothing, 5), 3).results
    alone()
    own = laconic.simulate(train(make, nothing, 5), 3).results
    assert all(torch.equal(a, b) for x, y in zip(shared, own, strict=True) for a, b in zip(x, y, strict=True))


@pytest.mark.parametrize("meddle", MEDDLERS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", ["momentum", "adamw"])
def test_whatever_a_script_writes_stays_its_own(name: str, meddle: Any, alone: Callable[[], None]) -> None:
    shared = laconic.simulate(train(OPTIMIZERS[name], meddle, 6), 4).results
    alone()
    own = laconic.simulate(train(OPTIMIZERS[name], meddle, 6), 4).results
    assert all(torch.equal(a, b) for x, y in zip(shared, own, strict=True) for a, b in zip(x, y, strict=True))


def test_one_step_serves_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 5 workers and 4 steps, 4 steps are computed: the rest are adopted."""
    steps = []
    original = optim.SGD.step
    monkeypatch.setattr(optim.SGD, "step", lambda self, *a, **k: steps.append(1) or original(self, *a, **k))
    laconic.simulate(train(OPTIMIZERS["momentum"], nothing, 4), 5)
    assert len(steps) == 4


def test_memory_is_shared_until_it_is_written() -> None:
    models = [build() for _ in range(3)]
    family = Family()
    replicas = [Replica(family, OPTIMIZERS["sgd"](m.parameters()), list(m.parameters()), lambda: True) for m in models]
    assert not any(r._arena.written() for r in replicas)
    models[1][0].weight.data[3] = 5.0
    assert [r._arena.written() for r in replicas] == [False, True, False]
    assert not torch.equal(models[0][0].weight, models[1][0].weight)
    assert torch.equal(models[0][0].weight, models[2][0].weight)


def test_a_tensor_outlives_its_arena() -> None:
    arena = memory.Arena([torch.zeros(1000), torch.zeros(3, dtype=torch.float64)])
    kept = arena.tensors[0]
    kept.fill_(4.0)
    del arena
    assert kept.sum() == 4000.0


@pytest.mark.parametrize(
    "parameters",
    [
        lambda: [nn.Parameter(torch.zeros(2, 2, device="meta"))],
        lambda: list(torch.zeros(10).split(5)),
        lambda: [torch.zeros(3, 1).expand(3, 3)],
    ],
    ids=["another device", "a common storage", "an expanded tensor"],
)
def test_what_cannot_be_shared_is_left_alone(parameters: Callable[[], list[Tensor]]) -> None:
    given = parameters()
    assert not sharing.Replica.possible(optim.SGD([torch.zeros(1)], lr=0.1), given)


def test_an_alias_from_before_sees_every_step() -> None:
    def run() -> bool:
        model = build()
        alias = model[0].weight.data
        model, optimizer = laconic.distribute(model, OPTIMIZERS["momentum"](model.parameters()))
        model(torch.ones(2, 40)).sum().backward()
        optimizer.step()
        return torch.equal(alias, model[0].weight)

    assert laconic.simulate(run, 3).results == [True] * 3


def test_gradients_after_the_step_are_those_of_workers_on_their_own(alone: Callable[[], None]) -> None:
    """Nesterov's foreach step writes to gradients."""

    def run() -> list[Tensor]:
        model = build()
        model, optimizer = laconic.distribute(model, OPTIMIZERS["nesterov"](model.parameters()))
        seen = []
        for _ in range(3):
            model(torch.ones(2, 40)).sum().backward()
            optimizer.step()
            seen += [p.grad.clone() for p in model.parameters()]
            optimizer.zero_grad()
        return seen

    shared = laconic.simulate(run, 3).results
    alone()
    own = laconic.simulate(run, 3).results
    assert all(torch.equal(a, b) for x, y in zip(shared, own, strict=True) for a, b in zip(x, y, strict=True))


def test_a_forked_child_knows_its_own_pages() -> None:
    arena = memory.Arena([torch.zeros(5000)])
    arena.adopt(arena.image())
    assert not arena.written()
    child = os.fork()
    if child == 0:
        arena.tensors[0][7] = 1.0
        os._exit(0 if arena.written() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert not arena.written()


def test_one_step_serves_all_workers_of_a_script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    steps: list[int] = []
    alone = sharing.Replica._step_alone

    def counted(replica: sharing.Replica) -> None:
        steps.append(laconic.rank())
        alone(replica)

    monkeypatch.setattr(sharing.Replica, "_step_alone", counted)
    script = tmp_path / "script.py"
    script.write_text(
        "import torch, laconic\n"
        "torch.manual_seed(0)\n"
        "model = torch.nn.Linear(3, 2)\n"
        "model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1))\n"
        "for _ in range(3):\n"
        "    model(torch.ones(1, 3) * laconic.rank()).sum().backward()\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
    )
    run_script(script, (), 4, VirtualSetup.read(None, 4), None)
    assert len(steps) == 3


def test_a_snapshot_tells_tensors_apart_wherever_they_lie() -> None:
    storage = torch.arange(12.0)
    together: list[Tensor | None] = [storage[4:12].view(2, 4), None, storage[:4]]
    kept = Snapshot(together)
    apart = [None if t is None else t.clone() for t in together]
    assert kept.equals(together) and kept.equals(apart)
    assert not kept.equals([together[0], storage[:4], None])
    assert not kept.equals([storage[4:12].view(4, 2), None, storage[:4]])
    assert apart[2] is not None
    apart[2][3] = -1
    assert not kept.equals(apart)
    storage[0] = -0.0
    assert not kept.equals(together)
    assert not Snapshot.possible([storage[::2]])
