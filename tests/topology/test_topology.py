"""Mixing weights check themselves, show their spectrum, and sentences find them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from laconic import registry
from laconic.cli.app import app
from laconic.errors import LaconicError, StrategyError
from laconic.strategy import Sentence, Strategy, Word
from laconic.topology.mixing import Mixing, metropolis, push_weights

WORDS = [entry.name for entry in registry.entries("topology")]


def mixing(text: str, workers: int) -> Mixing:
    sentence = Strategy.parse(text)
    assert isinstance(sentence, Sentence) and sentence.topology is not None
    made: Mixing = sentence.topology.make().mixing(workers)
    return made


# ------------------------------------------------------------------------------------------------ words


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("workers", [1, 2, 3, 4, 5, 7, 8, 12, 17])
def test_every_graph_lays_itself_out_among_any_number_of_workers(word: str, workers: int) -> None:
    made = Word(word).make().mixing(workers)
    assert made.size == workers and made.stochastic == "doubly"
    assert 0 <= made.rho < 1 and 0 < made.gap <= 1
    assert made is Word(word).make().mixing(workers)  # virtual workers share it
    with pytest.raises(ValueError, match="read-only"):
        made.at(0)[0, 0] = 2.0


def test_spectra_that_are_known() -> None:
    for workers in (4, 8, 16, 33):
        ring = mixing("ring", workers)
        expected = sorted(((1 + 2 * math.cos(2 * math.pi * k / workers)) / 3 for k in range(workers)), reverse=True)
        np.testing.assert_allclose(ring.eigenvalues, expected, atol=1e-12)
        assert ring.rho == pytest.approx(max(abs(expected[1]), abs(expected[-1])) ** 2)
        assert mixing("complete", workers).rho == pytest.approx(0, abs=1e-20)
    for workers in (6, 8, 16, 50, 64):  # Ying et al., NeurIPS 2021, proposition 1
        assert mixing("exponential", workers).gap == pytest.approx(2 / (1 + math.ceil(math.log2(workers))))
    for power in (1, 2, 3, 6):
        assert mixing("one_peer", 2**power).gap == 1 and mixing("one_peer", 2**power).period == power
    for m in (3, 8):  # elastic averaging's best matrix: Wang and Joshi, JMLR 2021
        assert mixing(f"star({2 / (m + 2)})", m + 1).rho ** 0.5 == pytest.approx(m / (m + 2))


def test_neighbours_are_who_they_should_be() -> None:
    assert mixing("torus", 12).edges[:4] == ((0, 1), (0, 3), (0, 4), (0, 8))  # 3 × 4
    assert mixing("torus", 16).degree == 4 and mixing("ring", 2).degree == 1
    assert mixing("torus", 7).edges == mixing("ring", 7).edges
    one_peer = mixing("one_peer", 8)
    for step in range(6):
        receivers = [int(np.flatnonzero(one_peer.at(step)[:, i] * (np.arange(8) != i))[0]) for i in range(8)]
        assert receivers == [(i + 2 ** (step % 3)) % 8 for i in range(8)]
    pairs = mixing("random_matching", 9)
    assert all(((matrix > 0).sum(axis=0) <= 2).all() for matrix in pairs.rounds)
    assert len({matrix.tobytes() for matrix in pairs.rounds}) > 16
    again = Word("random_matching").make()
    assert not np.array_equal(again.mixing(9, seed=1).at(0), again.mixing(9, seed=2).at(0))


@pytest.mark.long
@given(size=st.integers(2, 12), data=st.data())
def test_metropolis_weights_bring_any_connected_graph_together(size: int, data: st.DataObject) -> None:
    tree = [(data.draw(st.integers(0, i - 1)), i) for i in range(1, size)]
    more = data.draw(st.lists(st.tuples(st.integers(0, size - 1), st.integers(0, size - 1)), max_size=20))
    edges = {(min(e), max(e)) for e in [*tree, *more] if e[0] != e[1]}
    text = ",".join(f"{a}-{b}" for a, b in sorted(edges))
    word = Word.of("edges", text)
    assert Strategy.parse(str(Sentence.of(word))) == Sentence.of(word)
    made = word.make().mixing(size)
    np.testing.assert_allclose(made.at(0), metropolis(size, edges))
    assert made.is_symmetric and set(made.edges) == edges
    assert made.rho == pytest.approx(max(abs(made.lambda_2), abs(made.lambda_min)) ** 2, abs=1e-9) and made.rho < 1
    far = np.linalg.matrix_power(made.at(0), 4000)
    assert made.rho**2000 > 1e-6 or np.allclose(far, 1 / size, atol=1e-2)


@pytest.mark.long
@given(size=st.integers(2, 9), data=st.data())
def test_arrows_keep_the_sum_and_agree_in_proportion(size: int, data: st.DataObject) -> None:
    round_trip = [(i, (i + 1) % size) for i in range(size)]
    more = data.draw(st.lists(st.tuples(st.integers(0, size - 1), st.integers(0, size - 1)), max_size=12))
    arrows = [*round_trip, *(e for e in more if e[0] != e[1])]
    made = Mixing((push_weights(size, arrows),), "column")
    np.testing.assert_allclose(made.at(0).sum(axis=0), 1)
    far = np.linalg.matrix_power(made.at(0), 2000)  # push-sum: every column the same
    np.testing.assert_allclose(far, np.tile(far[:, :1], size), atol=1e-6)


# ------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    "matrices,kind,reason",
    [
        ([], "doubly", "at least one matrix"),
        ([[[1.0, 0.0]]], "doubly", "shape"),
        ([[[float("nan"), 1.0], [1.0, 0.0]]], "doubly", "no numbers"),
        ([[[1.5, -0.5], [-0.5, 1.5]]], "doubly", "weight -0.5"),
        ([[[0.5, 0.4], [0.4, 0.5]]], "doubly", "row 0 of step 0's mixing matrix sums to 0.9"),
        ([[[0.5, 0.5], [0.6, 0.4]]], "doubly", "column 0"),
        ([[[0.5, 0.6], [0.5, 0.5]]], "column", "column 1"),
        ([[[0.5, 0.5], [0.6, 0.5]]], "row", "row 1"),
        ([np.eye(3)], "doubly", "worker 1 and worker 0 never reach each other"),
        ([[[1.0, 0.5], [0.0, 0.5]]], "column", "never reach"),
        ([[[0.0, 1.0], [1.0, 0.0]]], "doubly", "never bring workers together"),
    ],
)
def test_wrong_weights_cannot_exist(matrices: list[Any], kind: Any, reason: str) -> None:
    with pytest.raises(LaconicError, match=reason):
        Mixing(tuple(matrices), kind)


def test_a_graph_need_only_be_connected_over_its_period() -> None:
    a, b = metropolis(3, [(0, 1)]), metropolis(3, [(1, 2)])
    assert Mixing((a, b)).period == 2
    for half in (a, b):
        with pytest.raises(LaconicError, match="never reach"):
            Mixing((half,))


@pytest.mark.parametrize(
    "text,reason",
    [
        ('edges("0-1,2")', "is no edge"),
        ('edges("0-1,1>2")', 'all "-" or all ">"'),
        ('edges("0-0")', "itself"),
        ("star(1.5)", "below 1"),
    ],
)
def test_wrong_graphs_are_refused_as_they_are_written(text: str, reason: str) -> None:
    with pytest.raises(StrategyError, match=reason):
        Strategy.parse(text)


def test_graphs_that_do_not_fit_the_workers_are_refused() -> None:
    with pytest.raises(StrategyError, match="names worker 4, and there are 3"):
        mixing('edges("0-1,1-4")', 3)
    with pytest.raises(LaconicError, match="never reach"):
        mixing('edges("0-1,2-3")', 4)
    with pytest.raises(LaconicError, match="never bring"):
        mixing("star(0.9)", 5)


# ------------------------------------------------------------------------------------------------ sentences


@pytest.mark.parametrize(
    "text,whole",
    [
        ("dpsgd", "dpsgd / none / gossip / ring"),
        ("gossip", "dpsgd / none / gossip / ring"),
        ("torus", "dpsgd / none / gossip / torus"),
        ("sgp", "sgp / none / gossip / one_peer_exponential"),
        ("sgp / ring", "sgp / none / gossip / ring"),
        ("d2 / bf16", "d2 / cast_bf16 / gossip / ring"),
        ("bsp", "bsp / none / allreduce"),
    ],
)
def test_words_bring_what_they_need(text: str, whole: str) -> None:
    assert str(Strategy.parse(text)) == whole


@pytest.mark.parametrize(
    "text,reason",
    [
        ("dpsgd / allreduce", "neighbours to mix with"),
        ("bsp / gossip", "means over all workers"),
        ("bsp / allreduce / ring", "ring needs the architecture gossip"),
        ("dpsgd / bf16+ef", "dpsgd needs the compression"),
    ],
)
def test_words_that_cannot_go_together_are_refused(text: str, reason: str) -> None:
    with pytest.raises(StrategyError, match=reason):
        Strategy.parse(text)


def test_a_price_is_the_degree() -> None:
    sentence = Strategy.parse("dpsgd / torus")
    assert isinstance(sentence, Sentence) and sentence.topology is not None
    gossip = sentence.architecture.make()
    assert gossip.over(sentence.topology.make()).sent_bytes(100, 16) == 400
    with pytest.raises(LaconicError, match="depends on the topology"):
        gossip.sent_bytes(100, 16)


@pytest.mark.long
def test_the_command_shows_facts() -> None:
    shown = CliRunner().invoke(app, ["mixing", "ring", "star(0.1)", "--workers", "8", "--workers", "16", "--matrix"])
    assert shown.exit_code == 0, shown.output
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in shown.output.splitlines() if "|" in line]
    assert cells[2] == ["ring", "8", "2", "2", "1", "0.8047", "-0.3333", "0.6476", "0.1953"]
    assert [row[:2] for row in cells[2:]] == [["ring", "8"], ["ring", "16"], ["star(0.1)", "8"], ["star(0.1)", "16"]]
    assert "ring, 8 workers, step 0 of 1" in shown.output
    everything = CliRunner().invoke(app, ["mixing"])
    assert all(word in everything.output for word in WORDS)
    assert isinstance(CliRunner().invoke(app, ["mixing", "bsp"]).exception, StrategyError)
    assert "two neighbours each" in CliRunner().invoke(app, ["show", "ring"]).output


@pytest.mark.parametrize(
    ("workers", "says"), [("0", "at least one worker"), ("-3", "at least one"), ("9999999", "at most")]
)
def test_numbers_of_workers_that_make_no_sense(workers: str, says: str) -> None:
    result = CliRunner().invoke(app, ["mixing", "ring", "--workers", workers])
    assert isinstance(result.exception, LaconicError) and says in str(result.exception)
