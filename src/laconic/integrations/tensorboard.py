"""TensorBoard as a sink of `laconic.log`: `laconic.report_to(TensorBoardSink("runs/first"))`."""

from __future__ import annotations

import atexit
import os
from collections.abc import Mapping
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from laconic.runtime.current_worker import rank


class TensorBoardSink:
    """Writes scalars; each worker that reports has a run of its own, `worker-0` and so on.

    - `folder`: the folder that `tensorboard --logdir` is given.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._writer = SummaryWriter(str(Path(folder) / f"worker-{rank()}"))
        atexit.register(self._writer.close)  # the last lines are written then

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write each value as a scalar of this step."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
