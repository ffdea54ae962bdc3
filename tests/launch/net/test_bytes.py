"""The ledger against the kernel: what a worker's network interface has sent, over a shaped network."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from laconic.launch import net
from tests.real.launching import START_SECONDS, Launched

STEPS = 6
HEADERS = 0.08
"""The most that Ethernet, IP and TCP add to a byte of a long message: 66 bytes for every 1,448, and an acknowledgement
of 66 bytes for every second packet of the as many that are received."""
BESIDE_BYTES = 20_000
"""The most that is sent in a few seconds beside training: heartbeats, keep-alives, the barriers of the measurement."""

SCRIPT = f"""
import json
import os
import sys
import torch
from torch import nn
import laconic
from laconic.launch.net import interface_bytes
from laconic.network.interfaces import interface_towards
from laconic.real.connect import connect
from laconic.worker import Kind

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(501, 997), nn.ReLU(), nn.Linear(997, 301))
model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=0.01))
ledger, interface = connect().ledger, interface_towards(os.environ["MASTER_ADDR"])

def counts():
    if sys.argv[1] == "0":  # a collective may return before its last bytes have left; servers have answered
        connect().world.barrier().wait()
    return [ledger.sent_bytes(Kind.PAYLOAD), ledger.sent_bytes(Kind.CONTROL), interface_bytes(interface)[0]]

for step in range({STEPS + 2}):
    if step == 2:
        before = counts()
    model(torch.randn(8, 501)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print("counted", json.dumps([b - a for a, b in zip(before, counts())]), flush=True)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("strategy", "servers"),
    [("dear", 0), ("sign_sgd", 0), ("dgc(ratio=0.05)", 0), ("bsp / topk(0.05)+ef / ps", 1)],
)
def test_the_interface_has_sent_what_the_ledger_says(
    name: str, launch: Callable[..., Launched], tmp_path: Path, strategy: str, servers: int
) -> None:
    """Of every worker, in the steps after the first two: not less, and not more than the headers of packets, the
    acknowledgements of what it has received, and heartbeats explain."""
    net.up(name, workers=2 + servers, bits_per_second=1e8)
    script = tmp_path / "count.py"
    script.write_text(SCRIPT)
    options = ["--net", name, "--workers", "2", *(["--servers", str(servers)] if servers else [])]
    run = launch(*options, "--strategy", strategy, "--", str(servers), script=script)
    assert run.exit_code(2 * START_SECONDS) == 0, run.console
    for rank in range(2):
        (found,) = re.findall(r"^counted (.*)$", run.log(rank), re.MULTILINE)
        payload, control, wire = json.loads(found)
        assert payload > 100_000 and control > 0
        assert payload + control <= wire <= (1 + HEADERS) * (payload + control) + BESIDE_BYTES
