"""Instances that can be rented."""

from __future__ import annotations

from dataclasses import dataclass

from laconic.errors import ClusterError


@dataclass(frozen=True)
class InstanceType:
    """A kind of machine that a cloud rents out.

    - `name`: what the cloud calls it.
    - `price_per_hour`: in any currency.
    - `flops`: floating-point operations a second that a worker on it does.
    - `bytes_per_second`: of its network.
    - `server_bytes_per_second`: what its processor applies and serves where it is a parameter server.
    """

    name: str
    price_per_hour: float
    flops: float
    bytes_per_second: float
    server_bytes_per_second: float = float("inf")

    def __post_init__(self) -> None:
        if min(self.price_per_hour, self.flops, self.bytes_per_second, self.server_bytes_per_second) <= 0:
            raise ClusterError(f"{self.name} has a price, a speed or a bandwidth that is not above 0")
