"""The output of `laconic explain`: a schedule's plan, the predicted time of each message, and how buckets are exchanged
here, as tables or as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from laconic.architecture.ps import ParameterServer
from laconic.cost.explain import Explained, Explanation, explain
from laconic.cost.from_profile import prices_measured, prices_on, tensors_of, timing_of
from laconic.errors import StrategyError
from laconic.planner.crossover import crossover_note
from laconic.report.bucket_table import show_buckets, tried
from laconic.runtime.bucket_uses import BucketReport
from laconic.strategy import Sentence, Strategy
from laconic.units import bits_per_second, seconds
from laconic.values.profile import Profile, ProfileError


def run(
    sentence: str,
    path: str,
    workers: int | None,
    network: str | None,
    latency: str,
    device: str | None,
    most: int,
    json_: bool,
) -> None:
    """Explain a sentence as the options of the command line say, and print it."""
    found = explained(sentence, path, workers, network, latency)
    chosen, count = Strategy.parse(sentence), workers or Profile.read(path).workers
    assert isinstance(chosen, Sentence)
    buckets = tried(chosen, found.plan, count, device)
    note = crossover_note(chosen, found.plan.tensors, count)
    if json_:
        print(as_json(found, buckets, note))
        return
    show(found, most)
    if note:
        Console().print(Text(f"{note}."), soft_wrap=True)
    show_buckets(buckets, most)


def explained(sentence: str, path: str, workers: int | None, network: str | None, latency: str) -> Explanation:
    """Make the plan of a sentence's schedule for a profiled model, and predict it on the profiled network or on a
    described one."""
    chosen = Strategy.parse(sentence)
    if not isinstance(chosen, Sentence):
        raise StrategyError(f"`{chosen}` has several schedules; explain one sentence at a time")
    period = _period_of_gradients(chosen)
    known = Profile.read(path)
    count = workers or known.workers
    architecture = chosen.architecture.make()
    servers = architecture.shards if isinstance(architecture, ParameterServer) else None
    if network is not None:
        price, halved = prices_on(count, bits_per_second(network), seconds(latency), servers), None
    elif known.links is None or servers is not None or count != known.workers:
        raise ProfileError(
            "this needs --network: the profile's links are those of another number of workers, or of no server"
        )
    else:
        price, halved = prices_measured(known.links, count)
    tensors, arrival = tensors_of(known)
    timing = timing_of(known, price, servers is not None, halved)
    return explain(chosen.schedule.make().plan(tensors, arrival, timing), arrival, timing, period)


def _period_of_gradients(sentence: Sentence) -> int:
    """Return how many steps there are for one whose gradients are averaged during backward, which is what a schedule
    plans; a rule that exchanges at other times is refused."""
    rule = sentence.sync.make()
    period: int = rule.period
    if any(rule.averages_gradients(step) for step in range(period)):
        return period
    when = f"after every {period} steps" if period > 1 else "after steps"
    raise StrategyError(
        f"`{sentence.sync}` sends no gradients during backward, which is what a schedule plans and explain shows: it "
        f"exchanges {when}. `laconic plan` prices it, and `laconic run --engine virtual --trace` shows each message"
    )


def show(found: Explanation, most: int) -> None:
    """Print the summary of a plan and its first messages, `most` of them at most."""
    console = Console()
    console.print(Text(f"{found.summary()}."), soft_wrap=True)
    if not most:
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("", "carries", "bytes", "leaves ms", "arrives ms", "hidden"):
        table.add_column(heading, justify="left" if heading == "carries" else "right")
    for number, message in enumerate(found.messages[:most], 1):
        table.add_row(
            str(number),
            _carries(message),
            f"{message.nbytes:,}",
            f"{1e3 * message.leaves_seconds:.2f}",
            f"{1e3 * message.arrives_seconds:.2f}",
            f"{100 * message.hidden:.0f} %",
        )
    console.print(table)
    if len(found.messages) > most:
        console.print(f"… and {len(found.messages) - most} more: --messages {len(found.messages)}")
    console.print("Times from the start of backward.")


def as_json(found: Explanation, buckets: Sequence[BucketReport] = (), note: str | None = None) -> str:
    """Return the plan's times and all of its messages and buckets as JSON."""
    seen = found.trace
    return json.dumps(
        {
            "summary": found.summary(),
            "period": found.period,
            "mean_step_seconds": found.mean_step_seconds,
            "period_seconds": seen.period_seconds,
            "compute_seconds": seen.compute_seconds,
            "exposed_seconds": seen.exposed_seconds,
            "hidden": found.hidden,
            "gathered": note,
            "messages": [asdict(message) for message in found.messages],
            "buckets": [asdict(bucket) for bucket in buckets],
        },
        indent=2,
    )


def _carries(message: Explained) -> str:
    first, *rest = message.tensors
    more = f" and {len(rest)} more" if rest else ""
    return ("a piece of " if message.is_piece else "") + first + more
