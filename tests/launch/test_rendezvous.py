"""How several hosts meet: each has its number, one that died while it waited has none, and nothing is unpickled."""

from __future__ import annotations

import pickle
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous import RendezvousTimeoutError

from laconic.launch.rendezvous import FixedRendezvous
from laconic.launch.run_store import open_store, open_store_if_free


def connected(store: TCPStore) -> TCPStore:
    return TCPStore("127.0.0.1", store.port, is_master=False, wait_for_workers=False)


def test_a_store_listens_at_its_own_address_alone() -> None:
    store = open_store("127.0.0.1")
    connected(store).set("key", "value")
    assert store.get("key") == b"value"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", store.port), timeout=5)
    assert open_store_if_free("127.0.0.1", store.port) is None


def test_hosts_meet_again_and_again_and_the_dead_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickle, "loads", lambda data: pytest.fail("something from the store was unpickled"))
    store = open_store("127.0.0.1")
    store.add("arrivals", 1)  # a host that died before its first beat
    places = [FixedRendezvous(store if n == 0 else connected(store), n == 0, 3, f"10.0.0.{n}", 30) for n in range(3)]
    with ThreadPoolExecutor(3) as hosts:
        for attempt in range(2):
            met = list(hosts.map(FixedRendezvous.next_rendezvous, places))
            assert met[0].rank == 0 and {info.rank for info in met} == {0, 1, 2}
            assert {info.world_size for info in met} == {3}
            assert not met[2].store.check(["who"]), "a store of an earlier attempt"
            met[1].store.set("who", f"attempt {attempt}")
            assert met[2].store.get("who") == met[0].store.get("who") == f"attempt {attempt}".encode()


def test_hosts_that_never_come_are_waited_for_no_longer_than_asked() -> None:
    store = open_store("127.0.0.1")
    for is_host in (True, False):
        with pytest.raises(RendezvousTimeoutError):
            FixedRendezvous(store, is_host, 2, "127.0.0.1", join_seconds=0.0).next_rendezvous()
