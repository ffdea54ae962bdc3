"""The output of `laconic collective run`: a program's time between processes beside its price."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from laconic.collective.generators import make_program
from laconic.collective.price import price
from laconic.errors import LaconicError
from laconic.launch.collective_run import Task, run_program
from laconic.network.network_tree import Network
from laconic.units import bits_per_second, write_seconds


def print_run(name: str, workers: int, inside: int, nbytes: float, repeats: int, network: str | None) -> None:
    """Carry a program out between processes, and print what it took and sent; raise if a sum was wrong."""
    rate = None if network is None else bits_per_second(network)
    outcome = run_program(Task(name, workers, inside, int(nbytes), repeats), rate)
    if not outcome.exact:
        raise LaconicError(f"{name} among {workers} processes ended with a wrong sum")
    table = Table("program", "time", "spread", "sent by a rank", "price", "time over price", box=box.MARKDOWN)
    where = "the loopback" if network is None else f"links of {network}"
    table.title = f"{workers} processes on {where}, {nbytes / 1e6:g} MB, median of {repeats}; every sum is exact"
    prices = [("as probed", outcome.probed_seconds)]
    if rate is not None:
        program = make_program(name, workers, inside)
        prices.append((f"at {network}", price(program, nbytes, Network.flat(workers, rate)).seconds))
    for basis, priced in prices:
        spread = f"{write_seconds(min(outcome.seconds))} to {write_seconds(max(outcome.seconds))}"
        sent, taken = f"{max(outcome.sent_bytes) / 1e6:.3g} MB", outcome.median_seconds
        over = f"{taken / priced:.2f}" if priced else ""
        table.add_row(name, write_seconds(taken), spread, sent, f"{write_seconds(priced)} {basis}", over)
    Console(width=max(120, Console().width)).print(table)
