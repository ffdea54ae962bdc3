"""Sum by every program among 5, 6, 7 and 8 processes, and compare with gloo's own all-reduce."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from laconic.collective.generators import generators, make_program
from laconic.errors import ProgramError
from laconic.real.connect import connect
from laconic.runtime.in_flight import InFlight, complete

NUMEL = 1001


def main() -> None:
    worker: Any = connect()
    count = 0
    for size in range(5, worker.size + 1):
        group = worker.group(range(size))
        if worker.rank >= size:
            continue
        for one in generators("all_reduce"):
            try:
                program = make_program(one.name, size, 2 if size % 2 == 0 else 1)
            except ProgramError:
                continue
            draw = torch.Generator().manual_seed(worker.rank)
            for x in (torch.randint(-99, 99, (NUMEL,), generator=draw), torch.randn(NUMEL, generator=draw)):
                expected = x.clone()
                dist.all_reduce(expected, group=group.process_group)
                exchange: Any = InFlight(group.run(program, x))
                complete([exchange])
                assert torch.equal(x, expected) if x.dtype == torch.int64 else torch.allclose(x, expected, atol=1e-5)
                same = group.all_gather(x).wait()
                assert all(torch.equal(row, x) for row in same), (one.name, size)
            count += 1
    print(f"{count} programs agree", flush=True)


if __name__ == "__main__":
    main()
