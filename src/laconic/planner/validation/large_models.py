"""Published iterations of large transformers against predictions of the cost model of 3D parallelism."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from laconic.parallel.hybrid.cluster import DGX_A100, HOST_A100_40GB, Cluster, Constants
from laconic.parallel.hybrid.fit import fitted
from laconic.parallel.hybrid.iteration import iteration_seconds
from laconic.parallel.hybrid.published import Published, mt_nlg_runs, sc21
from laconic.parallel.hybrid.runs import FULL, NONE
from laconic.planner.validation import vtrain
from laconic.planner.validation.errors import Errors
from laconic.planner.values import PlanError

FITTED_ROWS = 20
"""Rows of vTrain's table of one host to which its constants are fitted."""
SMALL_NAMES = ("product_share", "memory_share", "launch_seconds", "collective_seconds", "step_seconds")
LARGE_NAMES = ("product_share",)


@dataclass(frozen=True)
class Case:
    """A run with its measured and its predicted seconds."""

    name: str
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


@dataclass(frozen=True)
class Group:
    """Runs of one publication, on what their predictions rest, and the constants behind them."""

    name: str
    rests_on: str
    constants: Constants
    cases: tuple[Case, ...]

    @property
    def errors(self) -> Errors:
        found = Errors.of((case.predicted, case.measured) for case in self.cases)
        assert found is not None  # there is a case
        return found


@dataclass(frozen=True)
class LargeModels:
    """The groups that could be predicted, and notes on those that could not."""

    groups: tuple[Group, ...]
    notes: tuple[str, ...] = ()


def validate(data: Path | None) -> LargeModels:
    """Predict the tables that come with the package, and vTrain's where the folder has them."""
    large = fit(sc21(), LARGE_NAMES, DGX_A100)
    groups, notes = [_left_out(sc21()), *_turing(large)], []
    try:
        if data is None:
            raise PlanError("set LACONIC_DATA (or --data) to the folder of published measurements (`laconic data`)")
        single = vtrain.read(data / vtrain.SINGLE, NONE)
        if len(single) <= FITTED_ROWS:
            raise PlanError(
                f"{data / vtrain.SINGLE} has {len(single)} rows: {FITTED_ROWS} are fitted, others predicted"
            )
        groups.append(of_one_host(single))
        groups.append(of_many_hosts(vtrain.read(data / vtrain.MULTI, FULL), large))
    except PlanError as error:
        notes.append(f"vTrain's tables are left out: {error}")
    return LargeModels(tuple(groups), tuple(notes))


def fit(rows: Sequence[Published], names: Sequence[str], cluster: Cluster) -> Constants:
    """Return the constants with the named ones fitted to all rows."""
    return fitted([row.run for row in rows], [row.seconds for row in rows], names, cluster)


def of_one_host(rows: Sequence[Published]) -> Group:
    """Predict vTrain's rows of one host but for twenty, to which constants are fitted.

    These are at even distances among the rows as sorted by their sizes, whatever their times and their order are.
    """
    ordered = sorted(rows, key=_sizes)
    known = {(2 * k + 1) * len(rows) // (2 * FITTED_ROWS) for k in range(FITTED_ROWS)}
    constants = fit([ordered[k] for k in sorted(known)], SMALL_NAMES, HOST_A100_40GB)
    others = [row for k, row in enumerate(ordered) if k not in known]
    rests_on = f"five constants fitted to {FITTED_ROWS} other rows, chosen by their sizes; nothing recomputed"
    return Group("vTrain, one host", rests_on, constants, _predicted(others, HOST_A100_40GB, constants))


def of_many_hosts(rows: Sequence[Published], constants: Constants) -> Group:
    """Predict vTrain's rows of many hosts; the table does not tell their network, so hosts are Selene's."""
    rests_on = "nothing fitted to these rows: the constant of SC 2021's ten; layers recomputed, hosts as Selene's"
    return Group("vTrain, many hosts", rests_on, constants, _predicted(rows, DGX_A100, constants))


def _sizes(row: Published) -> tuple[int, ...]:
    """Return what rows are sorted by: first the sizes that change a layer's time most."""
    layout, model = row.run.layout, row.run.model
    grid = (layout.pipeline, layout.data)
    return (layout.tensor, layout.microbatch, model.hidden, *grid, model.layers, row.run.batch)


def _left_out(rows: Sequence[Published]) -> Group:
    cases: list[Case] = []
    for k, row in enumerate(rows):
        constants = fit([*rows[:k], *rows[k + 1 :]], LARGE_NAMES, DGX_A100)
        cases += _predicted([row], DGX_A100, constants)
    rests_on = "one constant, the share of the peak of large products, fitted to the nine other rows each time"
    return Group("Megatron-LM, SC 2021", rests_on, fit(rows, LARGE_NAMES, DGX_A100), tuple(cases))


def _turing(constants: Constants) -> list[Group]:
    rests_on = "nothing fitted to these rows: the constant of SC 2021's ten; "
    return [
        Group(
            "Megatron-Turing NLG 530B",
            rests_on + "32-bit sums, whole sends in turn, as we read DeepSpeed's engine",
            constants,
            _predicted(mt_nlg_runs(), DGX_A100, constants),
        ),
        Group(
            "the same, if it were Megatron-LM",
            rests_on + "16-bit sums, sends split and both ways at once",
            constants,
            _predicted(mt_nlg_runs(as_deepspeed=False), DGX_A100, constants),
        ),
    ]


def _predicted(rows: Sequence[Published], cluster: Cluster, constants: Constants) -> tuple[Case, ...]:
    return tuple(Case(row.name, row.seconds, iteration_seconds(row.run, cluster, constants)) for row in rows)
