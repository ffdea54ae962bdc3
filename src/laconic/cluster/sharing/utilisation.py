"""How busy a job will keep a GPU: predicted from its model's graph, by what past jobs did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from laconic.cluster.sharing.mps import Pair
from laconic.errors import ClusterError

if TYPE_CHECKING:
    import torch

_EDGE = 0.02  # a utilisation is kept so far from 0 and 1 that its logit is finite


@dataclass(frozen=True)
class Graph:
    """What a model's computation graph shows of one forward pass.

    - `operators`: how many there are of each kind.
    - `flops`: multiplications and additions.
    - `parameters`: how many.
    - `activations`: entries of all outputs.
    - `batch`: samples.
    """

    operators: tuple[tuple[str, int], ...]
    flops: float
    parameters: float
    activations: float
    batch: int

    @property
    def depth(self) -> int:
        """All operators."""
        return sum(count for _, count in self.operators)


def graph_of(model: torch.nn.Module, example: torch.Tensor) -> Graph:
    """Return the features of a model; nothing is trained, and no gradient kept. Multiplications are counted where an
    operator has a matrix of weights; what attention multiplies without one is not.

    - `model`: whose leaf modules are its operators.
    - `example`: a batch.
    """
    import torch

    kinds: Counter[str] = Counter()
    entries, flops = 0, 0.0

    def seen(module: torch.nn.Module, inputs: Any, output: Any) -> None:
        nonlocal entries, flops
        del inputs
        kinds[type(module).__name__] += 1
        outputs = output if isinstance(output, tuple | list) else (output,)
        count = sum(value.numel() for value in outputs if isinstance(value, torch.Tensor))
        entries += count
        weight = getattr(module, "weight", None)
        if isinstance(weight, torch.Tensor) and weight.ndim > 1 and not isinstance(module, torch.nn.Embedding):
            flops += 2.0 * count * weight[0].numel()

    hooks = [module.register_forward_hook(seen) for module in model.modules() if not list(module.children())]
    try:
        with torch.no_grad():
            model(example)
    finally:
        for hook in hooks:
            hook.remove()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return Graph(tuple(sorted(kinds.items())), flops, parameters, entries, len(example))


@dataclass(frozen=True)
class Predictor:
    """A regressor of utilisation: linear in the logarithms of a graph's features, through a logistic curve.

    - `kinds`: the operators that it counts; others count as part of the depth alone.
    - `middle`, `spread`: of each feature over past jobs.
    - `weights`: of each feature, the constant last.
    """

    kinds: tuple[str, ...]
    middle: np.ndarray
    spread: np.ndarray
    weights: np.ndarray

    def predict(self, graph: Graph) -> float:
        """Return the share of a GPU that a job keeps busy, alone.

        - `graph`: its model's.
        """
        x = (_row(graph, self.kinds) - self.middle) / self.spread
        return float(1 / (1 + np.exp(-(x @ self.weights[:-1] + self.weights[-1]))))


def train(graphs: Sequence[Graph], utilisations: Sequence[float], damping: float = 0.1) -> Predictor:
    """Return the predictor that fits past jobs best, in squares of the logit; coefficients that they leave open are
    drawn to 0.

    - `graphs`: of past jobs.
    - `utilisations`: what they had.
    - `damping`: how strongly.
    """
    if len(graphs) != len(utilisations) or not graphs:
        raise ClusterError("a predictor of utilisation is trained on past jobs; give a graph and a utilisation of each")
    kinds = tuple(sorted({kind for graph in graphs for kind, _ in graph.operators}))
    table = np.stack([_row(graph, kinds) for graph in graphs])
    middle, spread = table.mean(axis=0), np.maximum(table.std(axis=0), 1e-9)
    x = np.column_stack([(table - middle) / spread, np.ones(len(table))])
    target = np.clip(np.array(utilisations), _EDGE, 1 - _EDGE)
    penalty = damping * np.eye(x.shape[1])
    penalty[-1, -1] = 0.0
    weights = np.linalg.solve(x.T @ x + penalty, x.T @ np.log(target / (1 - target)))
    return Predictor(kinds, middle, spread, weights)


def _row(graph: Graph, kinds: Sequence[str]) -> np.ndarray:
    counts = dict(graph.operators)
    whole = [graph.flops, graph.parameters, graph.activations, graph.batch, graph.depth, graph.flops / graph.depth]
    found: np.ndarray = np.log1p(np.array([*whole, *(counts.get(kind, 0) for kind in kinds)], dtype=float))
    return found


def of_kinds(pairs: Sequence[Pair], busy: Sequence[float]) -> dict[str, float]:
    """Return how busy each kind of job keeps a GPU, from how busy pairs of them did: the sum of both, but no more than
    all, in least squares.

    - `pairs`: who was together.
    - `busy`: the share of the time in which the GPU was.
    """
    from scipy.optimize import least_squares

    kinds = sorted({kind for pair in pairs for kind in pair[:2]})
    number = {kind: i for i, kind in enumerate(kinds)}
    first = np.array([number[pair.first] for pair in pairs])
    second = np.array([number[pair.second] for pair in pairs])
    measured, at = np.array(busy), np.arange(len(pairs))

    def misses(x: np.ndarray) -> np.ndarray:
        found: np.ndarray = np.minimum(x[first] + x[second], 1.0) - measured
        return found

    def slopes(x: np.ndarray) -> np.ndarray:
        found, free = np.zeros((len(pairs), len(kinds))), (x[first] + x[second] < 1).astype(float)
        np.add.at(found, (at, first), free)
        np.add.at(found, (at, second), free)
        return found

    found = least_squares(misses, np.full(len(kinds), 0.4), slopes, bounds=(0.0, 1.0)).x
    return {kind: float(found[i]) for kind, i in number.items()}
