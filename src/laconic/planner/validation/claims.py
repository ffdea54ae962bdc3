"""The context of our validation figures: what was fitted, what was not, and which accuracy other tools claim.

Only figures found in the cited texts are listed; they were measured on other machines and for other questions, so they
show what is usual, not which tool is better.
"""

from __future__ import annotations

from dataclasses import dataclass

PUBLISHED, NCCL, POLLUX = "published step times", "nccl", "pollux"
LARGE, RUNS = "large models", "real runs"
SECTIONS = (PUBLISHED, NCCL, POLLUX, LARGE, RUNS)


@dataclass(frozen=True)
class Claim:
    """What another tool claims about its own accuracy, and where."""

    tool: str
    says: str
    where: str


@dataclass(frozen=True)
class Basis:
    """The basis of a section's figures: what was fitted, what was not, and the claims of other tools beside them."""

    fitted: str
    not_fitted: str
    others: tuple[Claim, ...]


_DPRO = Claim(
    "dPRO",
    "predicts training within 5 % in most cases",
    "Hu et al., MLSys 2022, abstract; from traces of the job itself",
)
_SIMAI = Claim("SimAI", "98.1 % alignment with real runs on average", "Wang et al., NSDI 2025, abstract")
_MULTIVERSE = Claim(
    "Multiverse", "less than 3.0 % discrepancy with real LLM training", "Gui et al., NSDI 2025, abstract"
)
_VTRAIN = Claim(
    "vTrain",
    "mean absolute error of iterations 8.37 % in one node, 14.73 % in several",
    "Bang et al., MICRO 2024; figures as its authors' institute gives them",
)
_CALCULON = Claim(
    "Calculon",
    "mean error of Megatron-LM's iterations on A100 3.65 %",
    "Isaev et al., SC 2023, validation against published runs",
)
_ATLAHS = Claim(
    "ATLAHS",
    "consistently less than 5 % error in simulating realistic workloads",
    "Shen et al., arXiv 2505.08936, abstract",
)
_DAYDREAM = Claim("Daydream", "accurate for optimizations that matter; no figure", "Zhu et al., ATC 2020, abstract")
_ASTRA_H100 = Claim(
    "ASTRA-sim",
    "NCCL all-reduce on HGX H100, analytical: geometric mean error 20.63, 12.01, 9.69 % on 2, 4, 8 GPUs",
    "ASTRA-sim documentation, validation on HGX-H100",
)
_ASTRA_V100 = Claim(
    "ASTRA-sim",
    "NCCL all-reduce over NVLink: 11.4, 7.9, 2.8 % on 2, 4, 8 GPUs",
    "ASTRA-sim documentation, validation on HPE ProLiant Gen10",
)
_POLLUX = Claim(
    "Pollux",
    "its goodput model reduces completion times by 37-50 %; no error of predicted steps",
    "Qiao et al., OSDI 2021, abstract",
)
_NOISE = Claim(
    "gradient noise scale",
    '"approximately" the largest useful batch size; no error of steps',
    "McCandlish et al., arXiv 1812.06162, and its summary",
)

BASES = {
    PUBLISHED: Basis(
        "start-up and bandwidth of a hop between machines, for each network to its own rows",
        "methods, models, numbers of GPUs",
        (_DPRO, _DAYDREAM, _VTRAIN),
    ),
    NCCL: Basis(
        "nothing: what is left out is interpolated from the rest (the method was chosen with these tables at hand)",
        "systems, operations, protocols",
        (_ASTRA_H100, _ASTRA_V100, _ATLAHS),
    ),
    POLLUX: Basis(
        "two numbers for each target, to the steps of the other batch sizes",
        "the run that is left out: neither its progress nor its metric is read, but all runs set the target",
        (_POLLUX, _NOISE),
    ),
    LARGE: Basis(
        "what each group of runs says, five constants at most (the model's form was chosen with these tables at hand)",
        "models, layouts, numbers of GPUs",
        (_CALCULON, _VTRAIN),
    ),
    RUNS: Basis(
        "nothing to these runs: predictions rest on profiles of the model and the links",
        "strategies, networks, numbers of workers",
        (_DPRO, _SIMAI, _MULTIVERSE, _VTRAIN),
    ),
}
