"""`laconic.device`: the device on which a worker computes."""

from __future__ import annotations

import torch

from laconic.errors import ContractError
from laconic.runtime.current_worker import current, is_process_worker
from laconic.values.process_place import ProcessPlace


def device() -> torch.device:
    """Return this worker's device: the GPU of its number on its machine (`cuda:LOCAL_RANK`), or the CPU without GPUs.

    Move the model there before `laconic.distribute`, and each batch in the loop. The GPU also becomes torch's current
    one, so that `"cuda"` means the same device from then on. Where a machine has more workers than GPUs, some share
    one. Virtual workers all share the device that torch uses at present.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    worker = current()
    if worker is not None and not is_process_worker(worker):
        return torch.device("cuda", torch.cuda.current_device())
    own = torch.device("cuda", _number(torch.cuda.device_count()))
    torch.cuda.set_device(own)
    return own


def refuse_first_device(model_device: torch.device, device_count: int) -> None:
    """Refuse a model that was left on the first GPU although this process has one of its own: all workers of a machine
    would share it."""
    own = _number(device_count) if model_device.type == "cuda" else 0
    if own and model_device.index == 0:
        raise ContractError(
            f"the model is on cuda:0, as that of this machine's first worker; this worker's device is cuda:{own}: "
            "write model.to(laconic.device()) before distribute(), and move each batch there"
        )


def _number(device_count: int) -> int:
    return ProcessPlace.current().local_rank % device_count
