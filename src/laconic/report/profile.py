"""The output of `laconic profile`: the parts of a step, and the costs of links and compressors."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from laconic.values.profile import Profile, Seconds


def show(path: Path) -> None:
    """Print the profile in this file, and the path of the file."""
    profile, console = Profile.read(path), Console()
    model = profile.model
    count = sum(tensor.numel for tensor in model.tensors)
    console.print(f"{count:,} parameters in {len(model.tensors)} tensors; {profile.workers} workers at once")
    for part in ("forward", "backward", "step"):
        console.print(f"  {part:9}{_shown(getattr(model, part))}")
    if profile.links is not None and profile.links.operations:
        table = Table("collective", "dtype", "α", "effective rate", title="Links, with all workers sending at once")
        for times in profile.links.operations:
            rate = 8 / times.seconds_per_byte if times.seconds_per_byte else float("inf")
            alpha = f"{1e3 * times.alpha_seconds:.2f} ms"
            table.add_row(times.operation, times.dtype, alpha, f"{rate / 1e6:,.0f} Mb/s")
        console.print(table)
    if profile.codecs:
        table = Table("words", "before the wire", "after it", title="Words' own cost of this model, every tensor alone")
        for codec in profile.codecs:
            costs = (f"{1e3 * codec.seconds(part, len(model.tensors), count):.2f} ms" for part in ("encode", "decode"))
            table.add_row(codec.words, *costs)
        console.print(table)
    console.print(f"kept in {path}", soft_wrap=True)


def _shown(seconds: Seconds) -> str:
    if seconds.low is None or seconds.high is None:
        return f"{1e3 * seconds.median:.3f} ms"
    spread = f"{1e3 * seconds.low:.3f}–{1e3 * seconds.high:.3f}"
    return f"{1e3 * seconds.median:.3f} ms  (10–90 % of {seconds.samples}: {spread})"
