"""Muon inside, AdamW for the rest: one optimizer."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from laconic.errors import LaconicError
from laconic.optim import Muon, matrices_apart


class Small(nn.Module):
    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embedding = nn.Embedding(11, 6)
        self.hidden = nn.Linear(6, 8)
        self.back = nn.Linear(8, 6, bias=False)
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, 11, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.back(self.hidden(self.embedding(tokens)).tanh())))


def backward(model: nn.Module, step: int) -> None:
    tokens = torch.randint(11, (32,), generator=torch.Generator().manual_seed(step))
    model.zero_grad()
    functional.cross_entropy(model(tokens), (tokens + 1) % 11).backward()


@pytest.mark.parametrize("tied", [False, True])
def test_hidden_matrices_are_told_apart(tied: bool) -> None:
    model = Small(tied)
    names = {id(p): name for name, p in model.named_parameters()}
    hidden, rest = matrices_apart(model)
    assert [names[id(p)] for p in hidden["params"]] == ["hidden.weight", "back.weight"]
    assert not rest["muon"] and len(rest["params"]) + 2 == len(list(model.parameters()))


@pytest.mark.parametrize("scale", ["original", "match_rms_adamw"])
def test_it_is_torchs_muon_and_torchs_adamw(scale: str) -> None:
    mine, theirs = Small(), Small()
    optimizer = Muon(matrices_apart(mine), lr=0.02, weight_decay=0.1, adjust_lr_fn=scale)
    hidden, rest = matrices_apart(theirs)
    pair = (
        torch.optim.Muon(hidden["params"], lr=0.02, weight_decay=0.1, adjust_lr_fn=scale),
        torch.optim.AdamW(rest["params"], lr=0.02, weight_decay=0.1),
    )
    for step in range(5):
        backward(mine, step)
        backward(theirs, step)
        optimizer.step()
        for one in pair:
            one.step()
    torch.testing.assert_close(list(mine.parameters()), list(theirs.parameters()), rtol=0, atol=0)


@pytest.mark.parametrize(("rows", "columns"), [(24, 10), (10, 24)])
def test_a_step_is_the_rows_formula(rows: int, columns: int) -> None:
    """M = mu·M + G, U = G + mu·M, five turns from U/‖U‖, and a scale of √max(1, a/b); torch's turns are in bfloat16."""
    draw = torch.Generator().manual_seed(5)
    w = nn.Parameter(torch.randn(rows, columns, generator=draw))
    expected, momentum = w.detach().clone(), torch.zeros(rows, columns)
    optimizer = Muon([w], lr=0.1, weight_decay=0.2, adjust_lr_fn="original")
    for _ in range(3):
        w.grad = torch.randn(rows, columns, generator=draw)
        momentum = 0.95 * momentum + w.grad
        x = w.grad + 0.95 * momentum
        x = (x if rows <= columns else x.T) / x.norm()
        for _ in range(5):
            a = x @ x.T
            x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
        x = x if rows <= columns else x.T
        expected = expected - 0.1 * max(1, rows / columns) ** 0.5 * x - 0.1 * 0.2 * expected
        optimizer.step()
    torch.testing.assert_close(w.detach(), expected, rtol=0, atol=0.01)


@pytest.mark.long
@pytest.mark.technique("muloco", check=2)
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31), rows=st.integers(2, 64), columns=st.integers(2, 64), condition=st.floats(1.0, 50.0))
def test_singular_values_come_near_one(seed: int, rows: int, columns: int, condition: float) -> None:
    """Of the direction of the first step, for a random matrix of a given condition number."""
    draw = torch.Generator().manual_seed(seed)
    short = min(rows, columns)
    left, right = (torch.linalg.qr(torch.randn(n, short, generator=draw))[0] for n in (rows, columns))
    share = torch.rand(short, generator=draw)
    share[0], share[-1] = 0.0, 1.0
    w = nn.Parameter(torch.zeros(rows, columns))
    w.grad = left @ torch.diag(condition**share) @ right.T
    Muon([w], lr=1.0, adjust_lr_fn="original").step()
    found = torch.linalg.svdvals(w.detach()) / max(1, rows / columns) ** 0.5
    assert float(found.min()) >= 0.5 and float(found.max()) <= 1.5


def test_it_goes_on_from_its_state() -> None:
    whole, first = Small(), Small()
    optimizers = [Muon(matrices_apart(whole), lr=0.02), Muon(matrices_apart(first), lr=0.02)]
    for step in range(3):
        for model, optimizer in zip((whole, first), optimizers, strict=True):
            backward(model, step)
            optimizer.step()
    resumed = Muon(matrices_apart(first), lr=0.7)
    resumed.load_state_dict(optimizers[1].state_dict())
    for model, optimizer in ((whole, optimizers[0]), (first, resumed)):
        backward(model, 3)
        optimizer.step()
    torch.testing.assert_close(list(first.parameters()), list(whole.parameters()), rtol=0, atol=0)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(LaconicError, match="momentum=-1 makes no sense"):
        Muon(Small().parameters(), momentum=-1)
    with pytest.raises(LaconicError, match="match_rms_adamw or original"):
        Muon(Small().parameters(), adjust_lr_fn="none")
