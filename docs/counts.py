"""Count what is registered, by kind and by grade of evidence: a paragraph of the README.

python docs/counts.py            # write
python docs/counts.py --check    # exit code 1 where the paragraph is not what it would write
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections import Counter
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from docs.pages import WIDTH, keep  # noqa: E402

from laconic import registry  # noqa: E402
from laconic.registry import Evidence  # noqa: E402

PAGE = Path(__file__).resolve().parents[1] / "README.md"
BEGIN, END = "<!-- counts: written by `python docs/counts.py` -->", "<!-- end of counts -->"
KINDS = {"word": "words", "sentence": "named sentences", "function": "functions"}
GRADES = {
    Evidence.FIXTURE: "they give the authors' own numbers on recorded inputs, with settings that `laconic show` names",
    Evidence.THIRD_PARTY: "the same for recordings of another's implementation",
    Evidence.PUBLISHED: "a test reproduces a result that a paper reports: a loss, a speed-up, an order",
    Evidence.MECHANISM: "they do what the paper says, as tests of each show; where a format, an identity or a constant "
    "of it holds, `laconic show` names it, and no published result is held against them",
    Evidence.MODELLED: "models of hardware that is not here, whose formulas are tested",
}


def block() -> str:
    """Return the paragraph."""
    own = [entry for entry in registry.entries() if entry.module.startswith("laconic.")]
    kinds, axes = Counter(entry.kind for entry in own), Counter(entry.axis for entry in own if entry.kind == "word")
    grades = Counter(entry.evidence for entry in own)
    words = ", ".join(f"{axes[axis]} of {axis}" for axis in registry.AXES if axes[axis])
    counted = ", ".join(f"{kinds[kind]} {name}" for kind, name in KINDS.items())  # type: ignore[index]
    lines = [f"Registered: {counted}. The words are {words}. Their evidence (`laconic list --grade …`):", ""]
    lines += [f"- `{grade}`, {grades[grade]}: {meaning}" for grade, meaning in GRADES.items()]
    filled = (textwrap.fill(line, WIDTH, subsequent_indent="  " * line.startswith("-")) for line in lines)
    return "\n".join([BEGIN, *filled, END])


def written() -> dict[Path, str]:
    """Return the page that this command writes, with its text."""
    return {PAGE: re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: block(), PAGE.read_text(), flags=re.S)}


if __name__ == "__main__":
    sys.exit(keep(__doc__, written()))
