"""Training steps on a GPU in which the host never waits, for every sentence whose messages have a fixed length.

    python -m tests.gpu.host_waits [--only TEXT]

One NCCL rank trains a small net. After a few steps, in which plans, kernels and graphs are made, torch is told to raise
an error at whatever lets the host wait for the GPU. Prints a line for each sentence, and ends with 1 if one of them
waited.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import traceback

import torch
import torch.distributed as dist
from torch import Tensor, nn

import laconic

WARM_UP, STEPS = 12, 8
SENTENCES = (
    "bsp",
    "bsp / cast_bf16",
    "bsp / int8+two_hop",
    "bsp / mx_block_codecs(mxfp8)+two_hop",
    "bsp / power_sgd(4)+ef",
    "bsp / scaled_sign+ef",
    "bsp / qsgd+ef",
    "bsp / one_bit+ef",
    "bsp / topk(0.01)+ef",
)


def train(sentence: str, device: str, reads_loss: bool = False) -> None:
    """Train a net of matrices, vectors and a convolution; after some steps every wait of the host is an error."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv1d(4, 8, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(256, 700), nn.LayerNorm(700),
        nn.Tanh(), nn.Linear(700, 700), nn.Tanh(), nn.Linear(700, 10),
    ).to(device)  # fmt: skip
    inputs, targets = torch.randn(16, 4, 32, device=device), torch.randn(16, 10, device=device)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)
    model, optimizer = laconic.distribute(net, optimizer, sentence)

    def step() -> Tensor:
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    losses = [step() for _ in range(WARM_UP)]
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(STEPS):
            losses.append(step())
            if reads_loss:
                losses[-1].item()
    finally:
        if device == "cuda":
            torch.cuda.set_sync_debug_mode("default")
    if not float(losses[-1]) < float(losses[0]):
        raise AssertionError(f"the loss did not fall: {float(losses[0]):.3f}, then {float(losses[-1]):.3f}")
    laconic.undistribute(model, optimizer)


def check(sentence: str) -> str:
    """Train a sentence, and return whether it waited, or why it failed."""
    try:
        train(sentence, "cuda")
    except Exception:
        return "failed: " + traceback.format_exc()[-1500:]
    return "no waits"


def rank_main(only: str) -> None:
    """What the rank does. A script that reads its loss does wait, and shows that a wait is noticed."""
    torch.cuda.set_device(0)
    dist.init_process_group("nccl")
    bad = False
    for sentence in SENTENCES:
        if only in sentence:
            said = check(sentence)
            bad |= said != "no waits"
            print(f"{sentence}: {said}", flush=True)
    try:
        train("bsp", "cuda", reads_loss=True)
        print("a loss that is read was not noticed", flush=True)
        bad = True
    except RuntimeError as error:
        bad |= "synchroniz" not in str(error)
        print(f"a loss that is read is noticed: {error}".splitlines()[0], flush=True)
    os._exit(int(bad))


def main(only: str = "") -> int:
    """Start the rank in a process of its own and wait for it; return 0 if no sentence waited."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    world = {
        "WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        "LACONIC_NCCL_RANK": "1",
    }  # fmt: skip
    command = [sys.executable, "-m", "tests.gpu.host_waits", "--only", only]
    return subprocess.run(command, env={**os.environ, **world}, timeout=400, check=False).returncode


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="sentences that contain this")
    given = parser.parse_args()
    if "LACONIC_NCCL_RANK" in os.environ:
        rank_main(given.only)
    sys.exit(main(given.only))
