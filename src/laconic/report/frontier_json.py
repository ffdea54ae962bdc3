"""The JSON of `laconic frontier`: tables, orderings, short runs, the asked place and every cell of the map."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

from laconic.experiments.statistics import Spread
from laconic.frontier.answer import PROTOCOL, Frontier
from laconic.frontier.map import Cell
from laconic.frontier.tables import Table


def to_json(found: Frontier) -> str:
    """Return the answer as JSON; numbers that it does not have (NaN, infinity) are null."""
    tree = {
        "laconic_frontier": 1,
        "task": found.task,
        "workers": found.workers,
        "bits_per_second": found.rate,
        "parameters": found.size,
        "verdict": found.verdict,
        "protocol": PROTOCOL,
        "tables": [_table_tree(table) for table in found.tables],
        "orderings": [
            {
                "name": one.name,
                "verdict": one.verdict,
                "pairs": [
                    {**asdict(pair), "verdict": pair.verdict, "difference": _tree(pair.difference)}
                    for pair in one.pairs
                ],
            }
            for one in found.judged
        ],
        "short": [{"table": table.title, **asdict(one)} for table, one in found.short],
        "here": None if found.here is None else _cell_tree(found.here),
        "map": [] if found.map is None else [_cell_tree(cell) for cell in found.map.cells],
        "measured_up_to": None if found.map is None else found.map.measured_up_to,
        "notes": list(found.notes),
    }
    return json.dumps(_plain(tree), indent=1) + "\n"


def _table_tree(table: Table) -> dict[str, Any]:
    about_table = {name: getattr(table, name) for name in ("task", "rung", "skewed", "kind", "parameters", "workers")}
    return {
        **about_table,
        "optimizer": table.optimizer,
        "ddp_by_share_of_tokens": None if table.equivalence is None else table.equivalence.points,
        "lines": [
            {
                **asdict(line.method),
                "lr": line.tuned.lr,
                "seeds": line.seeds,
                "loss": line.loss,
                "gap": _tree(line.gap),
                "gap_by_t": _tree(line.gap_by_t),
                "tokens": _tree(line.tokens),
                "tokens_measured": line.tokens_measured,
                "bytes_per_step": line.bytes_per_step,
                "bytes_over_ddp": line.bytes_over_ddp,
                "metrics": {name: _tree(found) for name, found in line.metrics.items()},
                "warnings": line.tuned.warnings,
            }
            for line in table.lines
        ],
        "left_out": table.left_out,
    }


def _cell_tree(cell: Cell) -> dict[str, Any]:
    best = cell.best
    return {
        "bits_per_second": cell.bits_per_second,
        "parameters": cell.size,
        "ddp_step_seconds": cell.ddp.seconds,
        "best": None if best is None else asdict(best.method),
        "offers": [
            {
                **asdict(offer.method),
                "step_seconds": offer.step.seconds,
                "sent_bytes": offer.step.sent_bytes,
                "priced": offer.step.priced,
                "tokens": _tree(offer.tokens),
                "reaches_ddp": offer.reaches,
                "speed_up": _tree(offer.speed_up),
                "pays": offer.pays,
                "loss_by": offer.basis,
            }
            for offer in cell.offers
        ],
    }


def _tree(found: Spread | None) -> dict[str, float] | None:
    return None if found is None else asdict(found)


def _plain(tree: Any) -> Any:
    """Return a tree in which numbers that JSON does not have are None."""
    if isinstance(tree, float):
        return tree if math.isfinite(tree) else None
    if isinstance(tree, dict):
        return {str(name): _plain(value) for name, value in tree.items()}
    return [_plain(value) for value in tree] if isinstance(tree, list | tuple) else tree
