"""Text for language models that every machine has: Python sources, frozen as one file, with held-out packages.

    python bench/corpus.py runs/corpus.xz [--megabytes 200]

Sources of the standard library and of the packages that `make setup` installs, in a fixed order, cut off at a size:
with the same releases the text is the same on every machine, whatever else is installed there. A text that was seen
before is left out, and so is one most of whose lines were: packages carry copies of each other, changed in a few lines.
Whole packages are held out, drawn by the hash of their names until they hold a share of the bytes; the command prints
how many of their lines stand in the training text all the same. Beside the file, a .json says what is in it: lengths,
the hash of the raw text, packages. Nothing of it belongs in a repository.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import Distribution, distributions
from pathlib import Path

from laconic.report.progress import Bar, Lines, progress

END = b"\0"
"""What stands behind every text; no source contains it."""
VENDORED = {"_vendor", "_vendored", "vendor", "vendored", "extern", "externals", "third_party", "_internal_deps"}
LEAST, LONG = 200, 30
"""The bytes that a text has at least, and the bytes from which on a line counts when texts are compared."""
PACKAGES = """
    accelerate annotated-doc annotated-types anyio ast_serialize certifi cffi charset-normalizer click cloudpickle
    cryptography execnet filelock fsspec googleapis-common-protos grimp h11 httpcore2 httpx2 huggingface_hub hypothesis
    idna import-linter iniconfig jinja2 joblib llvmlite markdown-it-py markupsafe mdurl mpmath msgspec mypy
    mypy_extensions narwhals networkx numba numpy opacus opentelemetry-api opentelemetry-sdk opt_einsum packaging
    pathspec pillow pluggy protobuf psutil pycparser pydantic pygments pytest pytest-xdist pyyaml pyzmq requests rich
    scikit-learn scipy shellingham sortedcontainers sympy threadpoolctl torch tqdm typer typing_extensions urllib3
"""
"""The packages whose sources are taken."""
OF_THE_MACHINE = ("_sysconfigdata", "config-")
"""How parts of the standard library begin that differ from machine to machine."""
FAMILIAR = 0.5
"""The share of a text's long lines from which on it counts as seen before."""


@dataclass(frozen=True)
class Text:
    """A source: the package that it belongs to, and its bytes."""

    package: str
    content: bytes

    @property
    def lines(self) -> set[int]:
        """The hashes of its long lines, without their indentation."""
        stripped = (line.strip() for line in self.content.split(b"\n"))
        return {int.from_bytes(hashlib.blake2b(line, digest_size=8).digest()) for line in stripped if len(line) >= LONG}


