"""What coded shards do to the loss of the reference task."""

from __future__ import annotations

import pytest

from tests.sharded.reference_task import loss


@pytest.mark.long
@pytest.mark.technique("zeropp_qwz", check=3)
def test_weights_of_eight_bits_leave_the_loss_as_it_is() -> None:
    """Within one per cent of stage 3 with each seed after 500 steps; one scale for a shard is printed beside it.

    With four bits in the place of eight the first seed ends 1.5 % above it, and the test fails.
    """
    for seed in range(3):
        stage_three, blocks = loss("zero", seed), loss("zeropp_qwz", seed)
        print(f"seed {seed}: stage 3 {stage_three:.5f}, blocks of 256 {blocks:.5f} ({blocks / stage_three - 1:+.2%})")
        assert blocks != stage_three and blocks == pytest.approx(stage_three, rel=0.01)
    single = loss("none", 0, "int8(65536)")
    print(f"seed 0: one scale {single:.5f} ({single / loss('zero', 0) - 1:+.2%})")


@pytest.mark.long
@pytest.mark.parametrize("centred", [False, True])
def test_random_signs_take_from_the_transform_what_it_costs_where_inputs_have_one_sign(centred: bool) -> None:
    """In the mean over three seeds; four bits without a transform are printed beside it."""

    def above(text: str) -> float:
        gaps = [loss(text, seed, None, centred) / loss("zero", seed, None, centred) - 1 for seed in range(3)]
        print(f"{text}, {'centred' if centred else 'pixels'}: {', '.join(f'{gap:+.2%}' for gap in gaps)}")
        return sum(gaps) / 3

    bare, signed = above("int4(128)+hadamard(32)"), above("int4(128)+hadamard(32, signs=true)")
    above("int4(128)")
    assert signed < (bare if centred else 0.6 * bare)
