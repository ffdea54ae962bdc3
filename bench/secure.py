"""Secure aggregation: bytes and time of one client among 1,024, of whole sessions of 64, and beside others.

    python bench/secure.py                 # 64 clients of 2^20 values, 10 % of which vanish: a minute or two
    python bench/secure.py --clients 16 --numel 100000

One client's messages are all made, sent and received as in a session, with its masks expanded; the other clients of
that row have keys and send it their shares, and do no more. Bytes are those of whole messages, both ways; the expansion
is over what the client would send in the clear. Flower's SecAgg+ sends each number of 32 bits as 8 bytes. Seconds are
of the processor, of one thread.
"""

from __future__ import annotations

import argparse
import resource
import secrets
import time
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

from laconic.federated.secure.client import NONCE, Client, seal
from laconic.federated.secure.keys import KEY_BYTES, KeyPair
from laconic.federated.secure.messages import HEADER_BYTES, Kind, write, write_set
from laconic.federated.secure.session import run_session
from laconic.federated.secure.shares import SHARE_BYTES
from laconic.federated.secure.terms import Terms, sum_bits

FLOWER_BYTES = 8
"""Bytes of a parameter in Flower's SecAgg+."""


@dataclass(frozen=True)
class Cost:
    """What one client sends, receives and computes, and what it would send in the clear."""

    up_bytes: int
    down_bytes: int
    seconds: float
    plain_bytes: float

    @property
    def expansion(self) -> float:
        """All bytes, both ways, over those of the vector in the clear."""
        return (self.up_bytes + self.down_bytes) / self.plain_bytes


def one_client(clients: int, numel: int, value_bits: int = 16, seed: int = 0) -> Cost:
    """Let client 0 go through a whole session with so many others, all of which stay to the end."""
    terms = Terms(clients, clients * 2 // 3 + 1, numel, sum_bits(clients, 2**value_bits))
    values = np.random.default_rng(seed).integers(0, 2**value_bits, numel)
    everyone, others = write_set(range(clients), clients), range(1, clients)
    pairs = {other: (KeyPair.draw(secrets.token_bytes), KeyPair.draw(secrets.token_bytes)) for other in others}
    spent, begin = 0.0, time.process_time()
    client = Client(terms, 0)
    keys = client.advertise()
    spent += time.process_time() - begin
    own = keys[HEADER_BYTES:]
    rest = b"".join(transport.public + masks.public for transport, masks in pairs.values())
    roster = write(Kind.ROSTER, terms, 0, everyone + own + rest)
    begin = time.process_time()
    shares = client.share(roster)
    spent += time.process_time() - begin
    sealed = [
        seal(terms, pairs[other][0].agree(own[:KEY_BYTES]), other, 0).encrypt(NONCE, bytes(2 * SHARE_BYTES), None)
        for other in others
    ]
    relayed = write(Kind.RELAYED, terms, 0, everyone + b"".join(sealed))
    begin = time.process_time()
    masked = client.mask(relayed, values)
    survivors = write(Kind.SURVIVORS, terms, 0, everyone)
    revealed = client.reveal(survivors)
    spent += time.process_time() - begin
    up, down = (keys, shares, masked, revealed), (roster, relayed, survivors)
    return Cost(sum(map(len, up)), sum(map(len, down)), spent, numel * value_bits / 8)


def whole(clients: int, numel: int, value_bits: int, gone: float, seed: int = 0) -> tuple[float, int, Cost]:
    """Run a whole session of which this share vanishes once they have shared their secrets; return its seconds, the
    survivors and the mean cost of one of them. A sum that is wrong is an error."""
    bits = sum_bits(clients, 2**value_bits)
    terms = Terms(clients, clients * 2 // 3 + 1, numel, bits)
    draw = np.random.default_rng(seed)
    vanishing = dict.fromkeys(draw.choice(clients, round(gone * clients), replace=False).tolist(), Kind.MASKED)

    def values(number: int) -> np.ndarray:
        return np.random.default_rng([seed, number]).integers(0, 2**value_bits, numel)

    begin = time.process_time()
    found = run_session(terms, values, vanishing)
    seconds = time.process_time() - begin
    if found.total is None or not np.array_equal(found.total, sum(values(c) for c in found.survivors) % 2**bits):
        raise SystemExit("the sum of the survivors is wrong")
    up, down = (x[list(found.survivors)].sum(1).mean() for x in (found.up_bytes, found.down_bytes))
    return seconds, len(found.survivors), Cost(round(up), round(down), seconds / clients, numel * value_bits / 8)


def main() -> None:
    parser = argparse.ArgumentParser(description="What secure aggregation costs.")
    parser.add_argument("--clients", type=int, default=64, help="of the whole session (default 64)")
    parser.add_argument("--numel", type=int, default=2**20, help="values of a client (default 2^20)")
    parser.add_argument("--gone", type=float, default=0.1, help="share that vanishes after sharing keys (default 0.1)")
    given = parser.parse_args()
    made = Table(title="Secure aggregation, 16-bit values: unaudited, semi-honest")
    for heading in ("session", "bytes up", "bytes down", "expansion", "up a value", "Flower's", "seconds"):
        made.add_column(heading, justify="right")

    def row(name: str, cost: Cost, numel: int, seconds: str) -> None:
        each = f"{cost.up_bytes / numel:.3f}"
        numbers = f"{cost.up_bytes:,}", f"{cost.down_bytes:,}", f"{cost.expansion:.3f}"
        made.add_row(name, *numbers, each, str(FLOWER_BYTES), seconds)

    one_client(4, 100_000)  # compiles what packs
    for clients in (2**10, 2**9, 2**7):
        cost = one_client(clients, 2**20)
        row(f"one of {clients:,}, 2^20 values", cost, 2**20, f"{cost.seconds:.1f} of the client")
    for gone in (0.0, given.gone):
        seconds, survivors, cost = whole(given.clients, given.numel, 16, gone)
        name = f"{survivors} of {given.clients}, {given.numel:,} values"
        row(name, cost, given.numel, f"{seconds:.1f} of all")
    Console(width=120).print(made)
    print(f"largest memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")


if __name__ == "__main__":
    main()
