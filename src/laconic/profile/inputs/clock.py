"""The clock of a trace: when the work launched before a moment was done, on a CPU at once, on a GPU by its kernels."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate

from laconic.profile.inputs.collectives import is_communication
from laconic.profile.inputs.trace import Event


class TraceClock:
    """Kernels by the moment of their launch, found by the correlation number that runtime calls and kernels share.

    Kernels of collectives are left out: they run concurrently, and wait for other workers.
    """

    def __init__(self, events: Iterable[Event]) -> None:
        calls: dict[str, float] = {}
        operations: dict[str, float] = {}
        kernels: list[Event] = []
        for event in events:
            if event.category in ("cuda_runtime", "cuda_driver", "hip_runtime", "privateuse1_runtime"):
                calls.setdefault(str(event.args.get("correlation")), event.begin)
            elif event.on_gpu and event.category != "gpu_user_annotation" and not is_communication(event):
                kernels.append(event)
            elif event.category == "cpu_op":
                operations.setdefault(str(event.args.get("external id")), event.begin)
        launched = []
        for kernel in kernels:
            begin = calls.get(str(kernel.args.get("correlation", "")))
            if begin is None:
                begin = operations.get(str(kernel.args.get("external id", "")))
            if begin is not None:
                launched.append((begin, kernel))
        launched.sort(key=lambda pair: pair[0])
        self._launched = [begin for begin, _ in launched]
        self._begins = [kernel.begin for _, kernel in launched]
        self._ended = list(accumulate((kernel.end for _, kernel in launched), max))

    @property
    def on_gpu(self) -> bool:
        return bool(self._launched)

    def done(self, moment: float) -> float:
        """Return when all kernels launched before this moment had ended."""
        before = bisect_left(self._launched, moment)
        return self._ended[before - 1] if before else moment

    def starts(self, moment: float) -> float:
        """Return when the first kernel launched from this moment on began."""
        after = bisect_left(self._launched, moment)
        return self._begins[after] if after < len(self._begins) else moment
