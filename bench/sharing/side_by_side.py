"""Trainings side by side on one GPU, by the driver's time slices and under MPS, beside what models predict."""

from __future__ import annotations

from collections.abc import Sequence

from bench.mps import daemon
from bench.sharing.rows import Rows, spread
from bench.sharing.workers import Worker, busy_seconds, pick, pool_for, rates, workers

from laconic.cluster.sharing import mps
from laconic.cluster.sharing.throughput import Throughput
from laconic.errors import ClusterError

Case = tuple[tuple[str, float], ...]


def case(*kinds: str) -> Case:
    """Return processes without caps."""
    return tuple((kind, 1.0) for kind in kinds)


CASES = (
    case("mlp", "mlp"),
    case("conv", "conv"),
    case("gpt", "gpt"),
    case("mlp", "gpt"),
    case("conv", "gpt"),
    case("conv", "conv", "conv", "conv"),
    case("gpt", "gpt", "gpt", "gpt"),
    case("conv", "conv", "gpt", "gpt"),
)
CAPS = (0.25, 0.5, 0.75)
CAPPED = (
    (("conv", 0.5), ("conv", 0.5)),
    (("gpt", 0.5), ("gpt", 0.5)),
    (("conv", 0.5), ("gpt", 0.5)),
    (("conv", 0.25), ("gpt", 0.75)),
    (("conv", 0.75), ("gpt", 0.25)),
    (("gpt", 0.25), ("gpt", 0.75)),
)


class Measured:
    """What is known of the kinds alone: rates, kernel seconds of a step, and rates under caps."""

    def __init__(self) -> None:
        self.alone: dict[str, float] = {}
        self.kernels: dict[str, float] = {}
        self.capped: dict[tuple[str, float], float] = {}

    def busy(self, kind: str) -> float:
        """Return the share of the time in which kernels of a kind run, alone."""
        return min(self.kernels[kind] * self.alone[kind], 1.0) or 1.0  # where the profile saw nothing: always

    def needed(self, kind: str) -> float:
        """Return the least cap under which a kind is at most a twentieth slower than without."""
        return min((cap for cap in CAPS if self.capped.get((kind, cap), 0.0) > 0.95 * self.alone[kind]), default=1.0)

    def profile(self, kind: str) -> Throughput:
        """Return its speed under caps, over that without; where that is not concave, as the kernel times say."""
        shares = [cap for cap in CAPS if (kind, cap) in self.capped]
        try:
            speeds = [min(self.capped[kind, cap] / self.alone[kind], 1.0) for cap in shares]
            return Throughput((*shares, 1.0), (*speeds, 1.0))
        except ClusterError:
            return Throughput.knee(self.busy(kind))


def predictions(known: Measured, jobs: Case) -> dict[str, list[float]]:
    """Return the speeds over those alone that models predict.

    - `alike`: all are slowed alike where the shares of time in which each is busy exceed the whole (`mps.rates`).
    - `equal`: each gets an equal share of the time, and uses what it can (lanes and `Iterations`).
    - `capped`: as `alike`, for the share of the multiprocessors that a job keeps busy, and its speed under its cap.
    """
    plain = [mps.Client(Throughput.knee(known.busy(kind)), known.busy(kind), share=cap) for kind, cap in jobs]
    found = {
        "alike": mps.rates(plain),
        "equal": [client.throughput.rate(min(1 / len(jobs), client.share)) for client in plain],
    }
    if known.capped:
        clients = [
            mps.Client(known.profile(kind), known.busy(kind) * known.needed(kind), share=cap) for kind, cap in jobs
        ]
        found["capped"] = mps.rates(clients)
    return found


def learn(known: Measured, pool: Sequence[Worker], seconds: float, repeats: int, rows: Rows, section: str) -> None:
    """Measure each kind of a pool alone."""
    for kind, share in dict.fromkeys((worker.kind, worker.share) for worker in pool):
        (one,) = pick(pool, [(kind, share)])
        found = spread([rate for (rate,) in rates([one], seconds, repeats)])
        if share < 1:
            known.capped[kind, share] = found["median"]
            over = found["median"] / known.alone[kind]
            rows.add(section, case=f"{kind} alone, capped at {share:.0%}", steps_a_second=found, of_alone=over)
            continue
        known.alone[kind] = found["median"]
        if kind not in known.kernels:
            known.kernels[kind] = busy_seconds(one)
        ms = 1e3 * known.kernels[kind] or "the profile shows no kernels; taken to be always busy"
        rows.add(section, case=f"{kind} alone", steps_a_second=found, kernel_ms=ms, busy=known.busy(kind))


def measure(
    known: Measured,
    pool: Sequence[Worker],
    cases: Sequence[Case],
    seconds: float,
    repeats: int,
    rows: Rows,
    section: str,
) -> None:
    """Measure cases of a pool, and say what models predict of them."""
    for jobs in cases:
        name = "+".join(kind if share == 1 else f"{kind}@{share:.0%}" for kind, share in jobs)
        if not rows.time_for(section, name, 3 * repeats * seconds + 5):
            return
        found = rates(pick(pool, jobs), seconds, repeats)
        speeds = [[rate / known.alone[kind] for rate, (kind, _) in zip(row, jobs, strict=True)] for row in found]
        each = [spread([row[i] for row in speeds]) for i in range(len(jobs))]
        predicted = predictions(known, jobs)
        rows.add(
            section,
            case=name,
            of_alone=each,
            together=spread([sum(row) for row in speeds]),
            **{f"predicted_{model}": speeds for model, speeds in predicted.items()},
            **{
                f"error_{model}": [p / m["median"] - 1 for p, m in zip(speeds, each, strict=True)]
                for model, speeds in predicted.items()
            },
        )


def slices(rows: Rows, device: str, small: bool, seconds: float, repeats: int, known: Measured) -> None:
    """Measure the driver's time slices."""
    cases = CASES[3:5] if small else CASES
    with workers(pool_for(cases), device, small) as pool:
        learn(known, pool, seconds, repeats, rows, "slices")
        measure(known, pool, cases, seconds, repeats, rows, "slices")


def under_mps(rows: Rows, device: str, small: bool, seconds: float, repeats: int, known: Measured) -> None:
    """Measure the same under MPS, where its daemon runs, and with caps; what `known` has of the kernels stays."""
    with daemon() as (environment, why_not):
        if environment is None:
            rows.add("mps", case="daemon", absent=why_not)
            return
        cases = (CASES[4], CAPPED[2]) if small else (*CASES, *CAPPED)
        with workers(pool_for(cases), device, small, environment) as pool:
            learn(known, pool, seconds, repeats, rows, "mps")
            measure(known, pool, cases, seconds, repeats, rows, "mps")
