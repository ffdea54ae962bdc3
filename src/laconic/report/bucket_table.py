"""How buckets are exchanged on this machine's device, as `laconic explain` shows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from laconic.errors import LaconicError
from laconic.real.profiling.tried_buckets import tried_buckets
from laconic.runtime.bucket_uses import BucketReport
from laconic.strategy import Sentence
from laconic.values.comm_plan import CommPlan

_NONE = "none"


def tried(sentence: Sentence, plan: CommPlan, workers: int, device: str | None) -> list[BucketReport]:
    """Exchange the buckets of a plan on a device, by default on the GPU where there is one; on "none", none."""
    gpu = torch.cuda.is_available()
    name = device or ("cuda" if gpu else "cpu")
    if name == _NONE:
        return []
    if name.partition(":")[0] not in ("cpu", "cuda") or (name != "cpu" and not gpu):
        raise LaconicError(f"--device {name} is not here: write {'cuda, ' if gpu else ''}cpu or {_NONE}")
    return tried_buckets(sentence, plan, workers, torch.device(name))


def show_buckets(buckets: Sequence[BucketReport], most: int) -> None:
    """Print how each bucket was exchanged, `most` of them at most, and which hot loops plain torch computed in all."""
    if not buckets:
        return
    console = Console()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("bucket", "tensors", "elements", "exchanged", "CUDA graphs", "plain torch"):
        table.add_column(heading, justify="right" if heading in ("bucket", "elements") else "left", overflow="fold")
    for number, bucket in enumerate(buckets[:most], 1):
        how = "as a whole" if bucket.one_by_one is None else "tensor by tensor"
        graphs = "replayed" if bucket.graphed else "no" if bucket.refusal else "only on a GPU"
        cells = (str(number), _first(bucket.tensors), f"{bucket.elements:,}", how, graphs)
        table.add_row(*map(Text, (*cells, _calls(_each_time(bucket)) or "nothing")))
    console.print(Text(f"\nExchanged on this machine ({buckets[0].device}) with random values:"), soft_wrap=True)
    console.print(table)
    if len(buckets) > most:
        console.print(f"… and {len(buckets) - most} more: --messages {len(buckets)}")
    for line in _reasons(buckets):
        console.print(Text(line), soft_wrap=True)
    total = sum(map(_each_time, buckets), Counter[str]())
    whole = sum(bucket.one_by_one is None for bucket in buckets)
    graphed, calls = sum(bucket.graphed for bucket in buckets), _calls(total) or "none"
    console.print(
        Text(
            f"`{buckets[0].sentence}`: {whole} of {len(buckets)} buckets as a whole, {graphed} as CUDA graphs; calls "
            f"of compression's hot loops that plain torch computed in an exchange of all: {calls}."
        ),
        soft_wrap=True,
    )


def _each_time(bucket: BucketReport) -> Counter[str]:
    """Return the calls of one exchange, rounded up: what is selected depends on the values."""
    return Counter({name: -(-calls // max(1, bucket.exchanges)) for name, calls in bucket.fallbacks.items()})


def _reasons(buckets: Sequence[BucketReport]) -> Iterator[str]:
    """Yield each reason why buckets are not exchanged as a whole, or not replayed, with how many have it."""
    whole = Counter(bucket.one_by_one for bucket in buckets)
    graphs = Counter(bucket.refusal for bucket in buckets if bucket.one_by_one is None)
    for what, reasons in (("tensor by tensor", whole), ("no CUDA graphs", graphs)):
        for reason, count in reasons.items():
            if reason is not None:
                yield f"{what}, in {count} of {len(buckets)}: {reason}."


def _calls(calls: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(calls.items()))


def _first(names: Sequence[str]) -> str:
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")
