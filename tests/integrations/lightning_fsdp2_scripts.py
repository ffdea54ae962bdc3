"""What tests of Lightning's FSDP2 adapter run under torchrun: `python lightning_fsdp2_scripts.py NAME FOLDER`."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

import laconic
from laconic.integrations.lightning_fsdp2 import ShardedLaconicStrategy

FOLDER = Path(sys.argv[2])
WORKERS = 2


class Small(pl.LightningModule):
    """Two layers whose tensors two workers do not divide."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(17, 29), nn.GELU(), nn.Linear(29, 17))
        self.losses: list[float] = []

    def configure_model(self) -> None:
        mesh = self.device_mesh["data_parallel"]  # type: ignore[index]
        fully_shard(self.net[0], mesh=mesh)
        fully_shard(self.net, mesh=mesh)

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        loss = (self.net(batch[0]) - batch[0].flip(1)).square().mean()
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


class InParts(Small):
    def configure_model(self) -> None:
        fully_shard(self.net[0])
        fully_shard(self.net[2])


class WithOutsider(Small):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))


def fitted(
    strategy: ShardedLaconicStrategy, name: str, epochs: int = 2, make: type[Small] = Small, resume: Path | None = None
) -> Small:
    torch.manual_seed(5)
    model = make()
    data = torch.randn(40, 17, generator=torch.Generator().manual_seed(6))
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=WORKERS,
        strategy=strategy,
        max_epochs=epochs,
        callbacks=[pl.callbacks.ModelCheckpoint(FOLDER / name, "{epoch}", save_top_k=-1)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(TensorDataset(data), batch_size=4), ckpt_path=None if resume is None else str(resume))
    return model


def strategy(words: str = "strided_bits(2, 128)+ef", **named: Any) -> ShardedLaconicStrategy:
    sizes = {"data_parallel_size": WORKERS, "tensor_parallel_size": 1, **named}
    return ShardedLaconicStrategy(words, {"weights": "int8(256)"}, **sizes)


def resumed() -> None:
    """A run that is resumed after its first epoch has the losses of an undisturbed one, by what every rank remembers
    alone: the shards are Lightning's."""
    undisturbed = fitted(strategy(), "undisturbed")
    first = FOLDER / "undisturbed" / "epoch=0.ckpt"
    assert not list(Path(f"{first}.laconic").rglob("*.distcp")) and list(first.glob("*.distcp"))
    found = fitted(strategy(), "resumed", resume=first)
    assert found.losses == undisturbed.losses[5:], (found.losses, undisturbed.losses)
    assert not any(hasattr(part, "no_sync") for part in found.modules()), "after training the module is a plain one"
    laconic.gather(0)  # both have read
    if laconic.rank() == 0:
        shutil.rmtree(f"{first}.laconic")
    laconic.gather(0)
    forgotten = fitted(strategy(), "forgotten", resume=first)
    assert forgotten.losses[0] == undisturbed.losses[5] and forgotten.losses != undisturbed.losses[5:]


def refused() -> None:
    for make, named, words in (
        (Small, {"data_parallel_size": 1, "tensor_parallel_size": WORKERS}, "split over tensors as well (2 ways)"),
        (InParts, {}, "called on 2 parts of this module"),
        (WithOutsider, {}, "'scale' is outside of the part"),
    ):
        try:
            fitted(strategy(**named), "refused", make=make)
        except laconic.ContractError as error:
            assert words in str(error), error
            continue
        raise AssertionError(f"nothing was refused: {words}")


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    print(f"passed {sys.argv[1]}")
