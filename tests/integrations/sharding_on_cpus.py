"""Runs a script of Accelerate's with its FSDP2 on CPUs: `python sharding_on_cpus.py SCRIPT ARGUMENTS…`.

Accelerate looks at its plugin for FSDP only where it has found accelerators. All that follows is its own code, which
works on CPUs as well: so it is told that it had found some.
"""

from __future__ import annotations

import runpy
import sys

from accelerate import PartialState
from accelerate.utils import DistributedType


def shard_on_cpus() -> None:
    """Let the next `Accelerator` of this process look at its plugin."""
    PartialState(cpu=True)
    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU


if __name__ == "__main__":
    shard_on_cpus()
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
