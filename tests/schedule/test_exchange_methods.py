"""The survey's seven methods: what each sends, in which pieces, and to which server."""

from __future__ import annotations

import pytest

from laconic.cost.cluster import Cluster
from laconic.cost.iteration import Transfer
from laconic.schedule.exchange_methods import METHODS, PIECE_BYTES
from laconic.values.layer_times import LayerTimes
from laconic.values.price import Price

LAYERS = LayerTimes((0.01,) * 4, (0.02,) * 4, (2.5 * PIECE_BYTES, 0.0, PIECE_BYTES, 1000.0))
CLUSTER = Cluster(12, Price(1e-5, 1e-10), Price(5e-5, 1e-9), servers=2)


@pytest.mark.parametrize("method", METHODS)
def test_every_byte_is_sent_once(method: str) -> None:
    _, sent, _ = METHODS[method](LAYERS, CLUSTER)
    assert sum(transfer.nbytes for transfer in sent) == sum(LAYERS.nbytes)


def server_of(transfer: Transfer) -> int:
    (lane,) = {stage.lane for stage in transfer.stages if stage.lane.startswith("to")}
    return int(lane.removeprefix("to"))


def test_pieces_go_to_the_server_with_the_fewest_bytes() -> None:
    """In the order of backward: a small tensor, one of just a piece, one of nothing, and one of two pieces and a half,
    of which the last two balance what the first began."""
    _, sent, _ = METHODS["WFBP-PS"](LAYERS, CLUSTER)
    assert [(transfer.tensors, transfer.nbytes, server_of(transfer)) for transfer in sent] == [
        ((3,), 1000.0, 0),
        ((2,), PIECE_BYTES, 1),
        ((1,), 0.0, 0),
        ((0,), PIECE_BYTES, 0),
        ((0,), PIECE_BYTES, 1),
        ((0,), PIECE_BYTES / 2, 0),
    ]
    _, sent, _ = METHODS["BSP-PS"](LAYERS, CLUSTER)
    assert [server_of(transfer) for transfer in sent] == [0, 1, 0, 1]
    assert all(transfer.after_backward for transfer in sent)
