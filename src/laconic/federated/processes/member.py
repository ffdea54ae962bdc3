"""A process of a federated run: `python -m laconic.federated.processes.member FOLDER NUMBER`; the server is -1."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

import msgspec
import torch

from laconic.federated.client_memory import OnDisk
from laconic.federated.federation import Federation
from laconic.federated.processes.client import ClientProcess
from laconic.federated.processes.coordinator import ADDRESS, Coordinator
from laconic.federated.strategy import FederatedStrategy
from laconic.files import write_text
from laconic.rpc.directory import FileDirectory
from laconic.rpc.endpoint import Endpoint
from laconic.rpc.keys import Keys
from laconic.rpc.snapshots import Snapshots
from laconic.worker import ActorMessage

SERVER_NUMBER = -1
_LOOK_SECONDS = 0.05


class Setting(msgspec.Struct, frozen=True):
    """What all processes of a run know."""

    federation: Federation
    sentence: str
    processes: int
    heartbeat_seconds: float

    def write(self, folder: Path) -> None:
        """Write it to the run's folder, with keys that admit its processes."""
        tree = {**{name: getattr(self, name) for name in self.__struct_fields__}, "federation": asdict(self.federation)}
        write_text(folder / "run.json", json.dumps(tree))
        if not (folder / "keys").exists():
            Keys.make().write(folder / "keys")

    @classmethod
    def read(cls, folder: Path) -> Setting:
        return msgspec.json.decode((folder / "run.json").read_bytes(), type=cls)

    def endpoint(self, folder: Path, number: int, life: int) -> Endpoint:
        """Return the endpoint of a process, which finds the others through the run's folder."""
        return Endpoint(
            Keys.read(folder / "keys"),
            FileDirectory(folder / "directory"),
            number,
            life,
            None,
            self.heartbeat_seconds,
            snapshots=folder / "snapshots",
        )


def main(folder: Path, number: int) -> None:
    """Be the server of a run, or one of its processes with clients, until it is over."""
    torch.set_num_threads(1)
    setting = Setting.read(folder)
    life = Snapshots(folder / "lives" / str(number)).begin_epoch()
    endpoint = setting.endpoint(folder, number, life)
    federation, strategy = setting.federation, FederatedStrategy.parse(setting.sentence)
    task, population = federation.learned, federation.population
    if number == SERVER_NUMBER:
        coordinator = Coordinator(
            task,
            population,
            strategy,
            steps=federation.steps,
            rate=federation.rate,
            seed=federation.seed,
            processes=setting.processes,
        )
        endpoint.host(ADDRESS, coordinator)
        _keep_deadlines(endpoint, coordinator, strategy.structure.deadline)
        endpoint.serve_until_done(setting.processes)
    else:
        own = folder / "clients" / str(number)
        memory, pending = OnDisk(own / "memory"), OnDisk(own / "pending")
        ClientProcess(endpoint, task, population, strategy, federation.seed, memory, pending).serve()
        endpoint.leave()
    endpoint.close()


def _keep_deadlines(endpoint: Endpoint, coordinator: Coordinator, deadline: float) -> None:
    """Tell the coordinator, which has no clock, whenever the time of a round is over, until the run is."""
    number, began = coordinator.current, time.monotonic()
    while not coordinator.is_done:
        if coordinator.current != number:
            number, began = coordinator.current, time.monotonic()
        elif number is not None and time.monotonic() - began > deadline:
            endpoint.call(ADDRESS, ActorMessage("close", {"round": number}), writes=True).wait()
        time.sleep(_LOOK_SECONDS)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
