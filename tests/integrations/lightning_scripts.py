"""What tests of the Lightning adapter run under torchrun: `python lightning_scripts.py NAME FOLDER`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import laconic
from laconic.integrations.lightning import DDPHookCallback, LaconicStrategy

FOLDER = Path(sys.argv[2])


class Small(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(40, 30)
        self.seen: list[float] = []
        self.weights: list[float] = []

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        self.seen += batch[0][:, 0].tolist()
        return self.net(batch[0]).square().mean()

    def on_train_batch_end(self, *_: Any) -> None:
        self.weights.append(self.net.weight.sum().item())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.2, momentum=0.9)


class Two(Small):
    def configure_optimizers(self) -> Any:
        self.automatic_optimization = False
        return [torch.optim.SGD([p], lr=0.1) for p in self.parameters()]


class Manual(Small):
    """The same steps by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: list[Tensor], index: int) -> None:  # type: ignore[override]
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(super().training_step(batch, index))
        optimizer.step()


def fitted(
    strategy: Any, epochs: int = 1, make: Callable[[], Small] = Small, callbacks: Any = (), resume: str | None = None
) -> tuple[Small, lightning.Trainer]:
    torch.manual_seed(5)
    model = make()
    data = torch.randn(40, 40, generator=torch.Generator().manual_seed(6))
    data[:, 0] = torch.arange(40) / 40
    keeping = lightning.pytorch.callbacks.ModelCheckpoint(
        FOLDER / (strategy if isinstance(strategy, str) else "laconic"), "{epoch}", save_top_k=-1
    )
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=laconic.size(),
        strategy=strategy,
        max_epochs=epochs,
        callbacks=[keeping, *callbacks],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(TensorDataset(data), batch_size=4), ckpt_path=resume)
    return model, trainer


def total(model: nn.Module) -> float:
    return sum(p.detach().double().sum().item() for p in model.parameters())


def local_steps() -> None:
    """Steps stay local, samples are shared out, and the end averages."""
    model, _ = fitted(LaconicStrategy("local(3)"))
    every = laconic.gather(torch.tensor(model.weights))
    seen = laconic.gather(torch.tensor(model.seen))
    differing = [step for step in range(5) if every[0][step] != every[1][step]]
    assert differing == [0, 1, 3, 4], every
    assert sorted(round(40 * x) for part in seen for x in part.tolist()) == list(range(40))
    ends = laconic.gather(total(model))
    assert ends[0] == ends[1]


def twice() -> None:
    """A module may be fitted again: nothing of the first time is left."""
    model, _ = fitted(LaconicStrategy("bf16+ef"))
    assert not hasattr(model, "no_sync") and not model._forward_hooks
    fitted(LaconicStrategy("bf16+ef"), make=lambda: model)
    assert len(model.weights) == 20


def by_hand() -> None:
    """Manual optimization, whose steps have an empty closure, gives the same weights."""
    expected, _ = fitted(LaconicStrategy("local(3)"))
    found, _ = fitted(LaconicStrategy("local(3)"), make=Manual)
    assert found.weights == expected.weights


def two_optimizers() -> None:
    try:
        fitted(LaconicStrategy("bsp"), make=Two)
    except laconic.ContractError as error:
        assert "this module has 2 optimizers" in str(error)
        return
    raise AssertionError("nothing was refused")


def for_ddp_only() -> None:
    for named in ({"find_unused_parameters": True}, {"ddp_comm_hook": print}):
        try:
            LaconicStrategy("bsp", **named)  # type: ignore[arg-type]
        except laconic.ContractError as error:
            assert next(iter(named)) in str(error)
            continue
        raise AssertionError("nothing was refused")
    try:
        fitted(LaconicStrategy("bsp"), callbacks=[DDPHookCallback("bf16+ef")])
    except laconic.ContractError as error:
        assert "does not wrap the model in DDP" in str(error)
        return
    raise AssertionError("nothing was refused")


def hook() -> None:
    """A hook in Lightning's DDP compresses, and a resumed run has its memory."""
    plain, _ = fitted("ddp_find_unused_parameters_true")
    same, _ = fitted("ddp_find_unused_parameters_false", callbacks=[DDPHookCallback("none")])
    assert same.weights == plain.weights
    undisturbed, _ = fitted("ddp", 2, callbacks=[DDPHookCallback("topk(0.05)+ef")])
    assert undisturbed.weights[:5] != plain.weights
    first = str(FOLDER / "ddp" / "epoch=0.ckpt")
    if laconic.rank() == 0:
        assert len(torch.load(first, weights_only=False)["callbacks"]["DDPHookCallback"]["by_rank"]) == 2
    resumed, _ = fitted("ddp", 2, callbacks=[DDPHookCallback("topk(0.05)+ef")], resume=first)
    assert resumed.weights == undisturbed.weights[5:]


def resumed() -> None:
    """Saved between two averages, when models and memories differ from rank to rank."""
    strategy = LaconicStrategy("local(3) / topk(0.05)+ef")
    undisturbed, before = fitted(strategy, 2)
    first = str(Path(before.checkpoint_callback.dirpath) / "epoch=0.ckpt")  # type: ignore[union-attr, arg-type]
    found, trainer = fitted(LaconicStrategy("local(3) / topk(0.05)+ef"), 2, resume=first)
    assert found.weights == undisturbed.weights[5:]
    trainer.strategy.remove_checkpoint(first)
    assert laconic.rank() or not Path(f"{first}.laconic").exists()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    print(f"passed {sys.argv[1]}")
