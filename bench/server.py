"""Measure what a parameter server costs beside the sockets it uses: 4 workers push and pull a model of 25 M parameters.

    python bench/server.py                  # loopback, one server and two; about two minutes
    python bench/server.py --shaped         # as many servers as workers, on 500 Mb/s links; needs root

On the loopback, blocks of the parameter server (encrypted control, authenticated tensors, exactly-once messages, steps
of SGD, snapshots on disk) alternate with blocks of a bare exchange: the same frames with the same authentication over
the same kind of sockets, and nothing behind them that processes them. On shaped links push and pull are timed
separately and set against the rate that was asked for.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import zmq
from rich.console import Console
from rich.table import Table

from laconic.launch.net import Namespace, shaped
from laconic.rpc.authentication import MessageAuthenticator, session_of
from laconic.rpc.directory import FileDirectory
from laconic.rpc.endpoint import Endpoint
from laconic.rpc.envelope import Answer, Envelope
from laconic.rpc.frames import Limits, decode_answer, decode_envelope, encode
from laconic.rpc.keys import Keys
from laconic.rpc.sockets import send
from laconic.worker import ActorMessage

WORKERS, PARAMETERS = 4, 25_000_000
LINK_BITS_PER_SECOND = 5e8
HEARTBEAT_SECONDS = 20.0


# ---------------------------------------------------------------------------------------------- in the processes


def sizes(servers: int) -> list[int]:
    """Return the number of elements of each server."""
    return [PARAMETERS * (k + 1) // servers - PARAMETERS * k // servers for k in range(servers)]


def endpoint_of(todo: dict[str, Any], rank: int) -> Any:
    folder = Path(todo["folder"])
    directory = FileDirectory(folder / "directory")
    snapshots = folder / "snapshots"
    return Endpoint(Keys.read(folder / "keys"), directory, rank, 0, None, HEARTBEAT_SECONDS, todo["host"], snapshots)


def serve(todo: dict[str, Any]) -> None:
    """Serve one shard of the parameter server, under plain asynchronous SGD."""
    from torch import nn

    from laconic.architecture.server.actor import Shard
    from laconic.architecture.server.sharding import Range
    from laconic.architecture.server.store import Store
    from laconic.compression.none import Identity
    from laconic.runtime.meeting import Meeting
    from laconic.sync.asp import ASP
    from laconic.values.tensor_spec import TensorSpec

    torch.set_num_threads(1)
    count = sizes(todo["servers"])[todo["index"]]
    parameter = nn.Parameter(torch.zeros(count))
    specs = [TensorSpec("weight", (count,), torch.float32, "matrix")]
    store = Store([Range(0, 0, count, 0)], specs, [parameter], torch.optim.SGD([parameter], lr=1e-3), WORKERS)
    shard = Shard(store, ASP(), Identity(), lambda rank, name, step: Meeting(rank, 1, step, name, 0), "bench")
    endpoint = endpoint_of(todo, -1 - todo["index"])
    endpoint.host(f"shard/{todo['index']}", shard)
    print("ready", flush=True)
    sys.stdin.readline()


def serve_bare(todo: dict[str, Any]) -> None:
    """Exchange the same authenticated frames, with no server behind them."""
    socket = zmq.Context().socket(zmq.ROUTER)
    port = socket.bind_to_random_port(f"tcp://{todo['host']}")
    (Path(todo["folder"]) / f"bare-{todo['index']}").write_text(f"tcp://{todo['host']}:{port}")
    values = (torch.zeros(sizes(todo["servers"])[todo["index"]]),)
    authenticators = {
        name: MessageAuthenticator.of_server(name, key) for name, key in map(bare_session, range(WORKERS))
    }
    print("ready", flush=True)
    while True:
        sender, *parts = socket.recv_multipart(copy=False)
        frames = [part.buffer for part in parts]
        authenticator = authenticators[session_of(frames)]
        address, envelope = decode_envelope(authenticator.verify(frames), Limits())
        message = (
            ActorMessage("receipt", {"clock": 1}) if envelope.writes else ActorMessage("values", {"version": 1}, values)
        )
        answer = Answer(envelope.sender, envelope.life, envelope.number, envelope.writes, 1, 0, 0, message)
        send(socket, [sender.bytes, *authenticator.sign(encode(address, answer))])


def bare_session(rank: int) -> tuple[bytes, bytes]:
    return bytes([1 + rank]) * 16, bytes([1 + rank]) * 64


def work(todo: dict[str, Any]) -> None:
    """Run the blocks that the parent asks for, and report when each began and ended."""
    torch.set_num_threads(1)
    rank, servers = todo["index"], todo["servers"]
    gradients = [torch.full((n,), 1e-3) for n in sizes(servers)]
    ways: dict[str, Callable[[int, Sequence[str]], None]] = {"laconic": through_server(todo, rank, gradients)}
    if todo["bare"]:
        ways["bare"] = through_sockets(todo, rank, gradients)
    print("ready", flush=True)
    for line in sys.stdin:
        way, rounds, parts = json.loads(line)
        begin = time.monotonic()
        ways[way](rounds, parts)
        print(json.dumps([begin, time.monotonic()]), flush=True)


def through_server(todo: dict[str, Any], rank: int, gradients: Sequence[Any]) -> Callable[[int, Sequence[str]], None]:
    endpoint = endpoint_of(todo, rank)
    shards = [(f"shard/{k}", gradient) for k, gradient in enumerate(gradients)]
    for address, _ in shards:
        endpoint.call(address, ActorMessage("join", {"digest": "bench"}), writes=True).wait()
    for address, gradient in shards if rank == 0 else ():
        endpoint.call(address, ActorMessage("plant", {}, (gradient,)), writes=True).wait()

    def go(rounds: int, parts: Sequence[str]) -> None:
        for _ in range(rounds):
            for part in parts:
                calls = [
                    endpoint.call(
                        address,
                        ActorMessage(part, {"version": 0}, (gradient,) if part == "push" else ()),
                        part == "push",
                    )
                    for address, gradient in shards
                ]
                for call in calls:
                    assert call.wait().kind in ("receipt", "values")

    return go


def through_sockets(todo: dict[str, Any], rank: int, gradients: Sequence[Any]) -> Callable[[int, Sequence[str]], None]:
    context = zmq.Context()
    connections = []
    for k, gradient in enumerate(gradients):
        socket = context.socket(zmq.DEALER)
        socket.connect((Path(todo["folder"]) / f"bare-{k}").read_text())
        connections.append((f"shard/{k}", gradient, socket, MessageAuthenticator.of_worker(*bare_session(rank))))

    def go(rounds: int, parts: Sequence[str]) -> None:
        for _ in range(rounds):
            for part in parts:
                for address, gradient, socket, authenticator in connections:
                    message = ActorMessage(part, {"version": 0}, (gradient,) if part == "push" else ())
                    envelope = Envelope(rank, 0, 1, part == "push", 0, 0, message)
                    send(socket, authenticator.sign(encode(address, envelope)))
                for _, _, socket, authenticator in connections:
                    frames = [frame.buffer for frame in socket.recv_multipart(copy=False)]
                    decode_answer(authenticator.verify(frames), Limits())

    return go


ROLES = {"server": serve, "bare": serve_bare, "worker": work}


# ---------------------------------------------------------------------------------------------- the parent


class ProcessManager:
    """Servers and workers as processes, in their network places if there are any."""

    def __init__(self, stack: ExitStack, servers: int, bare: bool, places: Sequence[Namespace] | None = None) -> None:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="laconic-bench-")))
        Keys.make().write(folder / "keys")
        self._processes: list[subprocess.Popen[str]] = []
        stack.callback(self._end)
        common = {"folder": str(folder), "servers": servers, "bare": bare}
        roles = [("server", k) for k in range(servers)] + [("bare", k) for k in range(servers if bare else 0)]
        for role, k in roles:
            self._start({**common, "role": role, "index": k}, places and places[WORKERS + k])
        self._answers(self._processes)
        for rank in range(WORKERS):
            self._start({**common, "role": "worker", "index": rank}, places and places[rank])
        self._workers = self._processes[-WORKERS:]
        self._answers(self._workers)

    def block(self, way: str, rounds: int, parts: Sequence[str]) -> float:
        """Return the seconds from the first worker's begin to the last one's end."""
        for worker in self._workers:
            assert worker.stdin is not None
            worker.stdin.write(json.dumps([way, rounds, parts]) + "\n")
            worker.stdin.flush()
        times = [json.loads(line) for line in self._answers(self._workers)]
        return float(max(end for _, end in times) - min(begin for begin, _ in times))

    def _start(self, todo: dict[str, Any], home: Namespace | None) -> None:
        todo["host"] = "127.0.0.1" if home is None else home.address
        command = [sys.executable, __file__, "--as", json.dumps(todo)]
        self._processes.append(
            subprocess.Popen(
                command if home is None else home.command(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,  # Ctrl-C reaches the parent alone, which then ends the others
            )
        )

    def _answers(self, processes: Sequence[subprocess.Popen[str]]) -> list[str]:
        lines = [process.stdout.readline() for process in processes if process.stdout is not None]
        if not all(lines):
            raise SystemExit("a process of the benchmark ended before it should have; its last words are above")
        return lines

    def _end(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()


def loopback(console: Console, blocks: int, rounds: int) -> bool:
    table = Table(title=f"{WORKERS} workers push and pull {PARAMETERS / 1e6:g} M parameters on the loopback, in turns")
    for heading in ("servers", "bare GB/s [least–most]", "laconic GB/s [least–most]", "ratio [least–most]"):
        table.add_column(heading, justify="right")
    fine = True
    for servers in (1, 2):
        with ExitStack() as stack:
            processes = ProcessManager(stack, servers, bare=True)
            for way in ("bare", "laconic"):
                processes.block(way, 1, ["push", "pull"])
            moved = WORKERS * rounds * 2 * 4 * PARAMETERS / 1e9
            rates: dict[str, list[float]] = {"bare": [], "laconic": []}
            for _ in range(blocks):
                for way, seen in rates.items():
                    seen.append(moved / processes.block(way, rounds, ["push", "pull"]))
        ratios = [own / bare for own, bare in zip(rates["laconic"], rates["bare"], strict=True)]
        table.add_row(str(servers), spread(rates["bare"]), spread(rates["laconic"]), spread(ratios))
        fine = fine and statistics.median(ratios) >= 0.70
    console.print(table)
    return fine


def links(console: Console, blocks: int) -> bool:
    servers = WORKERS
    table = Table(title=f"{WORKERS} workers and {servers} servers on links of {LINK_BITS_PER_SECOND / 1e6:g} Mb/s")
    for heading in ("", "Mb/s per worker [least–most]", "of the line rate [least–most]"):
        table.add_column(heading, justify="right")
    fine = True
    with ExitStack() as stack:
        net = stack.enter_context(shaped(WORKERS + servers, LINK_BITS_PER_SECOND, 0.0))
        processes = ProcessManager(stack, servers, bare=False, places=net.places)
        for part in ("push", "pull"):
            processes.block("laconic", 1, [part])
            rates = [8 * 4 * PARAMETERS / processes.block("laconic", 1, [part]) for _ in range(blocks)]
            shares = [rate / LINK_BITS_PER_SECOND for rate in rates]
            table.add_row(part, spread([rate / 1e6 for rate in rates], 0), spread(shares))
            fine = fine and statistics.median(shares) >= 0.85
    console.print(table)
    return fine


def spread(seen: Sequence[float], digits: int = 2) -> str:
    middle, least, most = statistics.median(seen), min(seen), max(seen)
    return f"{middle:.{digits}f} \\[{least:.{digits}f}–{most:.{digits}f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=re.sub(r"\n\n    .*?\n\n", "\n\n", __doc__ or "", flags=re.DOTALL))
    parser.add_argument("--shaped", action="store_true", help="on links of 500 Mb/s")
    parser.add_argument("--blocks", type=int, default=9)
    parser.add_argument("--rounds", type=int, default=3, help="pushes and pulls of each worker in a block")
    parser.add_argument("--as", dest="todo", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.todo:
        todo = json.loads(arguments.todo)
        ROLES[todo["role"]](todo)
        return
    console = Console()
    fine = (
        links(console, arguments.blocks) if arguments.shaped else loopback(console, arguments.blocks, arguments.rounds)
    )
    sys.exit(0 if fine else 1)


if __name__ == "__main__":
    main()
