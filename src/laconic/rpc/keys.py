"""A run's keys: who may speak to its servers, and how workers know a server."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

import zmq

from laconic.errors import LaconicError
from laconic.files import replacing


@dataclass(frozen=True)
class Pair:
    """A CURVE key pair, in ZeroMQ's printable form."""

    public: str
    secret: str = field(repr=False)

    @classmethod
    def make(cls) -> Pair:
        public, secret = zmq.curve_keypair()
        return cls(public.decode(), secret.decode())


@dataclass(frozen=True)
class Keys:
    """Made anew for every run: one pair that all its servers prove themselves with, and one for its workers.

    All other secrets are random, live in one process and travel inside the encrypted conversation that these open.
    """

    servers: Pair
    workers: Pair

    @classmethod
    def make(cls) -> Keys:
        return cls(Pair.make(), Pair.make())

    def write(self, path: Path) -> None:
        """For the eyes of this user only."""
        with replacing(path) as beside:
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(self.to_text())

    @classmethod
    def read(cls, path: Path) -> Keys:
        try:
            return cls.of_text(path.read_text())
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise LaconicError(
                f"the run's keys cannot be read from {path} ({error}): the launcher makes that file when a run starts, "
                "so start the run again."
            ) from error

    def to_text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of_text(cls, text: str) -> Keys:
        said = json.loads(text)
        return cls(Pair(**said["servers"]), Pair(**said["workers"]))
