"""Settings of a comparison from the options of the command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from laconic.experiments.settings import (
    PROTOCOL_BLOCKS,
    QUICK_BLOCKS,
    REPORTING_SEEDS,
    CompareError,
    Settings,
    Tuning,
)
from laconic.launch.request import read_target


def settings_of(
    script: str | None,
    arguments: Sequence[str],
    strategies: Sequence[str],
    *,
    target: str | None,
    blocks: int | None,
    seeds: str | None,
    quick: bool,
    protocol: bool,
    lr: float | None,
    lr_argument: str,
    metric: str,
    choosing_seeds: str,
    rivals: bool,
    **plain: Any,
) -> Settings:
    """Return the settings that these options ask for; a value that cannot be read is refused by its option's name."""
    if script is None:
        raise CompareError("nothing to compare: give a script, or --again with the folder of an earlier comparison.")
    given = tuple(_seeds("--seeds", seeds)) if seeds is not None else ()
    tuning = None
    if protocol:
        if lr is None:
            raise CompareError("--protocol tunes the learning rate around the script's own: give it with --lr.")
        tuning = Tuning(
            lr, lr_argument, tuple(_seeds("--choosing-seeds", choosing_seeds)), given or REPORTING_SEEDS, metric, rivals
        )
    return Settings(
        command=(script, *arguments),
        strategies=tuple(strategies),
        target=None if target is None else read_target(target, CompareError),
        blocks=blocks if blocks is not None else QUICK_BLOCKS if quick else PROTOCOL_BLOCKS,
        seeds=() if protocol else given,
        quick=quick,
        tuning=tuning,
        **plain,
    )


def _seeds(option: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise CompareError(f"{option} {text!r} is no list of numbers: write, for example, {option} 0,1,2.") from None
