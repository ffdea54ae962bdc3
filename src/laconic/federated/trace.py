"""Reading when clients can be reached, as somebody has recorded it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from laconic.errors import LaconicError
from laconic.federated.population import Trace
from laconic.reading import Count, NotNegative, Source

_WANTED = "write a CSV table with the columns client, begin and end, in seconds from the start of the run"


@dataclass(frozen=True)
class _Interval:
    """A time in which a client can be reached."""

    client: Count
    begin: NotNegative
    end: NotNegative


def read_trace(path: Path, clients: int) -> Trace:
    """Return in which intervals each of so many clients can be reached; one that has none is never reached.

    - `path`: a CSV table with the columns `client`, `begin` and `end`, in any order of rows.
    """
    source = Source(path, "trace of clients", _WANTED, LaconicError)
    found = sorted(source.rows(source.text(), _Interval), key=lambda one: (one.client, one.begin))
    for one in found:
        if one.client >= clients:
            raise source.refused(f"client {one.client} of {clients}, which are numbered from 0")
        if one.end <= one.begin:
            raise source.refused(f"client {one.client} goes at {one.end:g}, and comes at {one.begin:g}")
    merged: list[_Interval] = []
    for one in found:
        last = merged[-1] if merged and merged[-1].client == one.client else None
        if last is not None and one.begin < last.end:
            raise source.refused(f"client {one.client} comes at {one.begin:g}, and goes at {last.end:g} only")
        if last is not None and one.begin == last.end:  # it stays
            merged[-1] = _Interval(one.client, last.begin, one.end)
        else:
            merged.append(one)
    starts = np.searchsorted([one.client for one in merged], np.arange(clients + 1))
    return Trace(np.array([(one.begin, one.end) for one in merged]), starts)
