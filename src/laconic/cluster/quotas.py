"""How many GPUs belong to each tenant of a cluster."""

from __future__ import annotations

from collections.abc import Sequence


def quota_of(quotas: Sequence[int], gpus: int, tenants: Sequence[str], tenant: str) -> int:
    """Return the GPUs of a tenant; those that come beyond the quotas have none.

    - `quotas`: of tenants in the order of their first jobs; none given: equal parts.
    - `gpus`: of the cluster.
    - `tenants`: in that order.
    - `tenant`: whose quota is asked for.
    """
    if quotas:
        number = tenants.index(tenant)
        return quotas[number] if number < len(quotas) else 0
    return gpus // len(tenants)
