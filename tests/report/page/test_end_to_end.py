"""Runs and comparisons made by the commands themselves, and the page about them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from laconic.report.page.page import write
from tests.report.page.reading import Element, parsed

SCRIPT = """
import torch, laconic
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1))
for step in range(12):
    x = torch.randn(4, 8)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    laconic.log(loss=loss.item())
"""
NETWORK = """
[network]
levels = [{workers = 1, bandwidth = "1Mbit", latency = "50us"}]
[compute]
forward = "5ms"
backward = "10ms"
step = "1ms"
"""


def _laconic(folder: Path, *arguments: str) -> None:
    (folder / "train.py").write_text(SCRIPT)
    (folder / "net.toml").write_text(NETWORK)
    subprocess.run([sys.executable, "-m", "laconic", *arguments], cwd=folder, check=True, capture_output=True)


def _section(folder: Path, name: str) -> Element:
    page = parsed(write([folder]).read_text())
    return next(section for section in page.all("section") if section.attributes["id"] == name)


@pytest.mark.long
def test_a_virtual_run_with_its_timeline(tmp_path: Path) -> None:
    virtual = ("--engine", "virtual", "--workers", "2", "--network", "net.toml")
    _laconic(tmp_path, "run", *virtual, "--trace", "--folder", "here", "--strategy", "bsp / cast_bf16", "train.py")
    run = _section(tmp_path / "here", "run-1")
    assert run.all("h2")[0].text == "bsp / cast_bf16"
    assert "It ended well." in run.text
    bars = run.all("div", "wide")[-1].all("svg")[0].attributes["aria-label"] or ""
    assert "worker 0" in bars
    assert "computing 16.0 ms" in bars
    assert run.all("svg", "lanes")[0].all("rect", "p-backward")


@pytest.mark.long
def test_a_comparison_of_virtual_workers(tmp_path: Path) -> None:
    rows = ("--strategy", "bsp", "--strategy", "local(4)", "--block-steps", "2")
    _laconic(tmp_path, "compare", "--engine", "virtual", "--workers", "2", "--network", "net.toml", "--folder", "here",
             *rows, "train.py")  # fmt: skip
    compared = _section(tmp_path / "here", "comparison-1")
    assert [row[0] for row in compared.all("table")[0].rows()] == ["strategy", "bsp", "local(4)"]
    assert [caption.text for caption in compared.all("figcaption")] == ["loss against time", "loss against bytes"]
