"""Schedules as sentences of their own: what they prefer holds however little is written beside them."""

from __future__ import annotations

import pytest

from laconic import registry
from laconic.strategy import Sentence, Strategy

SCHEDULES = [entry.name for entry in registry.entries("schedule") if entry.kind == "word"]


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_alone_is_what_it_is_beside_bsp(name: str) -> None:
    alone, written, chained = (Strategy.parse(text) for text in (name, f"bsp / {name}", f"none / {name}"))
    assert alone == written == chained


@pytest.mark.parametrize("name", ["p3", "prophet", "ooo_backprop_dp"])
def test_schedules_for_servers_have_one_unless_another_architecture_is_needed(name: str) -> None:
    def architecture(text: str) -> str:
        sentence = Strategy.parse(text)
        assert isinstance(sentence, Sentence)
        return sentence.architecture.name

    assert architecture(name) == architecture(f"topk+ef / {name}") == "parameter_server"
    assert architecture(f"{name} / allreduce") == "allreduce"
    assert architecture(f"gossip / {name}") == architecture(f"dpsgd / {name}") == "gossip"
    for beside in ("", "bsp / "):  # its rounds among workers are none that a server carries out
        assert architecture(f"{beside}ok_topk_select / {name}") == "allreduce"
