"""Checks that the optimizers' settings have in common."""

from __future__ import annotations

from laconic.errors import LaconicError


def require_non_negative(**settings: float) -> None:
    """Refuse a setting that is negative or not a number, by its name."""
    for name, value in settings.items():
        if not value >= 0:
            raise LaconicError(f"{name}={value} makes no sense to an optimizer: give a number of at least 0")
