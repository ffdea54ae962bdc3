"""A worker that all-reduces for ever (or for so many steps), to be killed, frozen, cut off and interrupted by tests.

It asks nothing of the machine: a tiny tensor, a short pause per step.
"""

from __future__ import annotations

import argparse
import atexit
import os
import sys
import time

import torch
import torch.distributed as dist

from laconic.liveness.heartbeat import Heartbeat
from laconic.network.interfaces import prepare_environment
from laconic.values.run_config import RunConfig


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--raise-on", type=int, metavar="RANK", help="this rank raises at step 3")
    parser.add_argument("--exit-on", type=int, metavar="RANK", help="this rank exits with code 3 at step 3")
    parser.add_argument("--only-attempt", type=int, help="misbehave in this attempt only")
    parser.add_argument("--linger", type=float, default=0, help="seconds that all ranks but 0 stay after the last step")
    parser.add_argument("--plain", action="store_true", help="no heartbeat, as a script that does not know laconic")
    options = parser.parse_args()
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    misbehaves = options.only_attempt in (None, attempt)
    config = RunConfig.current()
    prepare_environment(os.environ["MASTER_ADDR"])
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    heartbeat = None
    if not options.plain:
        heartbeat = Heartbeat.start(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            rank,
            size,
            config.heartbeat_prefix(),
            config.heartbeat_seconds,
            config.folder,
        )
        atexit.register(heartbeat.stop)
    print(f"pid {os.getpid()} attempt {attempt}", flush=True)
    for step in range(options.steps):
        value = torch.ones(1000)
        if misbehaves and step == 3 and rank == options.raise_on:
            raise ValueError("a deliberate mistake")
        if misbehaves and step == 3 and rank == options.exit_on:
            sys.exit(3)
        try:
            dist.all_reduce(value)
        except RuntimeError as error:
            lost = heartbeat.explain(error) if heartbeat is not None else None
            raise (lost or error) from error
        assert value[0] == size
        print(f"step {step}", flush=True)
        time.sleep(0.02)
    time.sleep(options.linger if rank else 0)
    print("finished", flush=True)


main()
