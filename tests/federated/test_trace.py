"""When clients can be reached, from a table, and how far their links are apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from laconic.errors import LaconicError
from laconic.federated.federation import Federation
from laconic.federated.simulate import simulate
from laconic.federated.trace import read_trace

HEAD = "client,begin,end\n"


def table(folder: Path, rows: str) -> Path:
    path = folder / "reachable.csv"
    path.write_text(HEAD + rows)
    return path


def test_intervals_may_stand_in_any_order_and_some_clients_have_none(tmp_path: Path) -> None:
    trace = read_trace(table(tmp_path, "# nights\n2,8,9\n0,0,5\n2,1,3\n0,5,6\n"), 4)
    assert trace.starts.tolist() == [0, 1, 1, 3, 3], "client 0 stays"
    assert trace.until(np.arange(4), 2.0).tolist() == [6.0, 2.0, 3.0, 2.0]
    assert trace.until(np.arange(4), 8.0).tolist() == [6.0, 8.0, 9.0, 8.0]
    assert trace.next_change(5.0) == 8.0


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("", "it has no rows"),
        ("4,0,1\n", "client 4 of 4"),
        ("-1,0,1\n", "row 1: client"),
        ("0,3,3\n", "goes at 3, and comes at 3"),
        ("0,0,5\n1,0,9\n0,4,6\n", "client 0 comes at 4, and goes at 5 only"),
        ("0,soon,5\n", "row 1: begin"),
        ("0,nan,5\n", "row 1: begin"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(tmp_path: Path, rows: str, words: str) -> None:
    with pytest.raises(LaconicError, match="is no trace of clients") as refused:
        read_trace(table(tmp_path, rows), 4)
    assert words in str(refused.value) and "columns client, begin and end" in str(refused.value)


def test_a_missing_table_is_refused() -> None:
    with pytest.raises(LaconicError, match=r"there is no trace of clients at nowhere\.csv"):
        read_trace(Path("nowhere.csv"), 4)


def test_only_clients_that_the_table_has_take_part(tmp_path: Path) -> None:
    path = table(tmp_path, "".join(f"{client},0,1e6\n" for client in (1, 4, 7)))
    federation = Federation(clients=8, trace=str(path), steps=4)
    run = simulate(federation.learned, federation.population, "fedavg(clients=2)", 4, rate=0.1)
    assert {client for step in run.steps for client in step.clients} <= {1, 4, 7}


def test_links_are_spread_as_far_as_is_said() -> None:
    clients, alike = Federation(clients=900, link_spread=0.7).population, Federation(clients=900).population
    up, down = np.asarray(clients.up_bits), np.asarray(clients.down_bits)
    assert np.log(up).std() == pytest.approx(0.7, rel=0.1)
    np.testing.assert_allclose(down / up, 5.0)
    assert np.ptp(np.asarray(alike.up_bits)) == 0
    np.testing.assert_array_equal(alike.sample_seconds, clients.sample_seconds)
