"""Trainings that share a GPU: one that waits for its host, one of small convolutions, and one that fills the GPU."""

from __future__ import annotations

import json
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from bench.gpu_step import Residual, Transformer
from torch import Tensor, nn
from torch.nn import functional

KINDS = ("mlp", "conv", "gpt")
IN_FLIGHT = 2  # steps that a host may be ahead of its GPU


def perceptron(width: int = 512, inputs: int = 256) -> nn.Module:
    """Return a net of three layers."""
    return nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))


def small_convolutions(width: int = 32) -> nn.Module:
    """Return a net of three convolutions, without normalisation, so that trials can be fused."""
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(2 * width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * width, 10),
    )


def bottlenecks(count: int) -> nn.Module:
    """Return a residual net of so many bottlenecks."""
    ends = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10)
    return nn.Sequential(nn.Conv2d(3, 256, 3, padding=1), *[Residual(256, 96) for _ in range(count)], *ends)


def images(rows: int, size: int, device: str) -> tuple[Tensor, Tensor]:
    """Return a batch of images."""
    return torch.randn(rows, 3, size, size, device=device), torch.randint(10, (rows,), device=device)


class Training:
    """A model, its optimizer and one batch.

    - `kind`: one of `KINDS`, or `trial-mlp` and `trial-conv`, the trials of the section on fusing.
    - `device`: where.
    - `small`: sizes that prove no more than that it runs.
    """

    def __init__(self, kind: str, device: str, small: bool) -> None:
        torch.manual_seed(0)
        self.device, self._autocast, self._flights = device, kind == "gpt" and device == "cuda", deque[Any]()
        with torch.device(device):
            self.model, (self._x, self._y) = self._made(kind, device, small)
        optimizers: dict[str, Callable[..., torch.optim.Optimizer]] = {"gpt": torch.optim.AdamW}
        self._optimizer = optimizers.get(kind, torch.optim.SGD)(self.model.parameters(), lr=1e-3)
        for _ in range(1 if small else 8):
            self.step()
        synchronize(device)

    @staticmethod
    def _made(kind: str, device: str, small: bool) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
        if kind == "gpt":
            model = Transformer(2, 32, 2, 64, 16) if small else Transformer(12, 768, 12)
            rows, length, words = (2, 16, 64) if small else (4, 1024, 50304)
            drawn = torch.randint(words, (rows, length), device=device)
            return model, (drawn, drawn.flatten())
        if kind == "conv":
            return bottlenecks(1 if small else 16), images(2 if small else 8, 8 if small else 32, device)
        return trial(kind.removeprefix("trial-"), device, small)

    def step(self) -> None:
        """Take a step, once the one before the last is done."""
        if len(self._flights) >= IN_FLIGHT:
            self._flights.popleft().synchronize()
        with torch.autocast(self.device, torch.bfloat16, enabled=self._autocast):
            scores = self.model(self._x)
            loss = functional.cross_entropy(scores.float().flatten(0, -2), self._y)
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        if self.device == "cuda":
            event = torch.cuda.Event()
            event.record()
            self._flights.append(event)

    def rate(self, seconds: float) -> float:
        """Train for so long, and return the steps a second."""
        begin, steps = time.monotonic(), 0
        while time.monotonic() - begin < seconds:
            self.step()
            steps += 1
        synchronize(self.device)
        return steps / (time.monotonic() - begin)

    def kernel_seconds(self) -> float:
        """Return for how long kernels run in a step; on a CPU, a step's seconds."""
        return kernel_seconds(self.step) if self.device == "cuda" else 1 / self.rate(0.05)


def kernel_seconds(step: Callable[[], object], steps: int = 5) -> float:
    """Return for how long kernels run in a step on the GPU, as a profile shows it; 0 where it shows none."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    on_gpu = ("kernel", "gpu_memcpy", "gpu_memset")
    return sum(event["dur"] for event in events if event.get("cat") in on_gpu) / 1e6 / steps


def trial(kind: str, device: str, small: bool) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """Return the model and a batch of a trial: a perceptron's or a small convolutional net's."""
    if kind == "mlp":
        width, rows = (16, 4) if small else (512, 128)
        return perceptron(width), (torch.randn(rows, 256, device=device), torch.randint(10, (rows,), device=device))
    return small_convolutions(4 if small else 32), images(4 if small else 64, 8 if small else 32, device)


def synchronize(device: str) -> None:
    """Wait for the device."""
    if device == "cuda":
        torch.cuda.synchronize()
