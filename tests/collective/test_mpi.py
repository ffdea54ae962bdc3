"""MPI's collectives are their relations, whichever program carries them out and however long blocks are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import laconic
from laconic.collective.choose import candidates, choose, select
from laconic.collective.execute import execute_blocks
from laconic.collective.generators import generators
from laconic.collective.mpi import OF_RANKS, ROOTED, at_root, chunk_counts, collective
from laconic.collective.price import price
from laconic.collective.program import Program
from laconic.collective.relation import RELATIONS
from laconic.errors import ProgramError
from laconic.network import datacenter_graphs as graphs
from laconic.network.network_tree import Level, Network
from laconic.network.routes import Links
from laconic.real.connect import connect
from laconic.runtime.in_flight import InFlight, complete
from tests.cases import first_of
from tests.collective.test_programs import FEWER


def lengths(relation: str, size: int, block: int | None) -> list[int]:
    """Equal blocks of so many elements, or unequal ones, some of them empty."""
    number = {"all_to_all": size * size}.get(relation, size if relation in OF_RANKS else 1)
    if block is not None:
        return [block] * number
    return np.random.default_rng(size).integers(0, 9, number).tolist()


def random(counts: list[int], size: int, relation: str, root: int) -> list[Tensor]:
    """What each rank gives."""
    draw = torch.Generator().manual_seed(size)

    def numbers(count: int) -> Tensor:
        return torch.randint(-99, 99, (count,), generator=draw)

    if relation == "all_to_all":
        return [numbers(sum(counts[rank * size : (rank + 1) * size])) for rank in range(size)]
    if relation in ("all_gather", "gather"):
        return [numbers(count) for count in counts]
    if relation in ("broadcast", "scatter"):
        return [numbers(sum(counts) if rank == root else 0) for rank in range(size)]
    return [numbers(sum(counts)) for _ in range(size)]


def expected(given: list[Tensor], counts: list[int], relation: str, root: int) -> list[Tensor]:
    """What each rank has after, by the definition of the collective."""
    size, none = len(given), torch.empty(0, dtype=torch.int64)

    def at_the_root(x: Tensor) -> list[Tensor]:
        return [x if rank == root else none for rank in range(size)]

    results: dict[str, Callable[[], list[Tensor]]] = {
        "all_reduce": lambda: [torch.stack(given).sum(0)] * size,
        "reduce": lambda: at_the_root(torch.stack(given).sum(0)),
        "broadcast": lambda: [given[root]] * size,
        "all_gather": lambda: [torch.cat(given)] * size,
        "gather": lambda: at_the_root(torch.cat(given)),
        "scatter": lambda: list(given[root].split(counts)),
        "reduce_scatter": lambda: list(torch.stack(given).sum(0).split(counts)),
        "all_to_all": lambda: [
            torch.cat([given[i].split(counts[i * size : (i + 1) * size])[j] for i in range(size)]) for j in range(size)
        ],
    }
    return results[relation]()


def completed(communication: Any) -> Tensor:
    exchange: Any = InFlight(communication)
    complete([exchange])
    return exchange.result


def made(relation: str, size: int) -> list[Program]:
    return [one.make(size) for one in generators(relation) if size in FEWER.get(one.name, [size])]


@pytest.mark.technique("mpi", check=1)
@pytest.mark.parametrize("size", first_of([1, 3, 8, 2, 4, 5, 6, 7, 9], 3))
@pytest.mark.parametrize("relation", RELATIONS)
def test_each_collective_is_its_relation(relation: str, size: int) -> None:
    """By every generator, with blocks of 0, 1 and 17 elements and unequal ones, from the first and the last root."""
    roots = [0, size - 1] if relation in ROOTED else [0]
    cases = [
        (at_root(program, root) if root else program, root, lengths(relation, size, block))
        for program in made(relation, size)
        for root in dict.fromkeys(roots)
        for block in (0, 1, 17, None)
    ]
    given = [random(counts, size, relation, root) for _, root, counts in cases]

    def work() -> list[Tensor]:
        worker = connect()
        return [
            completed(execute_blocks(program, mine[worker.rank], chunk_counts(program, counts), worker.world))
            for (program, _, counts), mine in zip(cases, given, strict=True)
        ]

    found = laconic.simulate(work, size).results
    for k, (program, root, counts) in enumerate(cases):
        for rank, there in enumerate(expected(given[k], counts, relation, root)):
            assert torch.equal(found[rank][k], there), (program, root, counts, rank)


MESSAGE = 20e-6

NETWORKS: dict[str, Callable[[int], Links]] = {
    "a switch": lambda size: Network.flat(size, 1e9, 50e-6),
    "two hosts": lambda size: Network(size, (Level(1, 1e10, 5e-6), Level(-(-size // 2), 1e9, 50e-6))),
    "a ring of links": lambda size: graphs.torus([size], 1e9, 10e-6),
}


@pytest.mark.technique("mpi", check=2)
@pytest.mark.parametrize("size", [2, 3, *(pytest.param(size, marks=pytest.mark.long) for size in (6, 8))])
@pytest.mark.parametrize("relation", ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"])
@pytest.mark.parametrize("network", NETWORKS)
def test_the_table_takes_what_is_cheapest(network: str, relation: str, size: int) -> None:
    """For sizes at which the table was not made, it is within 1 % of the best and no slower than the worst."""
    links = NETWORKS[network](size)
    table, fixed = select(relation, links, MESSAGE), candidates(relation, links)
    assert list(table.limits) == sorted(table.limits) and len(table.limits) == len(table.programs) - 1
    for nbytes in [10.0, 3e3, 9e4, 1.1e6, 7e8, *(limit * factor for limit in table.limits for factor in (0.95, 1.05))]:
        seconds = [price(program, nbytes, links, MESSAGE).seconds for program in fixed]
        found = price(table.at(nbytes), nbytes, links, MESSAGE).seconds
        assert found <= 1.01 * min(seconds) and found <= max(seconds)
    if relation == "all_reduce" and size == 8:  # no program is the best at all sizes
        assert len(table.programs) > 1


@pytest.mark.technique("mpi", check=2)
def test_small_vectors_take_few_steps_and_large_ones_few_bytes() -> None:
    """On a switch: recursive doubling for short all-reduces, the least bytes for long ones; Bruck for short
    all-to-alls, blocks sent once for long ones."""
    links = Network.flat(16, 1e9, 50e-6)
    assert choose("all_reduce", 64, links, MESSAGE).name == "recursive_doubling"
    assert choose("all_reduce", 1e9, links, MESSAGE).sent_shares.max() == pytest.approx(2 * 15 / 16)
    assert choose("all_to_all", 64, links, MESSAGE).name == "bruck"
    assert choose("all_to_all", 1e9, links, MESSAGE).sent_shares.max() == pytest.approx(15 / 16)
    short, long = (choose("broadcast", nbytes, links, MESSAGE) for nbytes in (64, 1e9))
    assert short.name == "binomial_broadcast" and long.name == "scatter_gather_broadcast"
    with pytest.raises(laconic.LaconicError, match="no generator makes a program for all_sorts among 16 ranks"):
        choose("all_sorts", 1.0, links)


@pytest.mark.technique("mpi", check=1)
def test_collectives_are_carried_out_by_the_table() -> None:
    """An all-to-all and a reduction to rank 2 of five, of a length at which the table changes its mind."""
    links = Network.flat(5, 1e8, 50e-6)
    for relation, root in (("all_to_all", 0), ("reduce", 2), ("scatter", 4)):
        table = select(relation, links, MESSAGE)
        for block in (3, 4000):
            counts = lengths(relation, 5, block)
            given = random(counts, 5, relation, root)

            def work(table: Any = table, given: Any = given, counts: Any = counts, root: int = root) -> Tensor:
                worker = connect()
                return completed(collective(table, given[worker.rank], counts, worker.world, root))

            found = laconic.simulate(work, 5).results
            assert all(map(torch.equal, found, expected(given, counts, relation, root)))


def test_wrong_counts_are_refused() -> None:
    program = made("all_gather", 3)[0]
    with pytest.raises(ProgramError, match="has 3 blocks, not 2"):
        chunk_counts(program, [1, 2])
    with pytest.raises(ProgramError, match="cannot have its root at 1"):
        at_root(program, 1)

    def work(counts: list[int]) -> Tensor:
        return completed(execute_blocks(program, torch.zeros(4), counts, connect().world))

    for counts, reason in (([4, 4], "each of which needs a count"), ([4, 5, 4], "rank 1 gives 4 elements")):
        with pytest.raises(laconic.LaconicError, match=reason):
            laconic.simulate(lambda counts=counts: work(counts), 3)
