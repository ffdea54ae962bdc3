"""Several NCCL ranks on one GPU, wherever the suite runs on a machine that has one."""

from __future__ import annotations

import pytest
import torch

from tests.gpu import nccl_ranks

pytestmark = [pytest.mark.long, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


def test_every_way_to_meet_on_four_nccl_ranks() -> None:
    assert nccl_ranks.main() == 0
