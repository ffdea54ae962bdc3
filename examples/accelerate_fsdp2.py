"""Handwritten digits with Accelerate, sharded by FSDP2, what is sent coded by laconic.

    accelerate launch --num_processes 2 examples/accelerate_fsdp2.py --strategy zero_plus_plus

Against Accelerate's own script one line has changed, beside the import; the comment "was" has the line as it was.
Accelerate shards on GPUs alone: on CPUs it leaves its plugin out, and models are whole.
"""

from __future__ import annotations

import argparse

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from laconic.integrations.accelerate import prepare  # new


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategy", default="bsp")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--accumulate", type=int, default=1)
    args = parser.parse_args()

    digits = load_digits()
    images, labels = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16, torch.tensor(digits.target)
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(64, 33), nn.ReLU(), nn.Linear(33, 33), nn.ReLU(), nn.Linear(33, 10))
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(TensorDataset(images, labels), batch_size=32, shuffle=True)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.9)

    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="size_based_wrap", min_num_params=1000)
    accelerator = Accelerator(gradient_accumulation_steps=args.accumulate, fsdp_plugin=plugin)
    parts = (model, optimizer, loader, schedule)
    model, optimizer, loader, schedule = prepare(accelerator, args.strategy, *parts)  # was: accelerator.prepare(*parts)
    for _ in range(args.epochs):
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
    with torch.no_grad():
        images, labels = images.to(accelerator.device), labels.to(accelerator.device)
        accelerator.print(f"loss {functional.cross_entropy(model(images), labels).item()!r}")


if __name__ == "__main__":
    main()
