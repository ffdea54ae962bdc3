"""Published measurements that `laconic validate`, tests and examples can use: what they are, and where to get them.

None is part of this project. Each goes into the folder that `LACONIC_DATA` names, under the path given here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from laconic.errors import LaconicError
from laconic.files import exists
from laconic.planner.validation.claims import LARGE, NCCL, POLLUX, PUBLISHED


@dataclass(frozen=True)
class Dataset:
    """One set of files: their places under the folder, contents, public source, licence, and who reads them."""

    places: tuple[str, ...]  # patterns, all of which must be there
    holds: str
    source: str
    licence: str
    readers: str

    def found(self, folder: Path) -> bool:
        """Return whether everything of it is in the folder."""
        return all(any(folder.glob(place)) for place in self.places)


DATASETS = (
    Dataset(
        ("ddl-benchmarks/throughput.csv", "ddl-benchmarks/inputs.csv"),
        "samples a second of seven methods, three models, 4 to 32 GPUs on two networks, with deviations (columns "
        "network, model, method, g4, g4_sd … g32, g32_sd), and what predictions "
        "may use (kind, name, field, value, unit)",
        "https://github.com/HKBU-HPML/ddl-benchmarks and its paper, arXiv 2005.13247",
        "figures",
        f'`laconic validate --section "{PUBLISHED}"`, tests, bench/emulated.py, bench/gpu_table.py',
    ),
    Dataset(
        ("nccl/nccl_perf.csv",),
        "times of NCCL's collectives by operation, size, GPUs and system (columns system, op_name, nccl_dtype, "
        "num_gpus, message_size, latency)",
        "https://pypi.org/project/aiconfigurator-core (version 0.12)",
        "Apache-2.0",
        f"`laconic validate --section {NCCL}`, tests",
    ),
    Dataset(
        ("pollux/traces/*/validation-*.csv", "pollux/traces/*/placements.csv"),
        "training curves with the gradient's noise, and step times by placement, of six models",
        "https://github.com/petuum/adaptdl (the OSDI 2021 artifact)",
        "Apache-2.0",
        f"`laconic validate --section {POLLUX}`, tests, bench/gpu_table.py",
    ),
    Dataset(
        ("vtrain/single_sample.csv", "vtrain/multi_sample.csv"),
        "iteration times of GPTs on A100s of one host and of many, by layout",
        "https://github.com/VIA-Research/vTrain",
        "MIT",
        f'`laconic validate --section "{LARGE}"`, tests, bench/gpu_table.py',
    ),
    Dataset(
        ("gavel/simulation_throughputs.json",),
        "steps a second by job and GPU, alone and in pairs",
        "https://github.com/stanford-futuredata/gavel",
        "MIT",
        "bench/gpu_table.py",
    ),
    Dataset(
        ("text/tinyshakespeare.txt",),
        "1.1 MB of text for character models",
        "https://github.com/karpathy/char-rnn",
        "public domain",
        "examples/chars.py, `laconic federated --task shakespeare`, tests, bench",
    ),
    Dataset(
        ("fixtures/*.npz",),
        "inputs and outputs recorded from public programs of 25 techniques: the authors' own, but for five of GRACE",
        "recorded for this project and not published; `laconic show TECHNIQUE` names what each reproduces",
        "numbers only",
        "tests of techniques with evidence `fixture` or `third-party`, which are skipped without it",
    ),
)


def folder_of(given: Path | None) -> Path | None:
    """Return the folder of published measurements, if there is one."""
    if given is not None and not (exists(given) and given.is_dir()):
        raise LaconicError(f"there is no folder {given}: make it, or set LACONIC_DATA (or --data) to another")
    return given
