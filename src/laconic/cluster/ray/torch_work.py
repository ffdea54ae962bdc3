"""Work of a gang that `torch.distributed` joins, as `laconic.distribute` does: its workers agree through it."""

from __future__ import annotations

from laconic.cluster.ray.work import Work


class TorchWork(Work):
    """Training by workers that take the same steps. In `begin`, `seat.enter()` comes first, then `laconic.distribute`
    (which joins the gang), then `laconic.resume`; `save` is `laconic.checkpoint`."""

    def agree(self, wish: int) -> int:
        import torch
        from torch import distributed

        if not distributed.is_initialized() or distributed.get_world_size() == 1:
            return wish
        greatest = torch.tensor([wish])
        distributed.all_reduce(greatest, distributed.ReduceOp.MAX)
        return int(greatest)
