"""Four NCCL ranks on one GPU: every architecture and way to meet, against the same training on virtual workers, and
every all-reduce that is a program, whose sums of integers are exact.

    python -m tests.gpu.nccl_ranks [--only TEXT]

NCCL refuses two ranks on one GPU of one host. With a host name of their own, and sockets as their only link, processes
do form one world: slow, but everything that is sent is sent. Prints a line for each sentence, and ends with 1 if one of
them failed.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import traceback
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import laconic
from laconic.collective.generators import generators, make_program
from laconic.errors import ProgramError
from laconic.real.connect import connect
from laconic.runtime.in_flight import InFlight, complete

RANKS = 4
STEPS = 6
TOLERANCE = 2e-4  # rounding of a GPU's products, which may move a value to the next level of a short code
SENTENCES = (
    "bsp",
    "bsp / none / allreduce(order=rank)",
    "bsp / none / allreduce / dear",
    "bsp / none / allreduce / bytescheduler",
    "bsp / cast_bf16",
    "bsp / power_sgd(2)+ef",
    "bsp / scaled_sign+ef",
    "bsp / qsgd+ef",
    "bsp / topk(0.1)+ef",
    "bsp / topk(0.1, threshold=sampled)+ef",
    "bsp / sign_sgd",
    "bsp / int8+two_hop",
    "bsp / mx_block_codecs(mxfp8)+two_hop",
    "bsp / gtopk(0.1)+ef",
    "bsp / scalecom(0.1)+ef",
    "bsp / randk(0.1)",
    "bsp / intellect1_int8_ring",
    "local(2)",
    "local(2) / topk(0.1)+ef",
    "diloco(period=2)",
    "dpsgd / none / gossip / ring",
    "dpsgd / none / gossip / exponential",
    "choco_sgd / topk(0.1) / gossip / ring",
    "dpsgd / power_gossip / gossip / ring",
)
"""One or more sentences for each way in which payloads meet, and for each architecture of equal workers."""


def train(sentence: str, device: str) -> list[Tensor]:
    """Train a small net for a few steps, and return its parameters."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 33), nn.Tanh(), nn.Linear(33, 7)).to(device)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model, optimizer = laconic.distribute(model, optimizer, sentence)
    draws = torch.Generator().manual_seed(laconic.rank())
    for _ in range(STEPS):
        inputs, targets = torch.randn(8, 40, generator=draws), torch.randn(8, 7, generator=draws)
        loss = nn.functional.mse_loss(model(inputs.to(device)), targets.to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    laconic.finish(model, optimizer)
    found = [p.detach().cpu().clone() for p in model.parameters()]
    laconic.undistribute(model, optimizer)
    return found


def expected(sentence: str) -> list[Tensor]:
    """Return rank 0's parameters after the same training on virtual workers."""
    first: list[Tensor] = laconic.simulate(lambda: train(sentence, "cpu"), RANKS).results[0]
    return first


def check(sentence: str, reference: list[Tensor] | None) -> str:
    """Train a sentence on this rank, and return how far it is from the reference, or why it failed."""
    try:
        found = train(sentence, "cuda")
    except Exception:
        return "failed: " + traceback.format_exc()[-600:]
    if reference is None:
        return ""
    distance = max(float((a - b).abs().max()) for a, b in zip(found, reference, strict=True))
    return f"differs by {distance:.2e}" + ("" if distance < TOLERANCE else ": too far")


def check_program(name: str) -> str:
    """Carry a program out on integers, in float32 on the device, and return whether the sums are exact."""
    group = connect().world
    numbers = torch.arange(1001, device="cuda", dtype=torch.float32)
    try:
        exchange: Any = InFlight(group.run(make_program(name, group.size, 1), numbers * (group.rank + 1)))
        complete([exchange])
        exact = torch.equal(exchange.result, numbers * sum(range(1, group.size + 1)))
    except Exception:
        return "failed: " + traceback.format_exc()[-600:]
    return "exact" if exact else "failed: the sums are wrong"


def programs() -> list[str]:
    """Return the all-reduces that are made for so many ranks."""
    found = []
    for one in generators("all_reduce"):
        try:
            make_program(one.name, RANKS, 1)
        except ProgramError:
            continue
        found.append(one.name)
    return found


def rank_main(only: str) -> None:
    """What each rank does."""
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", timeout=timedelta(seconds=60))
    bad = False
    for name in programs():
        if only in f"program {name}":
            said = check_program(name)
            bad |= "failed" in said
            print(f"rank {dist.get_rank()}  program {name}: {said}", flush=True)
    for sentence in SENTENCES:
        if only in sentence:
            reference = expected(sentence) if dist.get_rank() == 0 else None
            said = check(sentence, reference)
            bad |= "failed" in said or "too far" in said
            if said:
                print(f"rank {dist.get_rank()}  {sentence}: {said}", flush=True)
    sys.stdout.flush()
    os._exit(int(bad))


def main(only: str = "") -> int:
    """Start the ranks and wait for them; return 0 if all agreed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {
        "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LACONIC_NCCL_RANK": "1",
        "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.gpu.nccl_ranks", "--only", only],
            env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": "0", "NCCL_HOSTID": f"host{rank}"},
        )
        for rank in range(RANKS)
    ]
    try:
        codes = [process.wait(timeout=400) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return int(any(codes))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="sentences, and `program NAME`, that contain this")
    given = parser.parse_args()
    if "LACONIC_NCCL_RANK" in os.environ:
        rank_main(given.only)
    sys.exit(main(given.only))
