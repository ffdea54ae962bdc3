"""Processes that hold layers and are killed: started from a server process that has imported all they need."""

from __future__ import annotations

import multiprocessing
import random
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import torch

from laconic.parallel.elastic.layer_holder import LayerHolder
from laconic.parallel.elastic.processes import sender, serve_layers
from laconic.parallel.elastic.sending import Send
from laconic.rpc.directory import FileDirectory
from laconic.rpc.endpoint import Endpoint
from laconic.rpc.keys import Keys
from laconic.worker import ActorMessage
from tests.parallel.elastic.virtual_nodes import MODEL

HEARTBEAT_SECONDS, UNREACHABLE_SECONDS = 5.0, 120.0


def main(folder: Path, node: int) -> None:
    torch.set_num_threads(1)
    endpoint = _endpoint(folder, -1 - node)
    serve_layers(endpoint, node, LayerHolder(MODEL))
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()


def _endpoint(folder: Path, rank: int) -> Endpoint:
    return Endpoint(
        Keys.read(folder / "keys"),
        FileDirectory(folder / "directory"),
        rank,
        heartbeat_seconds=HEARTBEAT_SECONDS,
        unreachable_seconds=UNREACHABLE_SECONDS,
    )


class NodeProcesses:
    """Nodes as processes. Every so many messages one is killed: that to which the message is on its way, or
    any."""

    def __init__(self, folder: Path, every: int, seed: int) -> None:
        Keys.make().write(folder / "keys")
        self._folder, self._every, self._draw = folder, every, random.Random(seed)
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([__name__])
        self.processes: dict[int, ForkServerProcess] = {}
        self._endpoint = _endpoint(folder, 0)
        self._send: Send = sender(self._endpoint, self._has_ended)
        self.kills, self._messages = 0, 0
        self.may_kill = self._kills_now = False

    def start(self, node: int) -> int:
        process = self._context.Process(target=main, args=(self._folder, node), daemon=True)
        process.start()
        self.processes[node] = process
        return node

    def send(self, node: int, message: ActorMessage, writes: bool) -> ActorMessage:
        self._messages += 1
        self._kills_now = self.may_kill and self._messages % self._every == 0
        return self._send(node, message, writes)

    def _has_ended(self, node: int) -> bool:
        """Kill now if it is time to, with a message on its way to the node."""
        if self._kills_now:
            self._kills_now = False
            alive = [number for number, process in self.processes.items() if process.is_alive()]
            victim = node if self._draw.random() < 0.7 and node in alive else self._draw.choice(alive)
            self.processes[victim].kill()
            self.processes[victim].join(10)
            self.kills += 1
        return not self.processes[node].is_alive()

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.join(10)
        self._endpoint.close()
