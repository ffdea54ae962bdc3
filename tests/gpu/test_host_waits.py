"""Steps in which the host never waits for the GPU, wherever the suite runs on a machine that has one."""

from __future__ import annotations

import pytest
import torch

from tests.gpu import host_waits

pytestmark = [pytest.mark.long, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


def test_sentences_of_fixed_length_never_wait() -> None:
    assert host_waits.main() == 0
