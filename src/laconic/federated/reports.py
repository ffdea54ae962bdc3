"""What a server takes as a client's report, and why it refuses anything else: between processes and under Flower."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import TypeVar

from laconic.errors import ContractError
from laconic.federated.messages import Message, Wire
from laconic.federated.rule import Ranges, Report, Sent
from laconic.worker import ActorMessage, Field, whole

MOST_SECONDS = 366 * 86400.0
"""No client is believed to have trained for longer than a year."""
_LONGEST_REASON = 300
_N = TypeVar("_N", int, float)


@dataclass(frozen=True, eq=False)
class Reports:
    """What clients of a rule send to a server.

    - `wire`: how their vectors are encoded.
    - `parts`: which vectors and numbers a report has.
    """

    wire: Wire
    parts: Sent

    def read(
        self, written: ActorMessage, client: int, version: int, samples: int, lengths: Set[int], ranges: Ranges
    ) -> Report:
        """Return what a client says. Whatever else has come, it is the client's fault and must not stop the server: a
        `ContractError` says why it is refused.

        - `version`: that of the model from which the client started.
        - `samples`: how many samples it holds.
        - `lengths`: how long its vectors may be.
        - `ranges`: between which values its numbers may be.
        """
        try:
            return self._read(written, client, version, samples, lengths, ranges)
        except ContractError as error:
            why = str(error)
        except Exception as error:
            why = f"its payload cannot be decoded ({error})"
        raise ContractError(f"client {client}: {why}"[:_LONGEST_REASON])

    def _read(
        self, written: ActorMessage, client: int, version: int, samples: int, lengths: Set[int], ranges: Ranges
    ) -> Report:
        message = Message.read(written.fields, written.tensors)
        parts = self.parts
        sent, wanted = ([*one, *x.masks, *x.raw] for one, x in ((message.payloads, message), (parts.vectors, parts)))
        if sent != wanted or not set(parts.numbers) <= set(message.numbers):
            raise ContractError(f"it sends {_named(message.numbers, sent)} in place of {_named(parts.numbers, wanted)}")
        for name, (least, greatest) in ranges.items():
            value = message.numbers.get(name, least)
            if not least <= value <= greatest:
                raise ContractError(f"its {name!r} is {value:g}, where {least:g} to {greatest:g} may be")
        numels = {name: whole(own, "numel") for name, (own, _) in message.payloads.items()}
        if not set(numels.values()) <= lengths:
            raise ContractError(f"its vectors have {sorted(numels.values())} entries, where {sorted(lengths)} may be")
        if message.nbytes > (most := self.wire.most_bytes(numels)):
            raise ContractError(f"it sends {message.nbytes} bytes, more than the {most} that its vectors can take")
        decoded = self.wire.decode(message, client, version)
        if not all(bool(vector.isfinite().all()) for vector in decoded.values()):
            raise ContractError("its vectors have entries that are no numbers")
        seconds = up_to(MOST_SECONDS, written.fields, "seconds", 0.0)
        training = up_to(seconds, written.fields, "training", 0.0)
        return Report(client, version, samples, decoded, message.numbers, seconds, training)


def up_to(most: _N, fields: Mapping[str, Field], name: str, default: _N | None = None) -> _N:
    """Return a field that is a number from 0 to this one, and of its type; refuse a message that says anything else."""
    value = fields.get(name, default)
    if not isinstance(value, type(most)) or not 0 <= value <= most:
        raise ContractError(f"its {name!r} is {value!r}, which is no {type(most).__name__} from 0 to {most}")
    return value


def _named(numbers: Mapping[str, float], parts: list[str]) -> str:
    return ", ".join([*parts, *numbers]) or "nothing"
