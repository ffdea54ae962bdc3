"""Fuzzed messages against a running parameter server: it must neither end nor change, and serve its honest worker.

    python bench/fuzz_frames.py --messages 1000000 --seed 0

The server is a process of its own. One worker is honest: it pushes and pulls again and again, and compares what it
reads, bit by bit, with what it should be. The other has the run's keys and a session, and sends messages under another
key, messages changed on the way, signed nonsense, changed heartbeats and plain bytes. The exit code is 1 at the first
difference.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1])]

import torch  # noqa: E402
from tests.fuzz.frames import HostileMember  # noqa: E402
from tests.rpc.processes import endpoint, start  # noqa: E402
from tests.rpc.shards import ELEMENTS, push  # noqa: E402

from laconic.rpc.endpoint import Endpoint  # noqa: E402
from laconic.worker import ActorMessage  # noqa: E402

WORKERS = 2
ROUND = 1_000  # hostile messages between two pushes of the honest worker


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="laconic-fuzz-") as name:
        folder = Path(name)
        server = start(folder, every_bytes=1 << 40)
        honest = endpoint(folder, 0)
        try:
            return run(asked.messages, HostileMember(folder, asked.seed), honest, server)
        finally:
            server.kill()
            server.wait()
            honest.close()


def run(messages: int, hostile: HostileMember, honest: Endpoint, server: subprocess.Popen[str]) -> int:
    """Send everything, a push of the honest worker after each round, and print what happened."""
    began, rounds = time.monotonic(), -(-messages // ROUND)
    for number in range(1, rounds + 1):
        hostile.send(ROUND)
        honest.call("s", push(1.0), writes=True).wait()
        (seen,) = honest.call("s", ActorMessage("pull"), writes=False).wait().tensors
        expected = torch.full((ELEMENTS,), -number / WORKERS)  # exact in binary
        if server.poll() is not None or not torch.equal(seen, expected):
            print(f"after {number * ROUND:,} messages the server's parameters are {seen.tolist()}")
            return 1
        if number % 10 == 0:
            took = time.monotonic() - began
            print(f"{number * ROUND:,} messages, {took:.0f} s", end="\r", file=sys.stderr, flush=True)
    for kind, count in hostile.sent.items():
        print(f"{kind:<12}{count:>10,}")
    print(f"{rounds} honest pushes and reads in between; the server runs, and its parameters are those of the pushes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
