"""Handwritten digits with Lightning, sharded by FSDP2, what is sent coded by laconic.

    torchrun --nproc-per-node 2 examples/lightning_fsdp2.py --strategy zero_plus_plus

Against Lightning's own script one line has changed, beside the import; the comment "was" has the line as it was.
"""

from __future__ import annotations

import argparse

import lightning.pytorch as pl
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from laconic.integrations.lightning_fsdp2 import ShardedLaconicStrategy  # new


class Classifier(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 33), nn.ReLU(), nn.Linear(33, 33), nn.ReLU(), nn.Linear(33, 10))

    def configure_model(self) -> None:
        mesh = self.device_mesh["data_parallel"]  # type: ignore[index]
        for layer in self.net:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(self.net, mesh=mesh)

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        images, labels = batch
        return functional.cross_entropy(self.net(images), labels)

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=2e-3)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategy", default="zero")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--folder", default="lightning_fsdp2")
    parser.add_argument("--resume", help="a checkpoint's folder")
    options = parser.parse_args()

    digits = load_digits()
    images, labels = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16, torch.tensor(digits.target)
    pl.seed_everything(0, verbose=False)
    model = Classifier()
    loader = DataLoader(TensorDataset(images, labels), batch_size=32, shuffle=True)
    named = {
        "accelerator": "cpu",
        "devices": 2,
        "max_epochs": options.epochs,
        "accumulate_grad_batches": options.accumulate,
        "gradient_clip_val": 1.0,
        "default_root_dir": options.folder,
        "callbacks": [pl.callbacks.ModelCheckpoint(options.folder, "{epoch}", save_top_k=-1)],
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    sizes = {"data_parallel_size": 2, "tensor_parallel_size": 1}
    strategy = ShardedLaconicStrategy(options.strategy, **sizes)  # was: pl.strategies.ModelParallelStrategy(**sizes)
    trainer = pl.Trainer(strategy=strategy, **named)
    trainer.fit(model, loader, ckpt_path=options.resume)
    total = sum(parameter.full_tensor().double().sum() for parameter in model.parameters())  # type: ignore[attr-defined]
    if trainer.is_global_zero:
        print(f"weights {total.item()!r}")  # type: ignore[union-attr]


if __name__ == "__main__":
    main()
