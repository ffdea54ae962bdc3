"""What tests of the torchft adapter run as a replica: `python torchft_scripts.py NAME STRATEGY`."""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from typing import Any

import torch
import torchft
from torch import nn

from laconic.integrations.torchft import LaconicDDP
from laconic.real.connect import connect
from laconic.worker import Kind

REPLICA = int(os.environ["REPLICA_GROUP_ID"])
LIFE = int(os.environ["TORCHELASTIC_RESTART_COUNT"])


class Training:
    def __init__(self, strategy: str, least: int) -> None:
        torch.manual_seed(3)
        self.model: Any = nn.Sequential(nn.Linear(17, 29), nn.GELU(), nn.Linear(29, 17))
        self.manager = torchft.Manager(
            pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=20)),
            load_state_dict=self._load,
            state_dict=lambda: {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()},
            min_replica_size=least,
            replica_id=f"replica_{REPLICA}",
            timeout=timedelta(seconds=60),
            quorum_timeout=timedelta(seconds=60),
        )
        self.model = LaconicDDP(self.manager, self.model, strategy)
        self.optimizer = torchft.Optimizer(self.manager, torch.optim.AdamW(self.model.parameters(), lr=1e-2))

    def _load(self, state: Any) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    @property
    def step(self) -> int:
        return self.manager.current_step()

    def weights(self) -> float:
        return float(sum(p.detach().double().sum().item() for p in self.model.parameters()))

    def backward(self) -> None:
        draw = torch.Generator().manual_seed(1000 * self.step + REPLICA)
        x = torch.randn(8, 17, generator=draw)
        self.optimizer.zero_grad()
        (self.model(x) - x.flip(1)).square().mean().backward()


def plain(strategy: str, drops: bool = False) -> None:
    """Eight steps of two replicas; of some the first attempt is dropped."""
    training, dropped = Training(strategy, 2), set[int]()
    while training.step < 8:
        step = training.step
        training.backward()
        if drops and step in (3, 6) and step not in dropped:
            dropped.add(step)
            training.manager.report_error(RuntimeError("this step shall be dropped"))
        training.optimizer.step()
        assert training.step == step + (step not in dropped or training.step > step)
    assert len(dropped) == (2 if drops else 0)
    print(f"weights {training.weights()!r} bytes {connect().ledger.sent_bytes(Kind.PAYLOAD)}", flush=True)
    training.manager.shutdown(wait=False)


def dropped(strategy: str) -> None:
    plain(strategy, drops=True)


def lost(strategy: str) -> None:
    """The second replica ends without a word in its fourth step in company, and comes back; the first goes on alone."""
    training, losses, company = Training(strategy, 1), 0, 0
    while company < 5 or losses + LIFE == 0:
        training.backward()
        together = training.manager.num_participants() == 2 and training.manager.is_participating()
        if REPLICA == 1 and LIFE == 0 and company == 3:
            os._exit(3)
        before = training.step
        training.optimizer.step()
        if training.step == before:
            continue
        if company and not together:
            losses, company = losses + 1, 0
            if losses + LIFE == 2:  # the other has done
                break
        company += together
        print(f"after {training.step} {together} {training.weights()!r}", flush=True)
    training.manager.shutdown(wait=False)


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2])
