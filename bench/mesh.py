"""Experts and ring attention among four processes on shaped networks: the time of a layer beside its price.

    python bench/mesh.py                       # 10 Mb/s and 100 Mb/s; needs root, `ip` and `tc`
    python bench/mesh.py --repeats 15 --rates 1e8

A layer of experts is what its all-to-alls take, beside small matrices; first, the backend's own all-to-all with the
same rows, four times. In ring attention computing is
emulated by waits, so that four workers on fewer cores do not slow each other down. Cases take turns in one run of the
processes; the median of the repeats is shown, of the slowest rank each time, forward and backward together. Prices come
from the routing, the waits and the rates of the links, less what TCP and IP add to each packet; nothing is fitted.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

from cases_on_links import beside_prices, measured_on_links, take_turns  # noqa: E402
from workers import PAYLOAD_SHARE  # noqa: E402

WORKERS, TOKENS, WIDTH, EXPERTS, TOP = 4, 512, 256, 8, 2
CODES = {"experts, 32 bits": ("none", "none"), "experts, int8 and bf16": ("int8(256)", "cast_bf16")}
BACKENDS_OWN = "gloo's all-to-all, 4 times"
BATCH, HEADS, LENGTH, HEAD_WIDTH = 1, 4, 512, 64
RINGS = {"ring, full": (False, False), "ring, causal": (True, False), "ring, causal zigzag": (True, True)}
PAIRS = (1e-6, 2e-6)
"""Seconds that a query and a key take forward and backward: 16 and 33 ms of a block."""


def tokens(device: int) -> Any:
    import torch

    return torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(device))


def layer() -> Any:
    import torch
    from torch import nn

    from laconic.parallel.experts.layer import MixtureOfExperts

    torch.manual_seed(0)
    experts = [nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS)]
    return MixtureOfExperts(nn.Linear(WIDTH, EXPERTS), experts, TOP)


def rows() -> Any:
    """Return how many rows of tokens each device sends to each."""
    import numpy as np

    from laconic.parallel.experts.routing import choose

    router = layer().router
    chosen = [choose(router(tokens(d)), TOP).experts.flatten() // (EXPERTS // WORKERS) for d in range(WORKERS)]
    return np.stack([np.bincount(experts.numpy(), minlength=WORKERS) for experts in chosen])


# ------------------------------------------------------------------------------------------------ in a worker


class Waiting:
    """A worker that waits where a virtual one would let its time pass."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker

    def computed(self, part: str, share: float = 1.0, name: str | None = None) -> None:
        time.sleep(share)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)


def work(todo: dict[str, Any]) -> None:
    import torch

    from laconic.api.mesh import init_device_mesh
    from laconic.parallel.context.ring import PairSeconds, ring_attention
    from laconic.parallel.experts.shard import shard_experts
    from laconic.real.connect import connect

    worker = connect()
    mesh = init_device_mesh("cpu", (WORKERS,), mesh_dim_names=("line",))
    out, back = (WIDTH * lengths for lengths in (rows()[worker.rank], rows()[:, worker.rank]))

    def backends_own() -> None:
        flat = torch.empty(int(out.sum()))
        for _ in range(2):
            there = worker.world.all_to_all(flat, out.tolist(), back.tolist()).wait()
            worker.world.all_to_all(there, back.tolist(), out.tolist()).wait()

    cases: dict[str, Any] = {
        name: shard_experts(layer(), mesh, forward=forward, backward=backward)
        for name, (forward, backward) in CODES.items()
    }
    for name, (causal, zigzag) in RINGS.items():
        attend = ring_attention(mesh, LENGTH, causal=causal, zigzag=zigzag, pair_seconds=PairSeconds(*PAIRS))
        attend.ring.worker = Waiting(worker)  # type: ignore[assignment]
        cases[name] = attend
    x = tokens(worker.rank).requires_grad_()
    q, k, v = (torch.randn(BATCH, HEADS, LENGTH // WORKERS, HEAD_WIDTH, requires_grad=True) for _ in range(3))

    def attended(attend: Any) -> Callable[[], None]:
        return lambda: attend(q, k, v).sum().backward()

    def processed(experts: Any) -> Callable[[], None]:
        return lambda: experts(x).sum().backward()

    runs = {name: (attended if name in RINGS else processed)(made) for name, made in cases.items()}
    take_turns(worker, {**runs, BACKENDS_OWN: backends_own}, todo["repeats"])


# ------------------------------------------------------------------------------------------------ measurement


def prices(rate: float) -> dict[str, float]:
    """Return what each case should take."""
    from laconic.network.network_tree import Network
    from laconic.parallel.context.parts import Parts
    from laconic.parallel.context.price import ring_seconds
    from laconic.parallel.context.ring import PairSeconds
    from laconic.parallel.experts.price import expert_seconds

    network, table = Network.flat(WORKERS, rate * PAYLOAD_SHARE), rows()
    exact = expert_seconds(network, table, WIDTH, EXPERTS, TOP)
    found = {BACKENDS_OWN: exact.forward + exact.backward}
    found |= {
        name: expert_seconds(network, table, WIDTH, EXPERTS, TOP, forward=forward, backward=backward).total
        for name, (forward, backward) in CODES.items()
    }
    for name, (causal, zigzag) in RINGS.items():
        parts, token_bytes = Parts(LENGTH, WORKERS, zigzag), 4.0 * BATCH * HEADS * 2 * HEAD_WIDTH
        both = ring_seconds(network, parts, token_bytes, PairSeconds(*PAIRS), causal=causal)
        found[name] = both.forward + both.backward
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=float, nargs="+", default=[1e7, 1e8], help="bits a second of each worker")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--as-worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.as_worker:
        work(json.loads(given.as_worker))
        return
    for rate in given.rates:
        found = measured_on_links(__file__, WORKERS, rate, given.repeats)
        title = f"{WORKERS} devices at {rate / 1e6:g} Mb/s, forward and backward"
        Console(width=max(120, Console().width)).print(beside_prices(found, prices(rate).items(), title))


if __name__ == "__main__":
    main()
