"""Handwritten digits with torchft, whose replicas may fail and come back, what they send coded by laconic.

    torchft_lighthouse --min_replicas 1 --join_timeout_ms 1000 &
    export TORCHFT_LIGHTHOUSE=http://localhost:29510
    REPLICA_GROUP_ID=0 torchrun --master-port 29600 examples/torchft_digits.py --strategy "int8(256)+ef" &
    REPLICA_GROUP_ID=1 torchrun --master-port 29601 examples/torchft_digits.py --strategy "int8(256)+ef"

Against torchft's own script one line has changed, beside the import; the comment "was" has the line as it was.
"""

from __future__ import annotations

import argparse
import os
from datetime import timedelta
from typing import Any

import torch
import torchft
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

from laconic.integrations.torchft import LaconicDDP  # new


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategy", default="none")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--replicas", type=int, default=2, help="how many take part when it begins")
    args = parser.parse_args()

    replica = int(os.environ.get("REPLICA_GROUP_ID", "0"))
    digits = load_digits()
    images, labels = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16, torch.tensor(digits.target)
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def state() -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    def load(state: Any) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=20)),
        load_state_dict=load,
        state_dict=state,
        min_replica_size=args.replicas,
        replica_id=f"digits_{replica}",
        timeout=timedelta(seconds=60),
        quorum_timeout=timedelta(seconds=60),
    )
    model = LaconicDDP(manager, model, args.strategy)  # was: torchft.DistributedDataParallel(manager, model)
    optimizer = torchft.Optimizer(manager, torch.optim.AdamW(model.parameters(), lr=1e-3))
    while manager.current_step() < args.steps:
        draw = torch.Generator().manual_seed(1000 * manager.current_step() + replica)
        batch = torch.randint(len(labels), (32,), generator=draw)
        optimizer.zero_grad()  # torchft asks here who takes part
        functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
    print(f"weights {sum(parameter.double().sum() for parameter in model.parameters()).item()!r}", flush=True)
    manager.shutdown(wait=False)


if __name__ == "__main__":
    main()
