"""Programs carried out on virtual workers: exact for integers, the same bits on all ranks, bytes as promised."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch

import laconic
from laconic.collective.chunk_memory import cuts
from laconic.collective.generators import generators, make_program
from laconic.errors import ProgramError
from laconic.network.network_tree import Level, Network
from laconic.real.connect import connect
from laconic.runtime.in_flight import InFlight, complete
from tests.cases import first_of

NAMES = [one.name for one in generators("all_reduce")]


def run(name: str, numel: int, dtype: torch.dtype) -> tuple[torch.Tensor, float]:
    """Sum a vector of this worker with the others'."""
    worker = connect()
    draw = torch.Generator().manual_seed(worker.rank)
    x = torch.randint(-99, 99, (numel,), generator=draw)
    x = x if dtype == torch.int64 else x.to(dtype) / 7
    exchange: Any = InFlight(worker.world.run(make_program(name, worker.size, worker.world.host_size), x))
    complete([exchange])
    return x, worker.ledger.sent_bytes()


@pytest.mark.parametrize("size", first_of([1, 3, 6, 2, 4, 8], 3))
@pytest.mark.parametrize("name", NAMES)
def test_integers_are_summed_exactly_and_floats_alike(name: str, size: int) -> None:
    try:
        program = make_program(name, size, size)
    except ProgramError:
        pytest.skip(f"{name} is not for {size} ranks")
    for numel in (0, 1, 17, 240):
        found = laconic.simulate(lambda n=numel: run(name, n, torch.int64), size).results
        parts = [torch.randint(-99, 99, (numel,), generator=torch.Generator().manual_seed(r)) for r in range(size)]
        assert all(torch.equal(x, sum(parts, torch.zeros(numel, dtype=torch.int64))) for x, _ in found)
        if numel == 240 and 240 % program.chunks == 0:
            assert [sent for _, sent in found] == pytest.approx((8 * 240 * program.sent_shares).tolist())
    found = laconic.simulate(lambda: run(name, 17, torch.float32), size).results
    assert all(torch.equal(x, found[0][0]) for x, _ in found)


@pytest.mark.parametrize("name", ["hierarchical", "leader", "blueconnect"])
def test_programs_for_hosts_take_the_runs_hosts(name: str) -> None:
    """Between two hosts of three, each byte of the sum crosses once in each direction: no more than is needed."""
    network = Network(6, (Level(1, 1e9), Level(3, 1e8)))
    program = make_program(name, 6, 3)
    crossing = (program.sends.source // 3) != (program.sends.destination // 3)
    assert program.shares[program.sends.chunk][crossing].sum() == pytest.approx(2.0)
    found = laconic.simulate(lambda: run(name, 12, torch.int64), 6, network=network).results
    assert all(torch.equal(x, found[0][0]) for x, _ in found)


def test_chunks_of_a_vector_differ_by_at_most_one_element() -> None:
    for numel in (0, 1, 5, 17, 100):
        bounds = cuts([1 / 7] * 7, numel)
        sizes = [b - a for a, b in pairwise(bounds)]
        assert sum(sizes) == numel and max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("name", ["ring", "double_tree", "torus", "halving_doubling"])
def test_training_with_a_program_is_training(name: str) -> None:
    def train(sentence: str) -> list[torch.Tensor]:
        torch.manual_seed(laconic.rank())
        model: Any = torch.nn.Linear(7, 5)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer = laconic.distribute(model, optimizer, sentence)
        for _ in range(3):
            model(torch.randn(3, 7)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return [p.detach().clone() for p in model.parameters()]

    plain = laconic.simulate(lambda: train("bsp"), 6).results[0]
    found = laconic.simulate(lambda: train(f"bsp / none / collective({name})"), 6).results
    for parameters in found:
        for ours, first, theirs in zip(parameters, found[0], plain, strict=True):
            assert torch.equal(ours, first)
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
