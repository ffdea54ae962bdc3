"""`laconic net`: networks of a chosen rate and delay on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

_Name = Annotated[str, typer.Argument(metavar="NAME", help="The network, as `laconic net status` lists it.")]
_Worker = Annotated[int, typer.Argument(metavar="WORKER", help="The worker's number, from 0.")]
_RATE_HELP = "Rate of each worker's link, in both directions: 10Mbit, 1Gbit."


def register(app: typer.Typer) -> None:
    """Add the commands to the tool."""
    net = typer.Typer(
        help="Make networks on this machine: a namespace per worker, a bridge, token buckets, a delay. Needs root.",
        no_args_is_help=True,
    )
    for command in (up, down, status, cut, restore, limit):
        net.command(command.__name__)(command)
    app.add_typer(net, name="net")


def up(
    workers: Annotated[
        int, typer.Option(help="Number of places (network namespaces), one for each worker and server.")
    ] = 4,
    rate: Annotated[str, typer.Option(help=_RATE_HELP)] = "100Mbit",
    delay: Annotated[
        str, typer.Option(help="One-way delay between two workers: 25ms makes a round trip of 50 ms.")
    ] = "0s",
    link: Annotated[
        list[str] | None, typer.Option(metavar="PLACE=RATE", help="Another rate for one link, as 3=10Mbit; repeatable.")
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the network.")] = "lab",
) -> None:
    """Make a network that stays up until `laconic net down`."""
    from laconic.launch import net
    from laconic.units import bits_per_second, seconds

    made = net.up(name, workers, bits_per_second(rate), seconds(delay), dict(map(net.read_link, link or ())))
    addresses = f"{made.places[0].address} to {made.places[-1].address}"
    typer.echo(f"{name}: {workers} places, {addresses}, launcher's hub {made.hub.address}")
    typer.echo(f"train on it: laconic run --net {name} --workers {workers} train.py")
    typer.echo(f"look inside: {' '.join(made.places[0].command(['ping', made.places[-1].address]))}")


def down(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="The network; may be left out where there is one only.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Take down every network that is up.")] = False,
) -> None:
    """Take a network down."""
    from laconic.launch import net

    for taken in net.standing(name, everything):
        net.down(taken)
        typer.echo(f"{taken}: down")


def status() -> None:
    """List the networks that are up."""
    from rich.console import Console
    from rich.table import Table

    from laconic.launch import net
    from laconic.units import write_rate

    networks = net.every()
    if not networks:
        typer.echo("no network is up: make one with `laconic net up --workers 4 --rate 100Mbit`")
        return
    table = Table("name", "places", "rate", "delay, one way", "delay line", "unplugged", "up until")
    for state, is_alive in networks:
        rates = [write_rate(rate) for rate in state.bits_per_second]
        table.add_row(
            state.name,
            str(state.workers),
            rates[0] if len(set(rates)) == 1 else ", ".join(rates),
            f"{1e3 * state.delay_seconds:g} ms",
            ("alive" if is_alive else "DEAD: take it down") if state.delay_seconds else "not needed",
            ", ".join(map(str, state.cut)) or "none",
            "net down" if state.owner is None else f"process {state.owner.pid} ends",
        )
    Console().print(table)


def cut(name: _Name, worker: _Worker) -> None:
    """Unplug a worker: its link carries nothing in either direction."""
    from laconic.launch import net

    net.find(name).cut(worker)


def restore(name: _Name, worker: _Worker) -> None:
    """Plug a worker in again, with the address and rate it had."""
    from laconic.launch import net

    net.find(name).restore(worker)


def limit(
    name: _Name,
    rate: Annotated[str, typer.Option(help=_RATE_HELP)],
    worker: Annotated[int | None, typer.Option(help="Change this worker's link only.")] = None,
) -> None:
    """Change the rate of one worker's link, or of all."""
    from laconic.launch import net
    from laconic.units import bits_per_second

    net.find(name).limit(bits_per_second(rate), worker)
