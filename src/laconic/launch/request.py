"""`Request`: the options of `laconic run`, checked before any process starts."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from pathlib import Path

from laconic.errors import LaconicError
from laconic.files import exists, is_file
from laconic.launch.net import HUB_ADDRESS, find
from laconic.launch.net.state import load
from laconic.network.interfaces import resolves_to_loopback
from laconic.values.run_config import RunConfig
from laconic.values.worker_speeds import WorkerSpeeds


class LaunchError(LaconicError, ValueError):
    """A run that cannot be started as asked; the message says what to ask for instead."""


@dataclass(frozen=True)
class Request:
    """A run to start. `command` is a script (or, with `module`, a module's name) and its arguments.

    The strategy's text is checked by the caller (`experiments.rivals.text.check`), since it may name another library.
    """

    command: tuple[str, ...]
    module: bool = False
    workers: int = 1  # on this machine
    strategy: str | None = None
    nodes: int = 1
    rendezvous: str | None = None  # HOST:PORT, the same on all machines
    timeout_seconds: float | None = None
    restarts: int = 0
    heartbeat_seconds: float = 20.0
    threads: int = 1
    folder: str | None = None
    targets: Mapping[str, float] = field(default_factory=dict)
    dry_run: bool = False
    engine: str = "real"
    network: str | None = None  # the network of virtual workers: a .toml file or a rate
    net: str | None = None  # the network of real workers on this machine, made by `laconic net up`
    servers: int = 0  # parameter-server processes, on the first host
    server_restarts: int = 10  # of each server
    colocate: bool = False  # on a shaped network: server k shares worker k's network namespace
    resume: bool = False  # let servers continue from their snapshots in the folder
    keys: str | None = None  # the file of the run's keys; None: in the run folder
    slowness: Sequence[float] = ()  # factors by worker, repeated cyclically
    stragglers: Sequence[float] = ()  # a probability and a factor
    trace: bool = False
    gate: str | None = None  # this and the next three are for comparisons: see RunConfig
    record_steps: bool = False
    stop_after: int | None = None
    alone: bool = False
    profile: str | None = None  # the profile with the computing times of virtual workers
    profile_to: str | None = None  # measure the run, and write its profile here
    profile_steps: int = 48
    profile_as: int | None = None  # this and the next: see RunConfig
    profile_words: Sequence[str] | None = None

    def __post_init__(self) -> None:
        self._check_command()
        _at_least("--workers", self.workers, 1)
        _at_least("--nodes", self.nodes, 1)
        _at_least("--restarts", self.restarts, 0)
        _at_least("--threads", self.threads, 1)
        _at_least("--servers", self.servers, 0)
        _at_least("--server-restarts", self.server_restarts, 0)
        _at_least("--heartbeat", self.heartbeat_seconds, 1)
        if self.timeout_seconds is not None:
            _at_least("--timeout", self.timeout_seconds, 1)
        for name, value in self.targets.items():
            if not math.isfinite(value):
                raise LaunchError(f"--target {name}={value} can never be reached: give a finite number.")
        self.speeds()  # raises for values that make no sense
        self._check_rendezvous()
        self._check_engine()
        self._check_servers()
        self._check_net()

    def speeds(self) -> WorkerSpeeds:
        """Return the workers' speeds, as --slowness and --stragglers describe them."""
        return WorkerSpeeds.read(self.slowness, self.stragglers)

    def _check_servers(self) -> None:
        if self.colocate and not (self.servers and self.net is not None):
            raise LaunchError("--colocate is about servers on a shaped network: add --servers and --net.")
        if self.keys is not None and (self.engine == "virtual" or not self.servers):
            raise LaunchError("--keys is for real processes that connect to servers: add --servers, or leave it out.")
        if self.resume and not (self.servers and self.folder is not None and self.engine == "real"):
            raise LaunchError(
                "--resume lets real servers continue from their snapshots: add --servers and the --folder of the run "
                "to continue. A run without servers continues by itself where its script calls laconic.resume."
            )
        if self.resume and self.nodes == 1 and not any(Path(str(self.folder)).glob("snapshots/**/snapshot.*")):
            raise LaunchError(
                f"there is nothing to continue: no server has left a snapshot in {self.folder}. Leave --resume out, or "
                "give the --folder of the run that was interrupted."
            )
        if self.servers and self.nodes > 1 and self.keys is None:
            raise LaunchError(
                "workers of several machines need the same keys to connect to the servers: give --keys FILE, which the "
                "first machine makes where it is missing, and copy that file to the others (for example over ssh)."
            )

    def _check_engine(self) -> None:
        if self.engine not in ("real", "virtual"):
            raise LaunchError(f"--engine {self.engine} is unknown: give real or virtual.")
        if self.engine == "real" and self.network is not None:
            raise LaunchError("--network describes virtual workers: add --engine virtual.")
        if self.engine == "real" and self.profile is not None:
            raise LaunchError("--profile is for virtual workers, real ones need none: add --engine virtual.")
        if self.engine == "real" and min(self.slowness, default=1) < 1:
            raise LaunchError("--slowness below 1 would make a real worker faster than it is: give factors from 1 on.")
        if self.engine == "real" and self.stragglers and self.stragglers[1] < 1:
            raise LaunchError("--stragglers take longer, not shorter: give a factor from 1 on.")
        if self.engine == "virtual" and (self.nodes > 1 or self.module or self.timeout_seconds):
            raise LaunchError("virtual workers run in one process: leave out --nodes, --timeout and -m.")

    def _check_net(self) -> None:
        if self.net is None:
            return
        if self.engine != "real" or self.nodes > 1 or self.rendezvous is not None:
            raise LaunchError(
                "--net places real workers on this machine: leave out --nodes and --rendezvous; virtual workers take "
                "--network instead."
            )
        places = len(find(self.net).places)
        if not self.colocate and self.servers and self.workers + self.servers > places:
            raise LaunchError(
                f"--workers {self.workers} and --servers {self.servers} need {self.workers + self.servers} places, the "
                f"network {self.net!r} has {places}: make a larger one with `laconic net up --workers "
                f"{self.workers + self.servers}`, or let servers share the workers' places with --colocate."
            )
        if self.workers > places:
            raise LaunchError(
                f"--workers {self.workers} do not fit into the network {self.net!r}, which has {places} places: ask "
                f"for fewer, or make a larger one with `laconic net up --workers {self.workers}`."
            )

    def _check_command(self) -> None:
        if not self.command:
            raise LaunchError("nothing to run: give a script, as in `laconic run --workers 4 train.py`.")
        name = self.command[0]
        if self.module:
            # `python -m` looks in the current folder first; only the outermost package is looked for, none is imported.
            if PathFinder.find_spec(name.partition(".")[0], [str(Path.cwd()), *sys.path]) is None:
                raise LaunchError(f"no module named {name!r} can be imported from here: check the name after -m.")
        elif exists(name) and not is_file(name):
            raise LaunchError(f"{name!r} is a folder, not a script: name the .py file in it that trains.")
        elif not is_file(name):
            raise LaunchError(f"the script {name!r} does not exist (looked in {Path.cwd()}).")

    def _check_rendezvous(self) -> None:
        if self.nodes > 1 and self.rendezvous is None:
            raise LaunchError(
                f"--nodes {self.nodes} needs a rendezvous: give --rendezvous HOST:PORT, the same on all machines, "
                f"where HOST is one of them."
            )
        if self.rendezvous is None:
            return
        host, port = self.endpoint
        given_as_loopback = host == "localhost" or host.startswith("127.") or host == "::1"
        if self.nodes > 1 and not given_as_loopback and resolves_to_loopback(host):
            raise LaunchError(
                f"--rendezvous {self.rendezvous}: {host!r} means this machine's loopback here, where no other machine "
                f"can reach port {port}; give the machine's address instead."
            )

    @property
    def endpoint(self) -> tuple[str, int]:
        """The rendezvous' host and port; on one host, any free port (0) of the loopback or of --net's hub."""
        if self.rendezvous is None:
            return "127.0.0.1" if self.net is None else HUB_ADDRESS, 0
        host, colon, port = self.rendezvous.rpartition(":")
        if not colon or not host or not port.isdecimal() or not 0 < int(port) < 2**16:
            raise LaunchError(
                f"--rendezvous {self.rendezvous!r} is not HOST:PORT: write, for example, --rendezvous 10.0.0.1:29400."
            )
        return host.strip("[]"), int(port)

    @property
    def stem(self) -> str:
        """The name of the run: that of its script or module."""
        return self.command[0].rsplit(".", 1)[-1] if self.module else Path(self.command[0]).stem

    def config(self, folder: Path | None) -> RunConfig:
        """Return the configuration that the workers receive."""
        state = None if self.net is None else load(self.net)
        return RunConfig(
            strategy=self.strategy,
            folder=None if folder is None else str(folder),
            heartbeat_seconds=self.heartbeat_seconds,
            threads=self.threads,
            dry_run=self.dry_run,
            workers=self.workers * self.nodes,
            nodes=self.nodes,
            targets=dict(self.targets),
            trace=self.trace,
            gate=self.gate,
            record_steps=self.record_steps,
            stop_after=self.stop_after,
            alone=self.alone,
            profile_to=self.profile_to,
            profile_steps=self.profile_steps,
            profile_as=self.profile_as,
            profile_words=None if self.profile_words is None else list(self.profile_words),
            net_bits_per_second=None if state is None else min(filter(None, state.bits_per_second), default=None),
            net_delay_seconds=0.0 if state is None else state.delay_seconds,
            servers=self.servers,
            resume=self.resume,
            slowness=list(self.slowness),
            stragglers=list(self.stragglers),
        )

    @property
    def script_words(self) -> list[str]:
        """The script (or -m and the module) and its own arguments, as one writes them after `python`."""
        return [*(["-m"] if self.module else []), *self.command]

    def python_arguments(self) -> list[str]:
        """Return the arguments after `python`: unbuffered, then what runs the script (or module) and its arguments."""
        return ["-u", "-m", "laconic.launch.script_process", *self.script_words]


def read_target(text: str, refusal: type[LaconicError] = LaunchError) -> tuple[str, float]:
    """Read a metric's name and the value to reach from NAME=VALUE; raise `refusal` for anything else."""
    name, _, value = text.partition("=")
    try:
        if not name.strip():
            raise ValueError
        return name.strip(), float(value)
    except ValueError:
        raise refusal(f"--target {text!r} is not NAME=VALUE: write, for example, --target loss=1.6.") from None


def read_slowness(text: str) -> tuple[float, ...]:
    """Read the factors by worker from text such as "1,1,1,5"."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise LaunchError(
            f"--slowness {text!r} is no list of factors: write, for example, --slowness 1,1,1,5."
        ) from None


def read_stragglers(text: str) -> tuple[float, float]:
    """Read a probability and a factor from text such as "0.2x3"."""
    probability, _, factor = text.partition("x")
    try:
        return float(probability), float(factor)
    except ValueError:
        raise LaunchError(
            f"--stragglers {text!r} is not PROBABILITYxFACTOR: write 0.2x3 for 3 times as long in 20 % of the steps."
        ) from None


def _at_least(option: str, value: float, least: float) -> None:
    if not value >= least:  # NaN is refused too
        raise LaunchError(f"{option} {value:g} makes no sense: give at least {least:g}.")
