"""Timing from a profile: what planners count with before anything runs."""

from __future__ import annotations

import torch

from laconic.values.price import Price, one_way, ring
from laconic.values.profile import LinkTimes, Profile, ProfileError
from laconic.values.tensor_spec import TensorSpec
from laconic.values.timing import Timing


def tensors_of(profile: Profile) -> tuple[list[TensorSpec], list[int]]:
    """A profile's tensors in the order of the forward pass, and the order in which backward brings them."""
    tensors = [TensorSpec(t.name, t.shape, getattr(torch, t.dtype)) for t in reversed(profile.model.tensors)]
    return tensors, list(reversed(range(len(tensors))))


def timing_of(profile: Profile, price: Price, duplex: bool = False, halved: Price | None = None) -> Timing:
    """Forward divides over tensors as backward does."""
    backward = tuple(t.backward_seconds for t in reversed(profile.model.tensors))
    whole, model = sum(backward), profile.model
    scale = model.backward.median / whole if whole else 0.0
    shares = [b / whole if whole else 1 / len(backward) for b in backward]
    forward = tuple(share * (model.forward.median + model.step.median) for share in shares)
    return Timing(forward, tuple(scale * b for b in backward), price, duplex, halved)


def prices_on(workers: int, bits_per_second: float, latency_seconds: float, servers: int | None) -> Price:
    """On a described network: a ring all-reduce, or a push and a pull with so many servers."""
    link = Price(latency_seconds, 8 / bits_per_second)
    if servers is None:
        return ring(workers, link)
    way = one_way(workers, servers, link)
    return Price(2 * way.startup_seconds, 2 * way.seconds_per_byte)


def prices_measured(links: LinkTimes, workers: int) -> tuple[Price, Price | None]:
    """By what collectives took on the profile's own network: an all-reduce, and its two halves."""
    whole = _line(links, "all_reduce", 2 * (workers - 1) / workers)
    scatter, gather = (_line(links, name, (workers - 1) / workers) for name in ("all_to_all", "all_gather"))
    if whole is None:
        raise ProfileError("this profile has no all-reduce: measure it again with `laconic profile`")
    if scatter is None or gather is None:
        return whole, None
    startup, rate = scatter.startup_seconds + gather.startup_seconds, scatter.seconds_per_byte + gather.seconds_per_byte
    return whole, Price(startup, rate)


def _line(links: LinkTimes, operation: str, wire_factor: float) -> Price | None:
    times = links.find(operation, "float32")
    return None if times is None else Price(times.alpha_seconds, times.seconds_per_byte * wire_factor)