def standard_library(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the sources of the standard library: each of its modules and packages is a package of its own."""
    for path in sorted(folder.rglob("*.py")):
        inside = path.relative_to(folder)
        if not {"site-packages", "dist-packages"}.intersection(inside.parts) and not inside.parts[0].startswith(
            OF_THE_MACHINE
        ):
            yield f"python {inside.parts[0].removesuffix('.py')}", path


def installed(found: Iterable[Distribution]) -> Iterator[tuple[str, Path]]:
    """Yield the sources of the installed packages that are taken."""
    named = {str(one.metadata["Name"]).lower(): one for one in found}
    if missing := [name for name in PACKAGES.split() if name not in named]:
        print(f"the text will be another than where these are installed: {', '.join(missing)}", file=sys.stderr)
    for name, one in sorted((name, named[name]) for name in PACKAGES.split() if name in named):
        for file in sorted(one.files or (), key=str):
            if file.suffix == ".py":
                yield name, Path(str(file.locate()))


def texts(sources: Iterable[tuple[str, Path]]) -> Iterator[Text]:
    """Yield readable sources of some length, without copies that packages keep of others."""
    for package, path in sources:
        if VENDORED.intersection(path.parts) or not path.is_file():
            continue
        content = path.read_bytes()
        try:
            content.decode()
        except UnicodeDecodeError:
            continue
        if len(content) >= LEAST and END not in content:
            yield Text(package, content)


@dataclass
class Unfamiliar:
    """A filter that lets texts pass of which little was seen before."""

    seen: set[int] = field(default_factory=set)

    def passes(self, text: Text) -> bool:
        lines = text.lines
        if not lines or len(lines & self.seen) >= FAMILIAR * len(lines):
            return False
        self.seen |= lines
        return True


def held_out(sizes: dict[str, int], share: float) -> set[str]:
    """Return the packages to hold out: in the order of their names' hashes, until they have this share of the bytes. A
    package that alone has more than half of that is never among them: what is held out would be that package."""
    wanted, chosen, taken = share * sum(sizes.values()), set[str](), 0
    for package in sorted(sizes, key=lambda name: hashlib.sha256(name.encode()).digest()):
        if taken < wanted and sizes[package] <= wanted / 2:
            chosen.add(package)
            taken += sizes[package]
    return chosen


@dataclass(frozen=True)
class Corpus:
    """A frozen text: what is trained on, and behind it what is held out."""

    training: bytes
    validation: bytes
    packages: dict[str, int]
    outside: tuple[str, ...]
    leaked: float
    """The share of long lines of the validation text that stand in the training text as well."""

    @property
    def facts(self) -> dict[str, object]:
        return {
            "training_bytes": len(self.training),
            "validation_bytes": len(self.validation),
            "sha256": hashlib.sha256(self.training + self.validation).hexdigest(),
            "held_out": list(self.outside),
            "lines_of_it_in_training": round(self.leaked, 4),
            "packages": self.packages,
            "python": sys.version.split()[0],
        }


def frozen(found: Iterable[Text], most: int, share: float = 0.03) -> Corpus:
    """Return the corpus of these texts, of at most so many bytes."""
    unfamiliar, kept, sizes, total = Unfamiliar(), list[Text](), dict[str, int](), 0
    for text in found:
        if total + len(text.content) + 1 > most:
            break
        if unfamiliar.passes(text):
            kept.append(text)
            sizes[text.package] = sizes.get(text.package, 0) + len(text.content) + 1
            total += len(text.content) + 1
    outside = held_out(sizes, share)
    parts: tuple[list[Text], list[Text]] = ([], [])
    for text in kept:
        parts[text.package in outside].append(text)
    training, validation = (b"".join(text.content + END for text in part) for part in parts)
    known = set[int]().union(*(text.lines for text in parts[0]))
    lines = set[int]().union(*(text.lines for text in parts[1]))
    leaked = len(lines & known) / len(lines) if lines else 0.0
    return Corpus(training, validation, sizes, tuple(sorted(outside)), leaked)


def shown(sources: Sequence[tuple[str, Path]], watch: Lines | Bar) -> Iterator[tuple[str, Path]]:
    """Yield the sources, and show which package they are of."""
    last = ""
    for package, path in sources:
        if package != last:
            if last:
                watch.done()
            watch.at(last := package)
        yield package, path


def write(corpus: Corpus, out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    with lzma.open(out, "wb", preset=6) as file:
        file.write(corpus.training)
        file.write(corpus.validation)


def digest(path: Path) -> str:
    """Return the beginning of a frozen corpus' hash, which stands beside it."""
    return str(json.loads(path.with_suffix(".json").read_text())["sha256"])[:16]


def read(path: Path) -> tuple[bytes, bytes]:
    """Return the training and the validation text of a frozen corpus, whose hash must be the one beside it."""
    facts = json.loads(path.with_suffix(".json").read_text())
    raw = lzma.decompress(path.read_bytes())
    if hashlib.sha256(raw).hexdigest() != facts["sha256"]:
        raise SystemExit(f"{path} is not the text that {path.with_suffix('.json').name} describes: build it again")
    return raw[: facts["training_bytes"]], raw[facts["training_bytes"] :]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="the file to write, ending in .xz")
    parser.add_argument("--megabytes", type=float, default=200, help="of raw text, at most")
    given = parser.parse_args()
    if given.out.suffix != ".xz":
        parser.error(f"{given.out} does not end in .xz, and that is what is written")
    library = Path(sysconfig.get_paths()["stdlib"])
    sources = [*standard_library(library), *installed(distributions())]
    with progress() as watch:
        watch.begin("packages", len({package for package, _ in sources}))
        corpus = frozen(texts(shown(sources, watch)), int(given.megabytes * 1e6))
        watch.begin("compressing", None)
        write(corpus, given.out)
    facts = corpus.facts | {"xz_bytes": given.out.stat().st_size}
    given.out.with_suffix(".json").write_text(json.dumps(facts, indent=1) + "\n")
    print(*(f"{name}: {value}" for name, value in facts.items() if name != "packages"), sep="\n")


if __name__ == "__main__":
    main()
