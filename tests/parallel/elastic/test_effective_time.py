"""Effective time under failures, with the throughputs and overheads that Oobleck's authors measured on BERT-Large.

The figures (samples a second on 30 down to 15 nodes, batch 8192, restart and checkpoint times, the share of Bamboo's
computing that is not redundant, a failure every 601.2 s) are those of the simulator that belongs to the paper (Jang et
al., SOSP 2023; SymbioticLab/Oobleck, tools/simulator).
"""

from __future__ import annotations

import pytest

from laconic.parallel.elastic.effective_time import Recovery, replay_failures

OOBLECK = (
    368.2, 362.2, 328.4, 327.8, 329.1, 307.2, 304.5, 278.5, 285.8, 260.3, 261.7, 243.6, 228.1, 209.2, 214.8, 192.3,
)  # fmt: skip
VARUNA = (
    343.1, 331.7, 329.6, 326.5, 306.0, 298.4, 290.0, 280.1, 267.9, 255.7, 243.5, 233.0, 222.4, 211.8, 202.6, 193.4,
)  # fmt: skip
BAMBOO = (119.3, *[99.4] * 6, *[74.5] * 6, *[49.7] * 3)
VARUNA_RESTART = (
    71.3, 67.6, 67.6, 49.1, 112.0, 108.3, 104.6, 100.9, 97.2, 93.5, 89.8, 86.1, 82.4, 78.7, 75.0, 71.3,
)  # fmt: skip
FAILURES = [601.2 * k for k in range(1, 15)]
END = 601.2 * 15


def by_nodes(values: tuple[float, ...], more: float = 0.0) -> dict[int, float]:
    return {30 - k: value + more for k, value in enumerate(values)}


SYSTEMS = {
    "oobleck": Recovery(by_nodes(OOBLECK), 8192, {30: 2.0}),
    "varuna": Recovery(by_nodes(VARUNA), 8192, by_nodes(VARUNA_RESTART, 10.0), 10, 15.8),
    "bamboo": Recovery(by_nodes(BAMBOO), 8192, {30: 76.0}, useful_share=0.1971),
}


@pytest.mark.technique("oobleck", check=3)
@pytest.mark.evidence("oobleck")
@pytest.mark.parametrize(("system", "published"), [("oobleck", 0.95), ("varuna", 0.54), ("bamboo", 0.15)])
def test_the_published_shares_of_effective_time(system: str, published: float) -> None:
    found = replay_failures(SYSTEMS[system], 30, FAILURES, END)
    assert found.effective == pytest.approx(published, abs=0.05), found
    total = found.effective + found.redundant + found.lost + found.checkpointing + found.restarting
    assert total == pytest.approx(1)


def test_a_small_history_by_hand() -> None:
    """Steps of 10 s, a checkpoint of 1 s every 2 steps, a failure at 45 s: two steps since the checkpoint at 21 s are
    lost, and the third is not finished."""
    recovery = Recovery({4: 1.0, 3: 0.5}, 10, {4: 5.0}, 2, 1.0)
    found = replay_failures(recovery, 4, [45.0], 100.0)
    # 0-20 two steps, 20-21 saved, 21-41 two steps, 41-42 saved, 42-45 begun, 45-50 restart, 50-70 step, saved, ...
    assert found.checkpointing == pytest.approx(0.04)
    assert found.restarting == pytest.approx(0.05)
    assert found.effective == pytest.approx(0.80)
    assert found.lost == pytest.approx(0.11)


def test_without_failures_only_checkpoints_cost() -> None:
    found = replay_failures(SYSTEMS["oobleck"], 30, [], END)
    assert found.effective + found.lost == pytest.approx(1) and found.restarting == 0 == found.checkpointing
    assert found.lost * END < SYSTEMS["oobleck"].step_seconds(30)
