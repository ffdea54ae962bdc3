"""Rules and compressors under Flower, with a SuperLink and two SuperNodes on the loopback."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: make test-flower")

from laconic.errors import LaconicError, StrategyError
from laconic.federated.simulate import simulate
from laconic.integrations.flower import RuleStrategy, client_app, run_rule
from laconic.integrations.flower_records import from_records, payload_bytes, to_records
from laconic.worker import ActorMessage
from tests.federated.processes import inside, three_ways
from tests.integrations import flower_app
from tests.integrations.flower_inside import Inside
from tests.integrations.flower_processes import federation, run_app

SECONDS = 540.0
MOST_OVERHEAD = 45_000


@pytest.mark.long
@pytest.mark.parametrize("way", flower_app.SENTENCES)
def test_rounds_are_those_of_virtual_clients_and_bytes_those_of_payloads(way: str, tmp_path: Path) -> None:
    with federation(tmp_path, flower_app.CLIENTS, way) as (environment, counters):
        found = run_app(tmp_path, environment, SECONDS)
        nodes = sum(counter.up + counter.down for counter in counters)
    setting = flower_app.setting
    sentence = flower_app.SENTENCES[way]
    steps, seed = flower_app.STEPS, flower_app.SEED
    virtual = simulate(setting.learned, setting.population, sentence, steps, rate=setting.rate, seed=seed)
    assert np.abs(np.array(found["parameters"]) - virtual.parameters.numpy()).max() <= 1e-6
    parts = steps * flower_app.CLIENTS  # a client that waits in a round has its share of Flower's bytes too
    if way == "mod":
        assert sum(found["up"]) == virtual.up_bytes.sum()
        down = 4 * len(found["parameters"]) * parts
    else:
        assert found["up_bytes"] == virtual.up_bytes.tolist()
        assert found["down_bytes"] == virtual.down_bytes.tolist()
        assert sum(up for _, up in found["counted"]) == virtual.up_bytes.sum()
        assert sum(down for down, _ in found["counted"]) == virtual.down_bytes.sum()
        down = virtual.down_bytes.sum()
    overhead = (nodes - down - virtual.up_bytes.sum()) / parts
    print(f"{way}: {overhead:.0f} bytes beside payloads for each client and round")
    assert overhead <= MOST_OVERHEAD


@pytest.mark.parametrize("sentence", three_ways.SENTENCES)
def test_a_grid_of_nodes_learns_what_virtual_clients_do(sentence: str) -> None:
    setting = inside.federation(5, 1)
    task, population = setting.learned, setting.population
    grid = Inside(client_app(task, population, sentence, 1), {70 + client: client for client in range(len(population))})
    real = run_rule(grid, task, population, sentence, steps=5, rate=setting.rate, seed=1, patience=60)
    virtual = simulate(task, population, sentence, 5, rate=setting.rate, seed=1)
    torch.testing.assert_close(real.parameters, virtual.parameters, rtol=0, atol=0)
    assert [step.clients for step in real.steps] == [step.clients for step in virtual.steps]
    assert (real.up_bytes == virtual.up_bytes).all() and (real.down_bytes == virtual.down_bytes).all()


def test_records_hold_what_a_message_says_and_no_byte_more_of_payload() -> None:
    message = ActorMessage(
        "report", {"words": [1, 0, 2], "client": 3, "why": "x"}, (torch.arange(5), torch.zeros(0), torch.ones(2, 3))
    )
    records = to_records(message)
    read = from_records(records)
    assert read.kind == message.kind and dict(read.fields) == dict(message.fields)
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(read.tensors, message.tensors, strict=True))
    assert payload_bytes(records) == message.nbytes


def test_records_that_are_damaged_or_of_others_are_refused() -> None:
    records = to_records(ActorMessage("report", {}, (torch.ones(4),)))
    records["laconic"]["header"] = records["laconic"]["header"][:-2]
    with pytest.raises(LaconicError):
        from_records(records)
    records = to_records(ActorMessage("report", {}, (torch.ones(4),)))
    for lengths in (b"", b"\xc1", b"\x91\xff", b"\x91\x08"):  # none, not msgpack, one of -1, one of 8 bytes of 16
        records["laconic"]["lengths"] = lengths
        with pytest.raises(LaconicError, match=r"bytes|lengths"):
            from_records(records)
    del records["laconic"]
    with pytest.raises(LaconicError, match="mod"):
        from_records(records)


@pytest.mark.parametrize("sentence", ["scaffold(clients=2)", "fedprox", "fedbuff(2)"])
def test_a_strategy_refuses_rules_that_are_more_than_aggregation(sentence: str) -> None:
    with pytest.raises(StrategyError, match="run_rule"):
        RuleStrategy(sentence)
