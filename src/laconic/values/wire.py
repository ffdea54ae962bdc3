"""What collectives send for each byte of a worker's payload, and in how many rounds: one place for all prices.

These are the shares and steps of the programs that transports run (`collective.Program`), as formulas that need no
program: `tests/collective/test_wire.py` holds each against the program.
"""

from __future__ import annotations


def wire_factor(operation: str, size: int) -> float:
    """Return how many bytes the busiest of so many workers sends for each byte of its payload.

    - `operation`: `all_reduce`, `reduce_scatter`, `all_gather`, `all_to_all` or `broadcast`.
    - `size`: the number of workers.
    """
    match operation:
        case "all_reduce":
            return 2 * (size - 1) / size
        case "reduce_scatter" | "all_to_all":
            return (size - 1) / size
        case "all_gather":
            return size - 1
        case "broadcast":
            return (size - 1).bit_length()
    raise ValueError(f"there is no collective {operation!r}")


def ring_rounds(operation: str, size: int) -> int:
    """Return the number of steps of a ring: each of them pays the latency once."""
    return (2 if operation == "all_reduce" else 1) * (size - 1)
