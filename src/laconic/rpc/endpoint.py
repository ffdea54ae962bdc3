"""The rpc endpoint of one process: the actors that it serves, and the messages that it sends to other actors."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import zmq

from laconic.errors import LaconicError
from laconic.liveness.detection import START_SECONDS, interval
from laconic.network.interfaces import address_towards
from laconic.rpc.channel import CallTimeouts, PendingCall
from laconic.rpc.client_loop import ClientLoop
from laconic.rpc.directory import Directory, OwnDirectory, StoreDirectory, look_up
from laconic.rpc.inbox import Inbox
from laconic.rpc.keys import Keys
from laconic.rpc.relay import Relay, number_of
from laconic.rpc.saver import Saver
from laconic.rpc.server_loop import ServerLoop
from laconic.rpc.service import Mailbox
from laconic.rpc.snapshots import Snapshots, tensor_bytes
from laconic.runtime.ledger import Ledger
from laconic.values.process_place import ProcessPlace
from laconic.values.run_config import RunConfig
from laconic.worker import Actor, ActorMessage
from laconic.worker import Ledger as AnyLedger

_SHARDS_PER_SNAPSHOT = 8
_LEAST_SNAPSHOT_BYTES = 1 << 20
_UNREACHABLE = 6  # in heartbeat limits, and at least two minutes: a server may be started again meanwhile
_LEFT = "left"


class Endpoint:
    """Serves actors and calls those of other processes; there is one per process.

    Threads and sockets are made when they are first needed. `host` is the network address under which others reach this
    host. Without a folder for snapshots, a server that is killed is lost with all it holds, and workers keep nothing to
    send to it again.
    """

    def __init__(
        self,
        keys: Keys,
        directory: Directory,
        rank: int,
        life: int = 0,
        ledger: AnyLedger | None = None,
        heartbeat_seconds: float = 20.0,
        host: str = "127.0.0.1",
        snapshots: Path | None = None,
        unreachable_seconds: float | None = None,
        resumes: bool = False,
    ) -> None:
        self._keys, self._directory, self._rank, self._life = keys, directory, rank, life
        self._ledger = Ledger() if ledger is None else ledger
        self._host, self._snapshots, self._heartbeat_seconds = host, snapshots, heartbeat_seconds
        self._resumes = resumes
        self._unreachable_seconds = unreachable_seconds or max(120.0, _UNREACHABLE * heartbeat_seconds)
        self._context: zmq.Context[Any] = zmq.Context()
        self._server_loop: ServerLoop | None = None
        self._client_loop: ClientLoop | None = None

    @classmethod
    def of_server(cls, config: RunConfig) -> Endpoint:
        """Make the endpoint of a process that only serves."""
        return cls._of(config, -1 - config.index, None)

    @classmethod
    def of_worker(cls, config: RunConfig, rank: int, ledger: AnyLedger) -> Endpoint:
        """Make the endpoint of a worker, which may also serve."""
        return cls._of(config, rank, ledger)

    @classmethod
    def _of(cls, config: RunConfig, rank: int, ledger: AnyLedger | None) -> Endpoint:
        place = ProcessPlace.current()
        if place.port is None:
            return cls(Keys.make(), OwnDirectory(), rank, config.life, ledger, config.heartbeat_seconds)
        directory = StoreDirectory(place.host, place.port, f"{config.heartbeat_prefix()}/post")
        return cls(
            Keys.read(Path(config.keys_file)) if config.keys_file is not None else _agreed_keys(directory, rank),
            directory,
            rank,
            config.life,
            ledger,
            config.heartbeat_seconds,
            address_towards(place.host),
            None if config.folder is None else Path(config.folder) / "snapshots" / config.heartbeat_prefix(),
            resumes=config.resume,
        )

    def host(self, address: str, actor: Actor, snapshots: Path | None = None, every_bytes: int | None = None) -> None:
        """Serve an actor from a thread of this process, starting from its last snapshot if there is one.

        A snapshot is taken whenever messages of `every_bytes` were written, by default eight times the actor's own
        size, and when a worker asks for one.
        """
        server_loop = self._server_loop
        if server_loop is None:
            step = interval(self._heartbeat_seconds)
            server_loop = self._server_loop = ServerLoop(
                self._context, self._keys, self._host, self._heartbeat_seconds, step
            )
        folder = snapshots or self._snapshots
        if folder is None:
            inbox = Inbox(actor, is_saved=False)
            server_loop.admit(address, Mailbox(inbox, None, self._relay(address, inbox)))
        else:
            kept = Snapshots(folder / quote(address, safe=""))
            inbox = Inbox(actor, kept.begin_epoch())
            state = kept.newest()
            if state is not None:
                inbox.restore(state)
            elif self._resumes:
                raise LaconicError(
                    f"{folder} holds no snapshot of what this server serves: continue the run with the script, "
                    "--strategy and --workers that it was started with, or leave --resume out."
                )
            if every_bytes is None:
                own = tensor_bytes(state if state is not None else actor.state())
                every_bytes = max(_SHARDS_PER_SNAPSHOT * own, _LEAST_SNAPSHOT_BYTES)
            server_loop.admit(
                address, Mailbox(inbox, Saver(kept, every_bytes, server_loop.wake), self._relay(address, inbox))
            )
        self._directory.publish(address, server_loop.endpoint)

    def call(self, address: str, message: ActorMessage, writes: bool) -> PendingCall:
        """Send a message, whose tensors must not change any more; the answer is the handle's result."""
        if self._client_loop is None:
            self._client_loop = self._make_client_loop(self._rank, self._life, self._ledger)
        return self._client_loop.call(address, message, writes)

    def make_durable(self) -> None:
        """Wait until the servers hold on disk what this process has written so far."""
        if self._client_loop is not None:
            self._client_loop.make_durable()

    def leave(self) -> None:
        """Wait until all writes are durable, and tell the servers that this process sends nothing more."""
        if self._client_loop is not None:
            self._client_loop.leave()
        if self._rank >= 0:
            self._directory.publish(f"{_LEFT}/{self._rank}", str(self._life))

    def serve_until_done(self, members: int) -> None:
        """Leave, then serve until all workers have left, or have been lost for so long that they will not return.

        The launcher may end the process earlier.
        """
        self.leave()
        waiting = set(range(members))
        while waiting and self._server_loop is not None:
            service = self._server_loop.service
            oldest = time.monotonic() - self._unreachable_seconds
            gone = service.left | {worker for worker, since in list(service.silent.items()) if since < oldest}
            waiting = {w for w in waiting - gone if self._directory.find(f"{_LEFT}/{w}") is None}
            if waiting:
                time.sleep(interval(self._heartbeat_seconds))

    def _relay(self, address: str, inbox: Inbox) -> Relay:
        return Relay(lambda: self._make_client_loop(number_of(address), inbox.epoch, Ledger()))

    def _make_client_loop(self, number: int, life: int, ledger: AnyLedger) -> ClientLoop:
        timeouts = CallTimeouts(interval(self._heartbeat_seconds), self._unreachable_seconds, START_SECONDS)
        return ClientLoop(self._context, self._keys, self._directory, number, life, ledger, timeouts)

    def finish(self, members: int) -> None:
        """Serve until all workers are done, then close: for the end of a worker's process. After an error it closes at
        once."""
        if getattr(sys, "last_value", None) is None:
            self.serve_until_done(members)
        self.close()

    def close(self) -> None:
        """Stop at once; messages without an answer are lost."""
        for part in (self._client_loop, self._server_loop):
            if part is not None:
                part.close()
        self._client_loop = self._server_loop = None
        self._context.term()


def _agreed_keys(directory: Directory, rank: int) -> Keys:
    """Agree on keys where no launcher of this project made any: worker 0 publishes them in the run's store."""
    if rank == 0:
        directory.publish("keys", Keys.make().to_text())
    return Keys.of_text(look_up(directory, "keys", START_SECONDS))
