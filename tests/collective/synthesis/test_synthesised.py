"""Programs for a graph, by the method that its size allows; what was found once is read from disk, and proved again."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from laconic.collective.price import price
from laconic.collective.relation import RELATIONS
from laconic.collective.synthesis import cache
from laconic.collective.synthesis.halves import backwards
from laconic.collective.synthesis.known_hosts import sketch_of
from laconic.collective.synthesis.sketch import hosts_sketch
from laconic.collective.synthesis.synthesised import synthesis, synthesised
from laconic.errors import LaconicError
from laconic.network.graph import Graph
from laconic.network.known_graphs import switched_hosts
from tests.collective.test_programs import summed


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own for each test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "laconic" / "collectives"


def one_way(size: int = 4) -> Graph:
    """A circle in one direction, with a chord: what sends backwards needs other links than what sends forwards."""
    links = [*((r, (r + 1) % size, 8e9) for r in range(size)), (0, 2, 8e9)]
    return Graph.of(size, links, 1e-6, duplex=False)


@pytest.mark.parametrize("collective", RELATIONS)
def test_every_collective_keeps_to_the_links_of_its_graph(collective: str) -> None:
    graph = one_way()
    program = synthesised(graph, collective, 1e6)
    assert program.relation.same_as(RELATIONS[collective](4, program.chunks))
    links = set(map(tuple, graph.ends.tolist()))
    assert set(zip(program.sends.source.tolist(), program.sends.destination.tolist(), strict=True)) <= links
    if collective == "all_reduce":
        vectors = np.random.default_rng(4).integers(-99, 99, (4, program.chunks))
        np.testing.assert_array_equal(summed(program, vectors), np.broadcast_to(vectors.sum(axis=0), vectors.shape))


def test_small_vectors_get_fewer_steps_and_large_ones_more_bandwidth() -> None:
    """Ranks across a square reach each other at once over a slow link, or in two steps over fast ones."""
    graph = Graph.of(4, [*((r, (r + 1) % 4, 32e9) for r in range(4)), (0, 2, 8e9), (1, 3, 8e9)], 1e-5)
    small, large = (synthesis(graph, "all_gather", nbytes, seconds=5) for nbytes in (1e2, 1e8))
    assert small.method == large.method == "sccl"
    assert small.program.steps < large.program.steps
    for nbytes, ours, other in ((1e2, small, large), (1e8, large, small)):
        assert ours.bound_seconds <= price(ours.program, nbytes, graph).seconds * (1 + 1e-9)
        assert price(ours.program, nbytes, graph).seconds < price(other.program, nbytes, graph).seconds


@pytest.mark.long
def test_larger_graphs_are_solved_in_stages() -> None:
    graph = switched_hosts(2, 8, 8)
    said: list[str] = []
    found = synthesis(graph, "all_reduce", 1e3, progress=said.append)
    assert found.method == "taccl" and said
    assert found.bound_seconds <= price(found.program, 1e3, graph).seconds
    far = found.program.sends.source // 8 != found.program.sends.destination // 8
    assert far.sum() == 2 * 16


def test_hosts_are_seen_where_ways_are_fast() -> None:
    relation = RELATIONS["all_gather"](8, 8)
    assert sketch_of(switched_hosts(2, 4, 4), relation) == hosts_sketch(2, 4)
    shared = sketch_of(switched_hosts(2, 4, 2), relation)
    assert shared.ways == hosts_sketch(2, 4).ways and shared.turns == ((4, 8),)
    star = Graph.of(8, [(rank, 8, 8e9) for rank in range(8)])
    assert len(sketch_of(star, relation).ways) == 56 and sketch_of(star, relation).turns == ((1, 8),)


def test_too_many_ranks_and_unknown_collectives_are_refused() -> None:
    with pytest.raises(LaconicError, match="40 ranks are too many for a solver, which takes up to 32"):
        synthesised(Graph.of(40, [(r, (r + 1) % 40, 8e9) for r in range(40)]), "all_reduce", 1e6)
    with pytest.raises(LaconicError, match="no collective 'all_reuse'; write one of all_reduce"):
        synthesised(one_way(), "all_reuse", 1e6)


def test_what_was_found_is_read_again(folder: Path) -> None:
    graph = one_way()
    found = synthesis(graph, "all_gather", 1e6)
    (path,) = folder.iterdir()
    facts = json.loads(path.read_text())
    path.write_text(json.dumps({**facts, "method": "read from disk"}))
    again = synthesis(graph, "all_gather", 1e6)
    assert again.method == "read from disk" and again.program == found.program
    assert again.bound_seconds == found.bound_seconds > 0


@pytest.mark.parametrize("damage", ["cut off", "a send less", "another chunk", "another rank", "no sends", "a list"])
def test_a_damaged_file_is_not_believed(folder: Path, damage: str) -> None:
    graph = one_way()
    found = synthesis(graph, "all_reduce", 1e6)
    (path,) = folder.iterdir()
    text, facts = path.read_text(), json.loads(path.read_text())
    rows = facts["sends"]
    changed = {
        "cut off": text[: len(text) // 2],
        "a send less": json.dumps({**facts, "sends": rows[:-1]}),
        "another chunk": json.dumps({**facts, "sends": [*rows[:-1], [*rows[-1][:3], (rows[-1][3] + 1) % 4, 0]]}),
        "another rank": json.dumps({**facts, "sends": [*rows[:-1], [rows[-1][0], 9, *rows[-1][2:]]]}),
        "no sends": json.dumps({key: value for key, value in facts.items() if key != "sends"}),
        "a list": "[]",
    }[damage]
    path.write_text(changed)
    assert cache.read(path.stem, graph, "all_reduce") is None
    assert synthesis(graph, "all_reduce", 1e6).program == found.program
    assert path.read_text() == text


def test_another_link_is_another_question() -> None:
    graph = one_way()
    names = {
        cache.digest(graph, "all_reduce", 1e6),
        cache.digest(graph, "all_gather", 1e6),
        cache.digest(graph, "all_reduce", 2e6),
        cache.digest(graph.without([(0, 2)]), "all_reduce", 1e6),
        cache.digest(Graph(4, graph.ends, graph.bits_per_second * 2, graph.latency_seconds), "all_reduce", 1e6),
        cache.digest(Graph(4, graph.ends, graph.bits_per_second, graph.latency_seconds * 2), "all_reduce", 1e6),
    }
    assert len(names) == 6
    turned = backwards(backwards(graph))
    assert cache.digest(turned, "all_reduce", 1e6) in names


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert synthesised(one_way(), "broadcast", 1e3).relation.name == "broadcast"
