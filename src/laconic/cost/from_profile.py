"""Timing from a profile: the values with which planners predict an iteration before anything runs."""

from __future__ import annotations

import torch

from laconic.values.price import Price, one_way, ring
from laconic.values.profile import LinkTimes, Profile, ProfileError, TensorTime
from laconic.values.tensor_spec import TensorSpec
from laconic.values.timing import Timing
from laconic.values.wire import wire_factor


def tensors_of(profile: Profile) -> tuple[list[TensorSpec], list[int]]:
    """Return a profile's tensors in the order of the forward pass, and the order in which backward computes them."""
    tensors = [TensorSpec(t.name, t.shape, dtype_of(t)) for t in reversed(profile.model.tensors)]
    return tensors, list(reversed(range(len(tensors))))


def dtype_of(tensor: TensorTime) -> torch.dtype:
    """Return the dtype that a profile names."""
    found = getattr(torch, tensor.dtype, None)
    if not isinstance(found, torch.dtype):
        raise ProfileError(f"{tensor.name} has no dtype {tensor.dtype!r} in torch: write float32, bfloat16 or another")
    return found


def timing_of(profile: Profile, price: Price, duplex: bool = False, halved: Price | None = None) -> Timing:
    """Return a profile's times by tensor; those of forward divide over tensors as those of backward do."""
    backward = tuple(t.backward_seconds for t in reversed(profile.model.tensors))
    total, model = sum(backward), profile.model
    scale = model.backward.median / total if total else 0.0
    shares = [b / total if total else 1 / len(backward) for b in backward]
    forward = tuple(share * (model.forward.median + model.step.median) for share in shares)
    return Timing(forward, tuple(scale * b for b in backward), price, duplex, halved)


def prices_on(workers: int, bits_per_second: float, latency_seconds: float, servers: int | None) -> Price:
    """Return the price, on a described network, of a ring all-reduce, or of a push and a pull with so many servers."""
    link = Price(latency_seconds, 8 / bits_per_second)
    if servers is None:
        return ring(workers, link)
    each_way = one_way(workers, servers, link)
    return Price(2 * each_way.startup_seconds, 2 * each_way.seconds_per_byte)


def prices_measured(links: LinkTimes, workers: int) -> tuple[Price, Price | None]:
    """Return the prices of an all-reduce, and of its two halves, as measured on the profile's own network."""
    all_reduce = _fitted_price(links, "all_reduce", wire_factor("all_reduce", workers))
    half = wire_factor("reduce_scatter", workers)
    scatter, gather = (_fitted_price(links, name, half) for name in ("all_to_all", "all_gather"))
    if all_reduce is None:
        raise ProfileError("this profile has no all-reduce: measure it again with `laconic profile`")
    if scatter is None or gather is None:
        return all_reduce, None
    startup, rate = scatter.startup_seconds + gather.startup_seconds, scatter.seconds_per_byte + gather.seconds_per_byte
    return all_reduce, Price(startup, rate)


def _fitted_price(links: LinkTimes, operation: str, factor: float) -> Price | None:
    times = links.find(operation, "float32")
    return None if times is None else Price(times.alpha_seconds, times.seconds_per_byte * factor)
