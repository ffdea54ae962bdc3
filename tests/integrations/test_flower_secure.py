"""What Flower's own secure aggregation sends, beside which ours is shown."""

from __future__ import annotations

from importlib import import_module
from inspect import signature
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: make test-flower")

from bench.secure import FLOWER_BYTES, one_client
from flwr.common import ConfigRecord, ndarrays_to_parameters
from flwr.common.secure_aggregation.secaggplus_constants import Key
from flwr.server.workflow.secure_aggregation.secaggplus_workflow import SecAggPlusWorkflow


def test_a_masked_parameter_of_flowers_takes_eight_bytes_and_ours_less_than_half() -> None:
    """The client's part of Flower's that masks what it has trained, with its workflow's defaults and no neighbours."""
    numel = 2**16
    defaults = {name: known.default for name, known in signature(SecAggPlusWorkflow.__init__).parameters.items()}
    client = SimpleNamespace(
        nid=0,
        threshold=1,
        max_weight=defaults["max_weight"],
        clipping_range=defaults["clipping_range"],
        target_range=defaults["quantization_range"],
        mod_range=defaults["modulus_range"],
        rd_seed=bytes(32),
        rd_seed_share_dict={},
        sk1_share_dict={},
    )
    trained = ndarrays_to_parameters([np.random.default_rng(0).normal(size=numel).astype(np.float32)])
    nobody = ConfigRecord({Key.CIPHERTEXT_LIST: [], Key.SOURCE_LIST: []})
    mod = import_module("flwr.client.mod.secure_aggregation.secaggplus_mod")
    masked = mod._collect_masked_vectors(client, nobody, 10, trained)[Key.MASKED_PARAMETERS]
    assert sum(map(len, masked)) / numel == pytest.approx(FLOWER_BYTES, rel=0.01)
    assert one_client(64, numel).up_bytes / numel < FLOWER_BYTES / 2
