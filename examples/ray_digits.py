"""Handwritten digits with Ray Train, distributed by laconic, on a cluster of this machine alone.

    python examples/ray_digits.py --strategy "local(8) / bf16+ef"

Against Ray's own script one line has changed, beside the import; the comment "was" has the line as it was.
"""

from __future__ import annotations

import argparse
from typing import Any

import ray
import torch
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer, prepare_data_loader
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from laconic.integrations.ray_train import prepare  # new


def train(config: dict[str, Any]) -> None:
    digits = load_digits()
    images, labels = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16, torch.tensor(digits.target)
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    strategy = config["strategy"]
    model, optimizer = prepare(strategy, model, optimizer)  # was: model = ray.train.torch.prepare_model(model)
    loader = prepare_data_loader(DataLoader(TensorDataset(images, labels), batch_size=32, shuffle=True))
    for epoch in range(config["epochs"]):
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    if ray.train.get_context().get_world_rank() == 0:
        print(f"weights {sum(parameter.double().sum() for parameter in model.parameters()).item()!r}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategy", default="bsp")
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()

    ray.init(num_cpus=4)
    trainer = TorchTrainer(train, train_loop_config=vars(options), scaling_config=ScalingConfig(num_workers=2))
    trainer.fit()


if __name__ == "__main__":
    main()
