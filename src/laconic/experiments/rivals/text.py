"""Rivals from text: `library:method(knob=value, …)`, with the literals of the strategy language."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

from laconic.errors import StrategyError
from laconic.experiments.rivals.base import Rival
from laconic.experiments.rivals.of_accelerate import AccelerateLocalSGD
from laconic.experiments.rivals.of_torch import DDP, DDP16, Accumulate, PostLocal, PowerSGD
from laconic.experiments.rivals.of_torchft import DiLoCo
from laconic.language.auto import begins_as
from laconic.language.tokenizer import Reader
from laconic.literals import NAME
from laconic.registry import normal

if TYPE_CHECKING:
    from laconic.strategy import Strategy

RIVALS: dict[str, type[Rival]] = {
    kind.name: kind for kind in (DDP, DDP16, Accumulate, PowerSGD, PostLocal, AccelerateLocalSGD, DiLoCo)
}
_RIVAL = re.compile(rf"\s*(?!__main__){NAME}\s*:")


def is_rival(text: object) -> bool:
    """Return whether a text names another library's method; no strategy begins with a name and a colon."""
    return isinstance(text, Rival) or (isinstance(text, str) and _RIVAL.match(text) is not None)


def read(text: str | Strategy | Rival) -> Strategy | Rival:
    """Return the strategy or the rival that a text names: whatever may stand after `--strategy`."""
    if isinstance(text, Rival):
        return text
    if isinstance(text, str) and is_rival(text):
        return parse(text)
    from laconic.strategy import Strategy  # looking at a rival needs none of the techniques

    return Strategy.parse(text)


def check(text: str, *, virtual: bool = False, dry_run: bool = False, servers: int = 0) -> None:
    """Refuse, before any process starts, a text after `--strategy` that could not run in this way."""
    method = read(begins_as(text))
    if isinstance(method, Rival):
        method.check(virtual=virtual, dry_run=dry_run)
        if servers:
            raise StrategyError(f"`{method}` has no server: leave --servers out.")
    elif servers and not virtual:
        from laconic.runtime.server_setup import served_sentences  # reading a text needs no runtime

        served_sentences(method)


def parse(text: str) -> Rival:
    """Return the rival that `text` names; unknown names, knobs and values are refused."""
    reader = Reader(text)
    try:
        return _rival(reader)
    except StrategyError as error:
        raise StrategyError(f"{error} ({reader.where()})") from error.__cause__


def _rival(reader: Reader) -> Rival:
    start = reader.token
    example = "write torch:ddp, for example"
    library = reader.name("a library", example)
    reader.expect(":", example)
    method = reader.name(f"a method of {library}", example)
    reader.mark = start
    kind = _find(library, method)
    positional, named = reader.arguments(kind.name)
    if reader.token.kind != "end":
        reader.refuse(f"{reader.token} cannot stand here: {kind.name} is a whole method of its own and stands alone")
    reader.mark = start
    return kind.of(positional, named)


def _find(library: str, method: str) -> type[Rival]:
    known = {f"{normal(name.partition(':')[0])}:{normal(name.partition(':')[2])}": name for name in RIVALS}
    wanted = f"{normal(library)}:{normal(method)}"
    if wanted in known:
        return RIVALS[known[wanted]]
    near = [known[key] for key in difflib.get_close_matches(wanted, known, n=2)]
    raise StrategyError(f"no rival is called {library}:{method}; write {' or '.join(near or known.values())}")
