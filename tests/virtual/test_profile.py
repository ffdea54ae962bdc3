"""A given profile drives the virtual engine to the time that can be computed by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import laconic
from laconic.errors import LaconicError
from laconic.network.network_tree import Network
from laconic.real.connect import connect
from laconic.values.profile import (
    CodecTimes,
    LinkTimes,
    ModelTimes,
    OperationTimes,
    Point,
    Profile,
    Seconds,
    TensorTime,
)
from laconic.values.tensor_spec import TensorSpec
from laconic.virtual.compute import Compute
from laconic.virtual.setup import VirtualSetup
from laconic.virtual.symmetric import price

ALONE, SHARED = 0.5, 0.375


def profile(pace: float = 1.0, codecs: tuple[CodecTimes, ...] = ()) -> Profile:
    tensors = (TensorTime("bias", (3,), "float32", 1.0), TensorTime("weight", (3, 4), "float32", 2.0))
    flat = tuple(Point(n, ALONE, SHARED, pace) for n in (1.0, 1e6))
    links = LinkTimes(1e9, 0.0, (OperationTimes("all_reduce", "float32", flat, ALONE, 0.0),))
    return Profile(ModelTimes(tensors, Seconds(4.0), Seconds(3.0), Seconds(8.0)), 2, {}, links, codecs)


def seconds(given: Profile, strategy: str, network: Network | None = None) -> float:
    def train() -> float:
        model: nn.Module = nn.Linear(4, 3)
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer = laconic.distribute(model, optimizer, strategy)
        ends = []
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            ends.append(connect().clock_seconds())
        return ends[-1] - ends[-2]

    out = laconic.simulate(train, 2, network or Network.from_profile(given), Compute.from_profile(given))
    return max(out.results)


def test_computing_and_one_message() -> None:
    assert seconds(profile(), "sequential") == pytest.approx(4 + 3 + 8 + ALONE)


def test_two_messages_hide_behind_backward_but_for_what_comes_last() -> None:
    """bias after 1 s, weight 2 s later: its message is all that is exposed."""
    assert seconds(profile(), "wfbp(0)") == pytest.approx(15 + ALONE)


def test_messages_go_on_slower_beside_computing() -> None:
    """The first message has 2 s of computing beside it; then both share what they need until it is home."""
    pace = 0.1
    left = 1 - 2.0 * pace / ALONE
    assert 0 < left < 1 and 2 * SHARED > ALONE
    assert seconds(profile(pace), "wfbp(0)") == pytest.approx(15 + left * 2 * SHARED + (1 - left) * ALONE)


def test_words_cost_what_the_profile_says() -> None:
    """Control flags leave first; casting takes so long that their message is home before the casts' leaves."""
    codecs = (CodecTimes("cast_fp16", 0.25, 0.5, 0.125, 0.0625), CodecTimes("allreduce", 0.03125, 0, 0, 0))
    casting = 2 * (0.25 + 0.125) + 15 * (0.5 + 0.0625)
    assert seconds(profile(codecs=codecs), "fp16 / sequential") == pytest.approx(15 + ALONE + casting + 2 * 0.03125)


def test_a_network_of_ones_own_takes_its_own_time() -> None:
    free = Network.flat(2, 1e30)
    assert seconds(profile(), "bsp", free) == pytest.approx(15)


def test_a_profile_of_another_model_is_refused() -> None:
    other = Profile(ModelTimes((TensorTime("w", (1,), "float32", 1.0),), Seconds(0), Seconds(1), Seconds(0)), 2)
    with pytest.raises(LaconicError, match="knows no tensor 'bias'"):
        seconds(other, "bsp", Network.flat(2, 1e9))
    with pytest.raises(LaconicError, match="has no links"):
        Network.from_profile(other)


def test_settings_take_profiles(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(profile().to_json())
    path = tmp_path / "net.toml"
    path.write_text('[network]\nlevels = [{bandwidth = "1Gbit"}]\n[compute]\nprofile = "p.json"\nslowness = [1, 2]\n')
    setting = VirtualSetup.read(str(path), 2)
    assert setting.compute.forward_seconds == 4.0 and setting.compute.slowness == (1.0, 2.0)
    assert setting.network.measured is None
    given = VirtualSetup.read(None, 2, str(tmp_path / "p.json"))
    assert given.compute.step_seconds == 8.0 and given.network == Network.from_profile(profile())
    assert VirtualSetup.read("100Mbit", 4, str(tmp_path / "p.json")).network == Network.flat(4, 1e8, 50e-6)
    with pytest.raises(LaconicError, match="among 2 workers, not 4"):
        VirtualSetup.read(None, 4, str(tmp_path / "p.json"))


@pytest.mark.parametrize("sentence", ["bsp", "wfbp(0)", "bf16 / sequential"])
def test_symmetric_workers_cost_the_same_on_a_measured_network(sentence: str) -> None:
    given = profile(pace=0.1)
    tensors = [
        TensorSpec("weight", (3, 4), torch.float32, "matrix"),
        TensorSpec("bias", (3,), torch.float32, "bias"),
    ]
    priced = price(sentence, tensors, Network.from_profile(given), Compute.from_profile(given), steps=3)
    assert priced.step_seconds[-1] == pytest.approx(seconds(given, sentence))
