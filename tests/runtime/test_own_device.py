"""A worker's device is that of its number on its machine."""

from __future__ import annotations

import pytest
import torch

import laconic
from laconic.errors import ContractError
from laconic.runtime.own_device import refuse_first_device


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_gpus_it_is_the_cpu() -> None:
    assert laconic.device() == torch.device("cpu")
    assert laconic.simulate(laconic.device, 2).results == [torch.device("cpu")] * 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_becomes_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    count = torch.cuda.device_count()
    for local in range(count + 1):
        monkeypatch.setenv("LOCAL_RANK", str(local))
        assert laconic.device() == torch.device("cuda", local % count)
        assert torch.cuda.current_device() == local % count
    torch.cuda.set_device(0)
    assert laconic.simulate(laconic.device, 2).results == [torch.device("cuda", 0)] * 2


@pytest.mark.parametrize(
    ("local", "place", "count"), [(0, "cuda:0", 4), (1, "cuda:1", 4), (4, "cuda:0", 4), (3, "cuda:0", 1), (1, "cpu", 0)]
)
def test_a_model_on_its_own_device_is_accepted(
    monkeypatch: pytest.MonkeyPatch, local: int, place: str, count: int
) -> None:
    monkeypatch.setenv("LOCAL_RANK", str(local))
    refuse_first_device(torch.device(place), count)


def test_a_model_left_on_the_first_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(ContractError, match=r"this worker's device is cuda:2: write model\.to\(laconic\.device\(\)\)"):
        refuse_first_device(torch.device("cuda:0"), 4)
