"""The frozen text in a vocabulary of byte pairs (Sennrich et al., 2016): how much of a result is due to single bytes?

    python bench/byte_pairs.py runs/corpus.xz [--vocabulary 8192] [--sample 8]     # writes runs/corpus.bpe.npz

The merges are learned from texts spread evenly over the training part. A text is cut into words first, and no token
crosses their boundaries; every byte is a token, so that any text can be written and read back.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import pairwise
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from bench.corpus import END, read  # noqa: E402

from laconic.files import replacing  # noqa: E402
from laconic.report.progress import Bar, Lines, progress  # noqa: E402

LETTER, OTHER = rb"[A-Za-z_\x80-\xff]", rb"[^\sA-Za-z_0-9\x80-\xff\0]"
WORD = re.compile(rb"\0| ?%b{1,32}| ?[0-9]{1,4}| ?%b{1,16}|\n{1,16} {0,32}|\s{1,32}" % (LETTER, OTHER))
"""Names, numbers and signs with the space before them, line ends with the indentation behind them, and other space."""
GAP = 1 << 16  # stands behind every word, and is no token
Pair = tuple[int, int]


def learned(words: Counter[bytes], merges: int) -> list[Pair]:
    """Return so many pairs of tokens, the most frequent first, each counted after those before it were joined; the k-th
    pair is token 256 + k. There are fewer where no pair is left."""
    text = np.array([token for word in words for token in (*word, GAP)], np.int64)
    counts = np.repeat([*words.values()], [len(word) + 1 for word in words])
    often, queue, found = Counter[int](), list[tuple[int, int]](), list[Pair]()

    def count(places: np.ndarray, sign: int) -> None:
        """Count the pairs that begin at these places, each once, or take them back; none has a gap in it."""
        places = np.unique(places[(places >= 0) & (places < len(text) - 1)])
        places = places[(text[places] != GAP) & (text[places + 1] != GAP)]
        pairs, which = np.unique(text[places] << 16 | text[places + 1], return_inverse=True)
        for pair, change in zip(pairs.tolist(), np.bincount(which, counts[places]).tolist(), strict=True):
            often[pair] += sign * int(change)
            heappush(queue, (-often[pair], pair))

    count(np.arange(len(text)), 1)
    while queue and len(found) < merges:
        times, pair = heappop(queue)
        if -times != often[pair] or not times:
            continue  # it was counted again since
        left, right = pair >> 16, pair & 0xFFFF
        places = np.flatnonzero((text[:-1] == left) & (text[1:] == right))
        if left == right:
            places = apart(places)
        count(np.concatenate([places - 1, places, places + 1]), -1)
        text[places] = 256 + len(found)
        text, counts = np.delete(text, places + 1), np.delete(counts, places + 1)
        places = places - np.arange(len(places))
        count(np.concatenate([places - 1, places]), 1)
        found.append((left, right))
    return found


def apart(places: np.ndarray) -> np.ndarray:
    """Return places of which no two are neighbours: of a run of them the first, the third, and so on."""
    begins = np.diff(places, prepend=-2) > 1
    first = np.maximum.accumulate(np.where(begins, places, 0))
    return places[(places - first) % 2 == 0]


def joined(text: list[int], pair: Pair, token: int) -> list[int]:
    """Return a text in which a token stands for each occurrence of a pair, from the left."""
    made, k = list[int](), 0
    while k < len(text):
        if text[k] == pair[0] and k + 1 < len(text) and text[k + 1] == pair[1]:
            made.append(token)
            k += 2
        else:
            made.append(text[k])
            k += 1
    return made


@dataclass
class Encoder(dict[bytes, bytes]):
    """The tokens of words as unsigned numbers of 16 bits, remembered."""

    merges: list[Pair]
    ranks: dict[Pair, int] = field(init=False)

    def __post_init__(self) -> None:
        self.ranks = {pair: k for k, pair in enumerate(self.merges)}

    def __missing__(self, word: bytes) -> bytes:
        text, last = list(word), len(self.ranks)
        while len(text) > 1:
            best = min(pairwise(text), key=lambda pair: self.ranks.get(pair, last))
            if best not in self.ranks:
                break
            text = joined(text, best, 256 + self.ranks[best])
        self[word] = tokens = np.array(text, np.uint16).tobytes()
        return tokens

    def encode(self, text: bytes) -> bytes:
        return b"".join(map(self.__getitem__, WORD.findall(text)))

    @property
    def tokens(self) -> list[bytes]:
        """What each token stands for."""
        made = [bytes([k]) for k in range(256)]
        for left, right in self.merges:
            made.append(made[left] + made[right])
        return made


def sampled(texts: list[bytes], most: int) -> Counter[bytes]:
    """Return the words of texts spread evenly over all, of about so many bytes."""
    every = max(1, sum(map(len, texts)) // most)
    return Counter(word for text in texts[::every] for word in WORD.findall(text))


def encoded(texts: Iterable[bytes], encoder: Encoder, watch: Lines | Bar) -> np.ndarray:
    parts = list[bytes]()
    for text in texts:
        parts.append(encoder.encode(text + END))
        watch.done()
    return np.frombuffer(b"".join(parts), np.uint16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, help="what bench/corpus.py has written")
    parser.add_argument(
        "--vocabulary", type=int, default=8192, help="tokens, 256 of which are the bytes (default 8192)"
    )
    parser.add_argument(
        "--sample", type=float, default=8, help="megabytes that the merges are learned from (default 8)"
    )
    given = parser.parse_args()
    if not 256 <= given.vocabulary <= 1 << 16:
        parser.error(
            f"--vocabulary {given.vocabulary}: tokens are kept in 16 bits, and 256 are the bytes: 256 to 65536"
        )
    training, validation = (part.removesuffix(END).split(END) for part in read(given.corpus))
    with progress() as watch:
        watch.begin("learning merges", None)
        encoder = Encoder(learned(sampled(training, int(given.sample * 1e6)), given.vocabulary - 256))
        watch.begin("encoding", len(training) + len(validation))
        parts = {
            name: encoded(part, encoder, watch) for name, part in (("training", training), ("validation", validation))
        }
        lengths = np.array([len(token) for token in encoder.tokens], np.uint16)
        out = given.corpus.with_suffix(".bpe.npz")
        with replacing(out) as beside, beside.open("wb") as file:
            np.savez_compressed(file, lengths=lengths, merges=np.array(encoder.merges, np.uint16), **parts)
    for name, part in parts.items():
        print(f"{name}: {len(part):,} tokens for {lengths[part].sum(dtype=np.int64):,} bytes")
    print(f"{out}: {out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
