"""Techniques from outside: what they declare is all that the planner needs to try, price, judge and show them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
from torch import Tensor

from laconic import registry
from laconic.architecture.ps import ParameterServer
from laconic.compression.base import Compressor, Exchange, Outcome, State
from laconic.network.network_tree import Level, Network
from laconic.planner.advise import advise
from laconic.planner.candidates import candidates, chains
from laconic.planner.codec_times import nearest_timed
from laconic.planner.deployment import Deployment
from laconic.planner.guarantee import guarantee_of
from laconic.planner.loss_budget import strategies_within
from laconic.planner.preferences import Preferences
from laconic.planner.price import Pricer
from laconic.planner.risk import Training
from laconic.planner.values import PlanError
from laconic.registry import knob, technique
from laconic.schedule.wfbp import WFBP
from laconic.strategy import Sentence, Strategy, Word
from laconic.sync.base import Sync
from laconic.values.cadence import Cadence
from laconic.values.profile import CodecTimes
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet
from tests.planner.test_price import PROFILE

CODECS = (
    CodecTimes("sign_sgd", 1e-6, 1e-12, 1e-6, 1e-12),
    CodecTimes("topk+error_feedback", 1e-3, 1e-9, 1e-3, 1e-9),
    CodecTimes("power_sgd+error_feedback", 1e-4, 1e-10, 1e-4, 1e-10),
)
DEPLOYMENT = Deployment(replace(PROFILE, codecs=CODECS), Network.flat(4, 1e7, 1e-4), 4)


@dataclass(frozen=True)
class Firsts(Compressor):
    """Send the first share of the values."""

    cost: ClassVar[str] = "matmul"
    keep: float = knob(0.5, above=0, high=1, gentler="more")

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        return Outcome((yield meet.mean(x)), state)

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return int(self.keep * spec.nbytes)

    def contraction(self, spec: TensorSpec) -> float | None:
        return self.keep


@dataclass(frozen=True)
class Rarely(Sync):
    """Average every `gap` steps, or while computing goes on."""

    gap: int = knob(4, low=1, gentler="less")
    pace: str = knob("common")

    @property
    def cadence(self) -> Cadence:
        return Cadence(self.gap, overlaps=False, pace=self.pace)  # type: ignore[arg-type]

    @property
    def guarantee(self) -> str:
        return f"rarely: once in {self.gap}"


@dataclass(frozen=True)
class OneMessage(WFBP):
    """All gradients in one message."""


@dataclass(frozen=True)
class Silent(Sync):
    """A rule that declares nothing."""


@pytest.fixture
def strangers() -> Iterator[None]:
    with registry.temporary():
        technique("firsts", paper="none", worth_trying=["firsts(0.25)+ef", "firsts"])(Firsts)
        technique("rarely", paper="none", worth_trying=["rarely(5)"])(Rarely)
        technique("one_message", paper="none", worth_trying=["one_message"])(OneMessage)
        yield


@pytest.mark.usefixtures("strangers")
def test_what_a_stranger_declares_is_tried_with_everything_that_suits_it() -> None:
    found = set(map(str, candidates(DEPLOYMENT)))
    assert "firsts(0.25)+error_feedback" in chains()
    assert chains().index("cast_fp16") < chains().index("firsts(0.25)+error_feedback")  # larger payloads first
    assert {
        "bsp / firsts / allreduce",
        "local_sgd / firsts(0.25)+error_feedback / allreduce",
        "rarely(5) / none / allreduce",
        "rarely(5) / firsts / allreduce",
        "bsp / none / allreduce / one_message",
    } <= found
    within = strategies_within(10.0, Training("classifier", "sgd", 4, 38_282))
    assert within and not any("firsts" in text or "rarely" in text for text in within)  # nobody measured it


@pytest.mark.usefixtures("strangers")
def test_advice_shows_what_nobody_has_measured_and_never_recommends_it() -> None:
    tried = [text for text in map(str, candidates(DEPLOYMENT)) if "firsts" in text or "rarely" in text]
    found = advise(DEPLOYMENT, "a model", "a network", Preferences(loss_budget=10.0), ["bsp", *tried])
    rows = {option.strategy: option for option in found.options}
    mine = rows["bsp / firsts(0.25)+error_feedback / allreduce"]
    assert mine.risk is None and mine.coding_seconds > 0
    assert mine.guarantee == "contraction (δ = 0.25) with error feedback: SGD's rate after a burn-in of order 1/δ"
    assert rows["rarely(5) / none / allreduce"].guarantee == "rarely: once in 5"
    assert "firsts" not in found.best.strategy and "rarely" not in found.best.strategy
    notes = [note for note in found.notes if "firsts" in note]
    assert notes and all("was not timed" in note and "power_sgd" in note for note in notes)  # it has the same cost
    assert not any("firsts" in note for note in advise(DEPLOYMENT, "", "", consider=["bsp"]).notes)


@pytest.mark.usefixtures("strangers")
def test_times_are_those_of_the_nearest_compressor_that_was_timed() -> None:
    def nearest(chain: str) -> str:
        sentence = Strategy.parse(chain)
        assert isinstance(sentence, Sentence)
        found = nearest_timed(sentence.compression, CODECS)
        assert found is not None
        return found.words

    assert nearest("flat+topk") == nearest("sidco") == "topk+error_feedback"  # the same word, the same way to meet
    assert nearest("firsts") == "power_sgd+error_feedback"  # the same cost
    assert nearest("terngrad") == "sign_sgd"
    assert nearest_timed(Sentence.of(Word("topk")).compression, ()) is None


@pytest.mark.usefixtures("strangers")
def test_a_cadence_is_a_price() -> None:
    pricer = Pricer(DEPLOYMENT)
    for rule, like in (("rarely(8)", "local(8)"), ("rarely(1)", "diloco(1)")):
        assert pricer.price(f"{rule} / topk+ef") == pricer.price(f"{like} / topk+ef")
    every, fourth = (pricer.price(f"rarely({gap})") for gap in (1, 4))
    assert fourth.sent_bytes == every.sent_bytes / 4
    sites = Pricer(replace(DEPLOYMENT, network=Network(4, (Level(1, 1e9), Level(2, 1e7)))))
    every, fourth, never = (sites.price(f"[bsp]@node > [accumulate({n})]@site").seconds for n in (1, 4, 10**9))
    assert fourth == pytest.approx(never + (every - never) / 4)
    with pytest.raises(PlanError, match="closed form"):
        pricer.price("rarely(1, pace=own)")  # without a server nobody can go ahead
    with pytest.raises(PlanError, match="closed form"):
        pricer.price("adacomm(4)")  # its period changes


def test_a_rule_that_declares_nothing_is_neither_exact_nor_priced() -> None:
    with registry.temporary():
        technique("silent", paper="none")(Silent)
        assert guarantee_of("silent") == (False, "silent: no guarantee declared")
        with pytest.raises(PlanError, match="closed form"):
            Pricer(DEPLOYMENT).price("silent")
    with registry.temporary():
        technique("silent", paper="none", worth_trying=["silent"])(Silent)
        with pytest.raises(PlanError, match="`silent` is declared to be worth trying, but without a `cadence`"):
            list(candidates(DEPLOYMENT))


def test_a_setting_that_is_no_strategy_is_refused_by_its_author_s_name() -> None:
    with registry.temporary():
        technique("bad", paper="none", worth_trying=["bad(2)"])(Firsts)
        with pytest.raises(PlanError, match=r"test_strangers\.Firsts declares `bad\(2\)` to be worth trying: "):
            list(candidates(DEPLOYMENT))


def test_servers_are_declared() -> None:
    assert ParameterServer(3).servers == 3 and ParameterServer().on_hosts(5).servers == 5
    deployment = replace(DEPLOYMENT, network=Network.flat(6, 1e7, 1e-4), servers=2)
    served = [str(one) for one in candidates(deployment) if "parameter_server" in str(one)]
    assert served and all("parameter_server(2)" in text for text in served)
