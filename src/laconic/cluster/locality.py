"""Jobs that are slower where their workers are spread over hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from laconic.cluster.grant import Grant
from laconic.cluster.hosts import Cluster
from laconic.cluster.job import Job, Rate


@dataclass(frozen=True)
class Spread:
    """A job whose gang takes so many seconds on one host, and longer on several.

    - `work`: the seconds.
    - `speeds`: the speed on 1, 2, ... hosts as a share of that on one; the last holds for more.
    """

    work: float
    speeds: tuple[float, ...]

    def rate(self, done: float, grant: Grant, cluster: Cluster, beside: Sequence[Job]) -> Rate:
        del done, cluster, beside
        speed = self.speeds[min(len(grant.by_host), len(self.speeds)) - 1]
        return Rate(speed * min(slot.share for slot in grant.slots), self.work)


def speeds_by_hosts(table: Mapping[int, Mapping[int, float]], workers: int, hosts: int) -> tuple[float, ...]:
    """Return the speed of a gang on 1, 2, ... hosts from a table that has some numbers of both: of workers the largest
    in it that is not above the gang's, of hosts likewise; what one worker does is not slowed.

    - `table`: speeds as a share of that on one host, by workers and by hosts.
    - `workers`: of the gang.
    - `hosts`: up to how many.
    """
    known = [count for count in table if count <= workers]
    if not known:
        return (1.0,)
    row = table[max(known)]
    return tuple(row[max(count for count in row if count <= number)] for number in range(1, hosts + 1))
