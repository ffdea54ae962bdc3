"""The end of a run in a few lines: its workers' steps, times and bytes, and the targets that were not reached."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from laconic.runtime.traffic import Traffic
from laconic.values.run_config import TRAFFIC


def read_traffic(folder: Path, ranks: Sequence[int]) -> list[Traffic]:
    """Return what these ranks have left of their traffic; a rank that was killed has left nothing."""
    found = []
    for rank in ranks:
        with suppress(OSError, ValueError, TypeError):
            found.append(Traffic(**json.loads((folder / TRAFFIC / f"rank-{rank}.json").read_text())))
    return found


def as_fields(workers: Sequence[Traffic]) -> dict[str, Any]:
    """Return the fields of `run.json` on what each worker made, sent and waited for."""
    figures = [{name: None if n != n else n for name, n in asdict(worker).items()} for worker in workers]  # no NaN
    sent = [worker.sent_bytes for worker in workers]
    return {"traffic": figures} if any(map(math.isnan, sent)) else {"sent_bytes": sent, "traffic": figures}


def summarise(workers: Sequence[Traffic]) -> str:
    """Return a sentence on steps, times and bytes, in the mean over workers."""

    stepping = [worker for worker in workers if worker.steps]
    if not stepping:
        return "no optimizer step was made after laconic.distribute()"

    def mean(of: str) -> float:
        return fmean(getattr(worker, of) for worker in stepping)

    least, most = (end(worker.steps for worker in stepping) for end in (min, max))
    steps = f"{most}" if least == most else f"{least} to {most}"
    made = f"{steps} steps in {mean('seconds'):.4g} s, the median {1e3 * mean('step_seconds'):.4g} ms"
    if math.isnan(mean("sent_bytes")):
        return f"{made}; what another library sends is not counted"
    return (
        f"{made}; each worker sent {_bytes(mean('sent_bytes'))} ({_bytes(mean('control_bytes'))} of it control), "
        f"received {_bytes(mean('received_bytes'))} and waited {mean('waited_seconds'):.4g} s for messages"
    )


def missed_targets(folder: Path, targets: Mapping[str, float]) -> Iterator[str]:
    """Yield a sentence for each target that no worker reached: the last value, or which metrics were logged instead."""
    last: dict[str, float] = {}
    reached: set[str] = set()
    for record in _logged(folder) if targets else ():
        if isinstance(record.get("reached"), dict):
            reached.update(record["reached"])
        else:
            last.update({name: value for name, value in record.items() if name != "seconds"})
    for name, target in targets.items():
        if name in last and name not in reached:
            yield f"target {name}={target:g} was not reached: it was {last[name]:.6g} in the end"
        elif name not in last:
            logged = f"the script logs {', '.join(sorted(last))}" if last else "the script logs nothing"
            yield f"target {name}={target:g}: {name} was never logged, {logged}; report it with laconic.log({name}=…)"


def _logged(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield what the workers logged, rank 0's last; a line that was cut short is left out."""
    for path in sorted((folder / "metrics").glob("rank-*.jsonl"), reverse=True):
        for line in path.read_text(errors="replace").splitlines():
            with suppress(ValueError):
                yield json.loads(line)


def _bytes(count: float) -> str:
    size, unit = next((pair for pair in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")) if count >= pair[0]), (1.0, "bytes"))
    return f"{count / size:.4g} {unit}"
