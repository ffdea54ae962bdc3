"""What virtual workers logged, as curves to plot and as a data frame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from laconic.errors import LaconicError

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class LoggedValue:
    """A value that a worker gave to `laconic.log`: after how many steps, when, and what it had sent by then."""

    worker: int
    step: int
    seconds: float  # of virtual time
    sent_bytes: float
    metric: str
    value: float


@dataclass(frozen=True)
class Curve:
    """One metric of one worker, as columns of equal length: `plt.plot(curve.seconds, curve.values)`."""

    metric: str
    worker: int
    steps: tuple[int, ...]
    seconds: tuple[float, ...]
    sent_bytes: tuple[float, ...]
    values: tuple[float, ...]


def curves_of(logged: Sequence[LoggedValue], metric: str | None, worker: int | None) -> list[Curve]:
    """Return a curve for each metric and worker that logged it, or for those that are named."""
    chosen: dict[tuple[str, int], list[LoggedValue]] = {}
    for one in logged:
        if metric in (None, one.metric) and worker in (None, one.worker):
            chosen.setdefault((one.metric, one.worker), []).append(one)
    if metric is not None and not chosen:
        known = ", ".join(sorted({one.metric for one in logged})) or "nothing: call laconic.log(loss=…) in the function"
        raise LaconicError(f"no {metric!r} was logged by worker {'N' if worker is None else worker}; logged: {known}")
    return [
        Curve(
            name,
            rank,
            tuple(one.step for one in points),
            tuple(one.seconds for one in points),
            tuple(one.sent_bytes for one in points),
            tuple(one.value for one in points),
        )
        for (name, rank), points in sorted(chosen.items(), key=lambda entry: entry[0])
    ]


def as_dataframe(logged: Sequence[LoggedValue]) -> pandas.DataFrame:
    """Return a row for each value; refuse where pandas is not installed."""
    try:
        import pandas
    except ImportError as error:
        raise LaconicError(
            "a data frame needs pandas: install it (pip install pandas), or plot curves(), which needs nothing"
        ) from error
    columns = list(LoggedValue.__dataclass_fields__)
    return pandas.DataFrame([asdict(one) for one in logged], columns=columns)
