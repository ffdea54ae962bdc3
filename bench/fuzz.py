"""Spoilt inputs for every reader and command: each must be accepted, or refused in a sentence.

    python bench/fuzz.py --inputs 20000 --seed 0

A table says what became of them. The exit code is 1 where an input ended in another exception, in a hang or in a file
that is half-written; these are printed, each with a place in the code and the shortest input that leads there.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random

os.environ["COLUMNS"] = "120"
sys.path[:0] = [str(Path(__file__).parents[1])]

from tests.fuzz.commands import commands  # noqa: E402
from tests.fuzz.readers import readers  # noqa: E402
from tests.fuzz.trying import Finding, Tally, try_inputs  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=20_000, help="in all, divided evenly")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="subjects whose names match this regular expression")
    parser.add_argument("--sentences", type=int, default=0, help="also print so many refusals of each subject")
    asked = parser.parse_args()
    subjects = [s for s in (*readers(), *commands()) if re.search(asked.only, s.name)]
    each = -(-asked.inputs // len(subjects))
    tallies = {subject.name: Tally() for subject in subjects}
    began = time.monotonic()
    for place, subject in enumerate(subjects, 1):
        draw, tally = Random(f"{asked.seed} {subject.name}"), tallies[subject.name]
        with tempfile.TemporaryDirectory(prefix="laconic-fuzz-") as folder:
            try_inputs(subject, Path(folder), each, draw, tally)
        took = time.monotonic() - began
        print(
            f"{place}/{len(subjects)} {subject.name}: {took:.0f} s",
            end="\n" if tally.findings else "\r",
            file=sys.stderr,
        )
    sizes = Counter(subject.name for subject in subjects)
    print(f"{'':79}\r{'reader or command':<32}{'inputs':>8}{'accepted':>10}{'refused':>9}{'findings':>10}")
    for name, tally in tallies.items():
        print(f"{name:<32}{each * sizes[name]:>8}{tally.accepted:>10}{tally.refused:>9}{len(tally.findings):>10}")
        for sentence, _ in tally.sentences.most_common(asked.sentences):
            print(f"    {sentence[:300]}")
    findings = [finding for tally in tallies.values() for finding in tally.findings]
    print(f"{len(tallies)} readers and commands, {each * len(subjects):,} inputs, {len(findings)} findings")
    for finding in _distinct(findings):
        print(f"\n{finding.subject}, {finding.file}: {finding.what}\n  at {finding.where}")
        print(f"  from {finding.content[:300]!r}")
    return 1 if findings else 0


def _distinct(findings: list[Finding]) -> list[Finding]:
    """Return the finding with the shortest input for each place in the code."""
    found: dict[tuple[str, str], Finding] = {}
    for finding in sorted(findings, key=lambda one: len(one.content)):
        found.setdefault((finding.subject, finding.where or finding.what), finding)
    return sorted(found.values(), key=lambda one: one.subject)


if __name__ == "__main__":
    sys.exit(main())
