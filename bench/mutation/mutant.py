"""Mutants: all that the operators make of the sources, and a sample of them that is spread over files and operators."""

from __future__ import annotations

import ast
import difflib
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from random import Random
from types import CodeType

from bench.mutation import sources
from bench.mutation.operators import OPERATORS, Place, places


@dataclass(frozen=True)
class Mutant:
    """One change of one statement. The key outlives changes elsewhere in the file, `index` does not."""

    key: str
    file: str
    scope: str
    line: int
    """The first line of the innermost statement that is changed, as `reach` counts."""
    operator: str
    index: int
    before: str
    after: str

    def code(self) -> CodeType:
        """Return the code of the changed module."""
        tree = sources.tree_of(self.file)
        place, new = next(c for at, c in enumerate(_changes(tree, self.operator)) if at == self.index)
        place.put(ast.copy_location(new, place.node))
        return compile(ast.fix_missing_locations(tree), str(sources.SOURCE / self.file), "exec", dont_inherit=True)

    def diff(self) -> str:
        """Return the lines of the statement that change."""
        lines = difflib.ndiff(self.before.splitlines(), self.after.splitlines())
        return "\n".join(line for line in lines if line.startswith(("- ", "+ ")))


def mutants_of(file: str) -> Iterator[Mutant]:
    """Yield all mutants of a file. What changes no text is none."""
    tree = sources.tree_of(file)
    counts: Counter[str] = Counter()
    for operator in OPERATORS:
        for index, (place, new) in enumerate(_changes(tree, operator)):
            before = ast.unparse(place.statement)
            place.put(new)
            after = ast.unparse(ast.fix_missing_locations(new if place.node is place.statement else place.statement))
            place.put(place.node)
            if before != after:
                text = f"{file} {place.scope} {operator}\n{before}\n{after}"
                counts[text] += 1
                key = hashlib.sha256(f"{text}\n{counts[text]}".encode()).hexdigest()[:12]
                yield Mutant(key, file, place.scope, place.statement.lineno, operator, index, before, after)


def _changes(tree: ast.Module, operator: str) -> Iterator[tuple[Place, ast.AST]]:
    for place in places(tree):
        for new in OPERATORS[operator](place.node):
            yield place, new


def sample(mutants: Iterable[Mutant], count: int, seed: int) -> list[Mutant]:
    """Draw mutants: operators in turn, and of each a file of which the fewest were drawn.

    A smaller sample is the beginning of a larger one.
    """
    draw = Random(seed)
    left: dict[str, dict[str, list[Mutant]]] = {operator: {} for operator in OPERATORS}
    for mutant in sorted(mutants, key=lambda mutant: mutant.key):
        left[mutant.operator].setdefault(mutant.file, []).append(mutant)
    drawn: list[Mutant] = []
    used: Counter[str] = Counter()
    while len(drawn) < count and any(left.values()):
        for by_file in left.values():
            if not by_file or len(drawn) == count:
                continue
            file = min(sorted(by_file), key=lambda file: (used[file], draw.random()))
            pool = by_file[file]
            drawn.append(pool.pop(draw.randrange(len(pool))))
            used[file] += 1
            if not pool:
                del by_file[file]
    return drawn
