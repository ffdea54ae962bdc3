"""Why no test can kill some mutants: `equivalent.toml`, which the report prints beside them."""

from __future__ import annotations

import tomllib
from pathlib import Path

PATH = Path(__file__).with_name("equivalent.toml")


def read(path: Path = PATH) -> dict[str, str]:
    """Return the reasons by the mutants' keys."""
    return {given["key"]: given["why"] for given in tomllib.loads(path.read_text()).get("mutant", ())}
