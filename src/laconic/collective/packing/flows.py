"""Maximum flows in small graphs, many at once: each call of the solver costs more than such a flow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from laconic.collective.packing.capacities import Matrix
from laconic.errors import LaconicError

_LARGEST = 2**31 - 1  # SciPy's flows are integers of 32 bits


@dataclass(frozen=True)
class Question:
    """A flow from a node to another through a graph with more links (from, to); the capacity of a link that has none
    is unlimited."""

    source: int
    sink: int
    unlimited: tuple[tuple[int, int], ...] = ()


def max_flows(capacity: Matrix, questions: Sequence[Question], limit: int) -> NDArray[np.int64]:
    """Return the largest flow of each question, or the limit where it is larger.

    Each is asked of its own copy of the graph, behind one source and before one sink for all.
    """
    if limit > _LARGEST:
        raise LaconicError(
            f"a flow of {limit} units is more than can be computed; give rates with a larger common unit"
        )
    together = max(1, min(len(questions), _LARGEST // max(limit, 1)))
    parts = [questions[at : at + together] for at in range(0, len(questions), together)]
    return np.concatenate([_flows(capacity, part, limit) for part in parts] or [np.empty(0, dtype=np.int64)])


def _flows(capacity: Matrix, questions: Sequence[Question], limit: int) -> NDArray[np.int64]:
    nodes, count = len(capacity), len(questions)
    first, last = nodes * count, nodes * count + 1
    sources, sinks = np.nonzero(capacity)
    amounts = np.minimum(capacity[sources, sinks], limit)
    copies = nodes * np.arange(count)[:, None]
    unlimited = [(nodes * k + a, nodes * k + b) for k, question in enumerate(questions) for a, b in question.unlimited]
    more = np.asarray(unlimited, dtype=np.int64).reshape(-1, 2)
    starts = copies[:, 0] + [question.source for question in questions]
    ends = copies[:, 0] + [question.sink for question in questions]
    rows = np.concatenate([(copies + sources).ravel(), more[:, 0], np.full(count, first), ends])
    columns = np.concatenate([(copies + sinks).ravel(), more[:, 1], starts, np.full(count, last)])
    values = np.concatenate([np.tile(amounts, count), np.full(len(more) + 2 * count, limit)])
    graph = csr_array((values, (rows, columns)), shape=(last + 1, last + 1))
    graph.sum_duplicates()
    graph.data = np.minimum(graph.data, limit).astype(np.int32)
    found = maximum_flow(graph, first, last).flow
    sent: NDArray[np.int64] = np.zeros(last + 1, dtype=np.int64)
    span = slice(found.indptr[first], found.indptr[first + 1])
    sent[found.indices[span]] = found.data[span]
    return np.asarray(sent[starts])


def source_side(capacity: Matrix, source: int, sink: int) -> NDArray[np.bool_]:
    """Return which nodes are on the source's side of a smallest cut."""
    graph = csr_array(np.minimum(capacity, _LARGEST).astype(np.int32))
    left = capacity - maximum_flow(graph, source, sink).flow.toarray()
    reached = breadth_first_order(csr_array((left > 0).astype(np.int8)), source, return_predecessors=False)
    side = np.zeros(len(capacity), dtype=bool)
    side[reached] = True
    return side
