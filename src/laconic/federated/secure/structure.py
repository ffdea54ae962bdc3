"""The word `secagg`: rounds whose server learns the sum of the clients' vectors and no single one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from laconic.compression.base import Compressor
from laconic.compression.optional import ring_bits_of
from laconic.federated.layout import Layout
from laconic.federated.messages import SERVER, Wire
from laconic.federated.participation import Collected, Flight
from laconic.federated.population import Population
from laconic.federated.rule import Report, Rule
from laconic.federated.secure.masks import Ring
from laconic.federated.secure.messages import Kind
from laconic.federated.secure.session import PHASES, Session, run_session
from laconic.federated.secure.terms import Terms
from laconic.federated.secure.wire import RingWire
from laconic.federated.structure import Structure
from laconic.registry import knob, technique

_VECTOR = PHASES.index(Kind.MASKED)


@technique(
    "secagg",
    aliases=["secure"],
    paper="Bonawitz et al., CCS 2017",
    holds="1.73 times the bytes in the clear for 2^10 clients and 2^20 values of 16 bits: 1.75 in whole messages",
)
@dataclass(frozen=True)
class SecAgg(Structure):
    """Secure aggregation: clients mask their vectors so that the masks cancel in the sum, which is all that the server
    learns. Not audited, and secure against parties that follow the protocol (semi-honest): not against a server that
    lies about who is there.

    Four rounds: each client sends two public keys; then shares of its two secrets, encrypted, one for each other
    client; then its vector under a mask of its own seed and one for each other client, which one of the two adds and
    the other subtracts; and at last a share of each survivor's seed, and of the key of each that vanished after it had
    shared it. Fewer clients than the `threshold`, as a share of those selected, end the round without a sum: it is
    lost.

    It takes compressors that send whole numbers with a step that is known beforehand: `fixed_point(14, 32)`. Of a
    client's samples at most `cap` count; with 1 all clients count alike. In a virtual run whoever is lost vanishes
    before, in or after the sharing of keys, by a draw; the phases beside that of the vectors are added to the time of
    the round, each as long as its slowest client's messages.

    Readings chosen: X25519, HKDF-SHA256, AES-256-GCM for the shares and ChaCha20 for masks; shares are in the field
    modulo 2^255 - 19; survivors are not signed, which only the protocol against active servers does.
    """

    threshold: float = knob(2 / 3, above=0.0, high=1.0, doc="share of the selected clients that are needed to the end")
    cap: int = knob(1, low=1, high=2**15, doc="samples of a client that count at most; 1 for all clients alike")

    def objects(self, rule: Rule, compressor: Compressor) -> str | None:
        if rule.asynchronous or rule.pools == "no":
            return f"{rule.name} needs every client's report, and secagg gives the mean alone; write fedavg"
        if rule.pools == "alike" and self.cap != 1:
            return f"{rule.name} counts all clients alike; write secagg(cap=1)"
        if ring_bits_of(compressor, 2) is None:
            return "secagg adds whole numbers with a step that is known beforehand; write fixed_point(14, 32)"
        return None

    def wire(self, compressor: Compressor, layout: Layout, seed: int, population: Population) -> Wire:
        return RingWire(compressor, layout, seed, population.shards.sizes, self.cap)

    def collect(
        self, wire: Wire, population: Population, taken: Sequence[Flight], flights: Sequence[Flight]
    ) -> Collected:
        assert isinstance(wire, RingWire)
        messages = [flight.message for flight in flights if flight.message is not None]
        if not messages or len(flights) < 2:
            return Collected([])
        numel = wire.numel(messages[0].payloads["ring"][0])
        terms = Terms(len(flights), max(2, math.ceil(round(self.threshold * len(flights), 9))), numel, wire.bits)
        inside = {flight.client for flight in taken}
        vanishing = {
            number: Kind.MASKED if flight.message is not None else _phase_of_loss(flight, wire.seed)
            for number, flight in enumerate(flights)
            if flight.client not in inside
        }

        def values(number: int) -> Ring:
            message = flights[number].message
            assert message is not None
            return wire.numbers(message)

        session = run_session(terms, values, vanishing)
        seconds, up, down = self._spent(session, flights, population)
        if session.total is None:
            return Collected([], seconds, up, down)
        vectors, weight = wire.mean(session.total, messages[0], len(session.survivors), flights[0].version)
        longest = max(flight.arrives - flight.begins for flight in taken)
        report = Report(
            SERVER, flights[0].version, weight, vectors, {}, longest, max(f.training for f in taken), count=len(taken)
        )
        return Collected([report], seconds, up, down)

    def _spent(
        self, session: Session, flights: Sequence[Flight], population: Population
    ) -> tuple[float, dict[int, int], dict[int, int]]:
        """Return how long the phases beside that of the vectors take, and what each client has sent and received; the
        packed vectors are counted as reports."""
        up, down = session.up_bytes.copy(), session.down_bytes
        for number, flight in enumerate(flights):
            if flight.message is not None and up[number, _VECTOR]:
                up[number, _VECTOR] -= flight.message.nbytes
        seconds = 0.0
        for column in range(len(PHASES)):
            seconds += max(
                population.send_seconds(flight.client, down[number, column], down=True)
                + population.send_seconds(flight.client, up[number, column], down=False)
                for number, flight in enumerate(flights)
            )
        clients = [flight.client for flight in flights]
        return (
            seconds,
            dict(zip(clients, up.sum(1).tolist(), strict=True)),
            dict(zip(clients, down.sum(1).tolist(), strict=True)),
        )


def _phase_of_loss(flight: Flight, seed: int) -> Kind:
    """Return the phase in which a client that is lost sends nothing more: of keys, of shares or of vectors."""
    draw = np.random.default_rng([seed, 0x5ECA, flight.version, flight.client])
    return PHASES[int(draw.integers(_VECTOR + 1))]
