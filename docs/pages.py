"""How pages that are written by a command are kept true: the command writes them, or says which are out of date."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

WIDTH = 125


def filled(paragraph: str) -> str:
    """Return a paragraph in lines of a page's width."""
    return textwrap.fill(paragraph, WIDTH, break_on_hyphens=False, break_long_words=False)


def keep(about: str, made: Mapping[Path, str]) -> int:
    """Write pages, or only look at them with `--check`, and return the exit code.

    - `about`: what the command says of itself.
    - `made`: the text of each page.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 where it is out of date")
    check = parser.parse_args().check
    stale = {path: text for path, text in made.items() if not path.is_file() or path.read_text() != text}
    for path, text in stale.items():
        if check:
            print(f"{path.name} is out of date: run python docs/{Path(sys.argv[0]).name}", file=sys.stderr)
        else:
            path.write_text(text)
    return int(check and bool(stale))
