"""torchft's replicas with laconic's communication: the bits of its own DDP, dropped steps, replicas that come back."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch import nn

from laconic.errors import ContractError, StrategyError
from tests.integrations.scripts import EXAMPLES, SECONDS, changed_lines, environment, needs, without_laconic

pytestmark = [pytest.mark.long, needs("torchft")]

EXAMPLE = EXAMPLES / "torchft_digits.py"
SCRIPTS = Path(__file__).with_name("torchft_scripts.py")


def lighthouse(least: int) -> Any:
    from torchft.coordination import LighthouseServer

    return LighthouseServer(bind="[::]:0", min_replicas=least, join_timeout_ms=60_000, heartbeat_timeout_ms=5_000)


def address_of(server: Any) -> str:
    return f"http://localhost:{server.address().rpartition(':')[2]}"


def replicas(script: Path, *arguments: str, least: int = 2, restarts: int = 0) -> list[str]:
    """What two replicas print, each under a torchrun of its own."""
    server, started = lighthouse(least), []
    try:
        for replica in range(2):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            variables = {"REPLICA_GROUP_ID": str(replica), "TORCHFT_LIGHTHOUSE": address_of(server), "RUST_LOG": "warn"}
            launcher = ["-m", "torch.distributed.run", f"--max-restarts={restarts}", f"--master-port={port}"]
            started.append(
                subprocess.Popen(
                    [sys.executable, *launcher, str(script), *arguments],
                    env={**environment(), **variables},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        printed = [process.communicate(timeout=SECONDS) for process in started]
    finally:
        for process in started:
            process.kill()
        server.shutdown()
    assert [process.returncode for process in started] == [0, 0], "".join(map("".join, printed))
    return [output for output, _ in printed]


def weights(outputs: list[str]) -> str:
    found = {re.search(r"weights (\S+)", output)[1] for output in outputs}  # type: ignore[index]
    assert len(found) == 1, "replicas hold one model"
    return found.pop()


def test_the_example_has_the_bits_of_torchfts_own(tmp_path: Path) -> None:
    assert changed_lines(EXAMPLE.name) <= 3
    own = weights(replicas(without_laconic(EXAMPLE.name, tmp_path), "--steps", "20"))
    assert weights(replicas(EXAMPLE, "--steps", "20")) == own
    assert weights(replicas(EXAMPLE, "--steps", "20", "--strategy", "int8(256)+ef")) != own


def test_a_dropped_step_leaves_no_trace_in_memory() -> None:
    undisturbed = weights(replicas(SCRIPTS, "plain", "topk(0.05)+ef"))
    assert weights(replicas(SCRIPTS, "dropped", "topk(0.05)+ef")) == undisturbed


def test_replicas_send_the_bytes_of_their_strategy() -> None:
    dense, coded = (
        [float(re.search(r"bytes (\S+)", output)[1]) for output in replicas(SCRIPTS, "plain", strategy)]  # type: ignore[index]
        for strategy in ("none", "strided_bits(4, 128)+ef")
    )
    values = 17 * 29 + 29 + 29 * 17 + 17
    assert dense == [8 * 4 * values] * 2, "an all-reduce of two sends the whole once"
    assert max(coded) < dense[0] / 5


@pytest.mark.parametrize("strategy", ["topk(0.05)+ef", "topk(0.05)+ef21"])
def test_a_replica_that_comes_back_trains_on_with_the_other(strategy: str) -> None:
    first, second = (
        {
            int(step): (together == "True", value)
            for step, together, value in re.findall(r"after (\d+) (\S+) (\S+)", text)
        }
        for text in replicas(SCRIPTS, "lost", strategy, least=1, restarts=1)
    )
    alone = [step for step, (together, _) in first.items() if not together]
    common = [step for step in first.keys() & second.keys() if step > max(alone)]
    assert alone and len(common) >= 3
    assert all(first[step][1] == second[step][1] for step in first.keys() & second.keys())


def test_what_cannot_follow_replicas_is_refused() -> None:
    from torchft.manager import Manager
    from torchft.process_group import ProcessGroupBabyGloo

    from laconic.integrations.torchft import LaconicDDP

    server, store = lighthouse(1), dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupBabyGloo(timeout=5.0),
        load_state_dict=None,
        state_dict=None,
        min_replica_size=1,
        timeout=timedelta(seconds=5),
        rank=0,
        world_size=1,
        store_addr="localhost",
        store_port=store.port,
        lighthouse_addr=address_of(server),
        replica_id="refused",
    )
    try:
        with pytest.raises(ContractError, match="ProcessGroupBabyGloo runs in a process of its own"):
            LaconicDDP(manager, nn.Linear(2, 2), "bf16")
        with pytest.raises(StrategyError, match="replicas of torchft come and go"):
            LaconicDDP(manager, nn.Linear(2, 2), "none / collective(ring)")
        with pytest.raises(StrategyError, match=r"use laconic\.distribute for the rest"):
            LaconicDDP(manager, nn.Linear(2, 2), "local(4)")
    finally:
        manager.shutdown(wait=False)
        server.shutdown()
