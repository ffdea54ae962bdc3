"""A run's keys: they admit its workers to its servers, and prove to workers that a server is the run's own."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import zmq
from msgspec import Meta

from laconic.files import replacing
from laconic.reading import Source

Key = Annotated[str, Meta(pattern=r"^[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}$")]
"""A key of ZeroMQ's in its printable form: 40 characters of Z85."""


@dataclass(frozen=True)
class Pair:
    """A CURVE key pair, in ZeroMQ's printable form."""

    public: Key
    secret: Key = field(repr=False)

    @classmethod
    def make(cls) -> Pair:
        public, secret = zmq.curve_keypair()
        return cls(public.decode(), secret.decode())


@dataclass(frozen=True)
class Keys:
    """The key pairs of one run: one that all its servers prove themselves with, and one for its workers.

    They are made anew for every run. All other secrets are random, stay in one process and are sent only over the
    encrypted connections that these keys open.
    """

    servers: Pair
    workers: Pair

    @classmethod
    def make(cls) -> Keys:
        return cls(Pair.make(), Pair.make())

    def write(self, path: Path) -> None:
        """Write the keys to a file that only this user can read."""
        with replacing(path) as beside:
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(self.to_text())

    @classmethod
    def read(cls, path: Path) -> Keys:
        """Read the keys that the launcher wrote."""
        return cls.of_text(_source(path).text(), path)

    def to_text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of_text(cls, text: str, where: str | Path = "the run's store") -> Keys:
        source = _source(where)
        return source.value(source.json(text), cls)


def _source(where: str | Path) -> Source:
    instead = "the launcher makes them when a run starts, so start the run again, or give --keys another file."
    return Source(where, "file of a run's keys", instead)
