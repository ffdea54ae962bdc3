"""What a run of `dp_fedavg` guarantees: (ε, δ) of differential privacy, by Opacus's accountant."""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any

from laconic.compression.fixed_point import FixedPoint
from laconic.errors import LaconicError
from laconic.federated.rules.dp_fedavg import DPFedAvg
from laconic.federated.strategy import FederatedStrategy


def epsilon(noise: float, rate: float, steps: int, delta: float) -> float:
    """Return ε at δ of so many steps of the sampled Gaussian mechanism, by Rényi differential privacy; neighbours
    differ in one client that is there or not.

    - `noise`: the standard deviation of the noise over the largest that one client can change the sum by.
    - `rate`: the probability with which a client takes part in a step.
    """
    if noise <= 0:
        return math.inf if steps else 0.0
    analysis = _opacus("accountants.analysis.rdp")
    orders = [1 + x / 10 for x in range(1, 100)] + list(range(11, 64)) + [2**k for k in range(6, 11)]
    spent = analysis.compute_rdp(q=rate, noise_multiplier=noise, steps=steps, orders=orders)
    return float(analysis.get_privacy_spent(orders=orders, rdp=spent, delta=delta)[0])


def noise_for(target: float, rate: float, steps: int, delta: float) -> float:
    """Return the noise, to 1 %, at which so many steps have at most this ε at δ."""
    low, high = 0.0, 1.0
    while epsilon(high, rate, steps, delta) > target:
        low, high = high, 2 * high
        if high > 1e6:
            raise LaconicError(f"no noise gives ε = {target} at δ = {delta} over {steps} steps; take a larger δ or ε")
    while high - low > 0.01 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if epsilon(middle, rate, steps, delta) > target else (low, middle)
    return high


def guarantee(strategy: str | FederatedStrategy, population: int, steps: int, delta: float, numel: int) -> float:
    """Return ε at δ after so many steps of a sentence whose rule is `dp_fedavg`.

    Behind `secagg` the server cannot clip what it has received, and rounding may have made a client's change longer: by
    the root of the model's parameters times the step of the grid, at most, which is counted here.

    - `population`: how many clients there are.
    - `numel`: the parameters of the model.
    """
    said = FederatedStrategy.parse(strategy) if isinstance(strategy, str) else strategy
    rule = said.rule
    if not isinstance(rule, DPFedAvg):
        raise LaconicError(f"{rule.name} adds no noise and guarantees no privacy; write dp_fedavg")
    selected, _ = said.structure.wanted(rule.clients)
    longest = rule.clip
    if said.structure.name == "secagg":
        longest += math.sqrt(numel) * _grid_step(said, population)
    return epsilon(rule.noise * rule.clip / longest, min(1.0, selected / population), steps, delta)


def _grid_step(said: FederatedStrategy, clients: int) -> float:
    """Return the step of the grid to which clients round, in a round of at most so many."""
    if len(said.compression) != 1 or not isinstance(grid := said.compressor, FixedPoint):
        raise LaconicError(f"how much {said.chain} lengthens a change is not known; write fixed_point without a memory")
    return float(2.0 ** (grid.room(clients) - grid.fraction))


def _opacus(module: str) -> Any:
    try:
        return import_module(f"opacus.{module}")
    except ImportError as error:
        raise LaconicError("accounting needs Opacus; run pip install 'laconic[private]'") from error
