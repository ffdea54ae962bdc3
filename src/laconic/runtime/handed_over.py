"""Optimizers that were handed over to another library's method: how they are recognised and refused."""

from __future__ import annotations

from typing import Protocol

from laconic.errors import ContractError

_MARK = "laconic_rival"


class ForeignMethod(Protocol):
    """A training method of another library; its text is `library:method(knob=value, …)`."""

    @property
    def library(self) -> str: ...


def mark_as_rivals(optimizer: object, rival: ForeignMethod) -> None:
    """Remember that this optimizer belongs to the other library from now on."""
    setattr(optimizer, _MARK, rival)


def rival_of(optimizer: object) -> ForeignMethod | None:
    """Return the other library's method to which an optimizer was handed over, or None."""
    return getattr(optimizer, _MARK, None)


def refuse_rivals(optimizer: object, verb: str) -> None:
    """Raise a `ContractError` where `verb` needs a session of this library and the optimizer belongs to another one."""
    rival = rival_of(optimizer)
    if rival is not None:
        raise ContractError(
            f"laconic.{verb} cannot see into `{rival}`, whose state is {rival.library}'s own: leave it out here, or "
            "train with a strategy of ours"
        )
