"""Sharded training over gloo with tensors of a GPU has the CPU's bits, wherever the suite runs on a machine that has
one."""

from __future__ import annotations

import pytest
import torch

from tests.gpu import sharded_gloo

pytestmark = [pytest.mark.long, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


def test_two_processes_that_share_a_gpu_have_the_bits_of_the_cpu() -> None:
    assert sharded_gloo.main() == 0
