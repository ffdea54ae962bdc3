"""Sinks of `laconic.log`: each worker's own values, with its bytes and times."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import nn

import laconic
from laconic.errors import ContractError


class ListSink:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written: list[tuple[int, dict[str, float]]] = []

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self.written.append((step, dict(values)))


Written = tuple[list[list[tuple[int, dict[str, float]]]], float]


def written(strategy: str, sinks: int, workers: tuple[int, ...]) -> list[Written]:
    """What the sinks of some workers got in five steps that log twice, and the bytes that each worker sent."""

    def body() -> Written:
        model: nn.Module = nn.Linear(13, 7)
        model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), strategy)
        own = [ListSink() for _ in range(sinks)]
        if laconic.rank() in workers:
            for sink in own:
                laconic.report_to(sink)
        for step in range(5):
            optimizer.zero_grad()
            model(torch.ones(2, 13)).sum().backward()
            optimizer.step()
            if step % 2 == 0:
                laconic.log(loss=step + 10 * laconic.rank())
        return [sink.written for sink in own], laconic.traffic().sent_bytes

    return laconic.simulate(body, 3, "1Gbit", laconic.Compute(0.01, 0.02)).results


@pytest.mark.parametrize("strategy", ["bsp", "local(2)", "asp / none / ps"])
def test_a_sink_gets_what_its_worker_logs_with_its_traffic(strategy: str) -> None:
    for rank, ([first, second], sent) in enumerate(written(strategy, 2, (0, 1, 2))):
        assert first == second
        assert [(step, values["loss"]) for step, values in first] == [(k + 1, k + 10.0 * rank) for k in (0, 2, 4)]
        names = ["seconds", "step_seconds", "waited_seconds", "sent_bytes", "received_bytes"]
        assert all(set(values) == {"loss", *(f"laconic/{name}" for name in names)} for _, values in first)
        bytes_by_step = [values["laconic/sent_bytes"] for _, values in first]
        assert bytes_by_step[-1] == sent and 0 < bytes_by_step[0] < sent and bytes_by_step == sorted(bytes_by_step)
        assert first[0][1]["laconic/seconds"] < first[-1][1]["laconic/seconds"]


def test_only_workers_that_report_do() -> None:
    ([one], _), ([two], _), ([three], _) = written("bsp", 1, (1,))
    assert (len(one), len(two), len(three)) == (0, 3, 0)


def test_a_process_that_is_no_worker_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("laconic.runtime.metric_sinks.current", lambda: None)
    with pytest.raises(ContractError, match=r"call laconic.distribute\(\) first"):
        laconic.report_to(ListSink())
