"""What a job needs of a GPU, of memory, of cores and of the network, estimated from jobs that have run before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from laconic.cluster.job import Job
from laconic.errors import ClusterError


class Features(NamedTuple):
    """What is known of a job before it runs.

    - `model`: the family of its model.
    - `parameters`: how many.
    - `batch`: samples of a worker's step.
    - `workers`, `servers`: of the job.
    """

    model: str
    parameters: float
    batch: float
    workers: int = 1
    servers: int = 0


class Needs(NamedTuple):
    """What a worker of a job uses.

    - `gpu_share`: of a GPU's time.
    - `gpu_memory_bytes`: of its memory.
    - `cpu_milli`: thousandths of a core.
    - `bytes_per_second`: that it sends.
    """

    gpu_share: float
    gpu_memory_bytes: float
    cpu_milli: float
    bytes_per_second: float


@dataclass(frozen=True)
class NeedsModel:
    """Needs as products of powers of features: a linear regression of logarithms, with a constant for each family of
    models; the mean of all stands in for a family that was not there before.

    - `families`: the names of families.
    - `coefficients`: a row a term, a column a need.
    - `margin`: what each estimate is multiplied by, so that most jobs stay below it.
    """

    families: tuple[str, ...]
    coefficients: NDArray[np.float64]
    margin: NDArray[np.float64]

    @staticmethod
    def fit(past: Sequence[tuple[Features, Needs]], covered: float = 0.95) -> NeedsModel:
        """Return the model of jobs that have run.

        - `past`: their features and what they were seen to need.
        - `covered`: the share of them that stays below its estimate.
        """
        if not past:
            raise ClusterError("no job has run yet from which needs could be estimated; give some")
        families = tuple(sorted({features.model for features, _ in past}))
        rows = np.array([_terms(features, families) for features, _ in past])
        seen = np.log(np.maximum(np.array([needs for _, needs in past], dtype=float), 1e-12))
        found, *_ = np.linalg.lstsq(rows, seen, rcond=None)
        return NeedsModel(families, found, np.exp(np.quantile(seen - rows @ found, covered, axis=0)))

    def needs(self, features: Features) -> Needs:
        """Return what a job will need, with a margin; of a GPU all of it at most.

        - `features`: of the job.
        """
        found = np.exp(_terms(features, self.families) @ self.coefficients) * self.margin
        return Needs(*found.tolist())._replace(gpu_share=min(float(found[0]), 1.0))


def asking_for(job: Job, needs: Needs) -> Job:
    """Return a job that asks for what it needs rather than for what its owner asked: a job of one worker for a part of
    a GPU, and all for memory and cores.

    - `job`: as it was submitted.
    - `needs`: of each of its workers.
    """
    gpus = needs.gpu_share if job.gpus <= 1 else job.gpus
    memory = needs.gpu_memory_bytes
    kept = min(job.gpu_persistent_bytes, memory)
    cores = needs.cpu_milli * job.workers
    return replace(job, gpus=gpus, gpu_memory_bytes=memory, gpu_persistent_bytes=kept, cpu_milli=cores)


def _terms(features: Features, families: Sequence[str]) -> NDArray[np.float64]:
    known = features.model in families
    own = [float(features.model == family) if known else 1 / len(families) for family in families]
    logs = np.log([features.parameters, features.batch, features.workers, 1 + features.servers])
    return np.array([*own, *logs])
