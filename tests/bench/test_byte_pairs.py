"""Byte pairs: the most frequent first, every text comes back, and merges never cross words."""

from __future__ import annotations

import json
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from bench.byte_pairs import WORD, Encoder, Pair, joined, learned, main, sampled
from bench.corpus import Text, frozen, write

TEXT = Path(__file__).read_bytes()


def by_counting(words: Counter[bytes], merges: int) -> list[Pair]:
    """All pairs counted anew before each merge; of those with equal counts the smallest."""
    texts, found = {word: list(word) for word in words}, list[Pair]()
    for k in range(merges):
        often = Counter[Pair]()
        for word, text in texts.items():
            for pair in pairwise(text):
                often[pair] += words[word]
        if not often:
            break
        best = min(often, key=lambda pair: (-often[pair], pair))
        texts = {word: joined(text, best, 256 + k) for word, text in texts.items()}
        found.append(best)
    return found


def overlapping(words: Counter[bytes]) -> Counter[bytes]:
    """Runs of one byte, pairs that are neighbours, words of one byte."""
    return words + Counter({b"aaaaa": 30, b"aaa": 7, b"ababab": 20, b"bababa": 11, b"x": 9, b"aab": 5})


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_merges_are_those_of_counting_anew(seed: int) -> None:
    draw = np.random.default_rng(seed)
    words = Counter(bytes(draw.integers(97, 100, size=draw.integers(1, 9)).tolist()) for _ in range(200))
    assert learned(overlapping(words), 60) == by_counting(overlapping(words), 60)


def test_merges_of_a_text_are_those_of_counting_anew() -> None:
    words = Counter(WORD.findall(TEXT))
    assert learned(words, 80) == by_counting(words, 80)
    few = Counter({b"ab": 2})
    assert learned(few, 10) == [(97, 98)], "no pair is left"


def test_every_text_comes_back() -> None:
    encoder = Encoder(learned(Counter(WORD.findall(TEXT)), 120))
    anything = np.random.default_rng(0).integers(256, size=5000, dtype=np.uint8).tobytes()
    spaces = "naïve\t\r\n  é = '𝛑'\n\n\n\n        x   \x00y".encode()
    for text in (TEXT, anything, spaces, b"", b"\0", b"#" * 1000 + b" " * 999):
        assert b"".join(WORD.findall(text)) == text
        tokens = np.frombuffer(encoder.encode(text), np.uint16)
        assert b"".join(encoder.tokens[token] for token in tokens) == text
    assert len(np.frombuffer(encoder.encode(TEXT), np.uint16)) < 0.6 * len(TEXT)


def test_a_word_is_merged_in_the_order_of_learning() -> None:
    encoder = Encoder([(98, 99), (97, 98), (256, 256)])  # bc, ab, bcbc
    assert np.frombuffer(encoder.encode(b"abcbcab"), np.uint16).tolist() == [97, 258, 257]


def test_the_sample_is_spread_over_all_texts() -> None:
    texts = [b"word%d " % k * 10 for k in range(100)]
    numbers = sorted(int(word) for word in sampled(texts, 700) if word.isdigit())
    assert 8 <= len(numbers) <= 13 and max(np.diff(numbers)) == min(np.diff(numbers)) and numbers[-1] > 90


def test_the_command_writes_tokens_beside_the_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [Text("tests", TEXT)]
    found += [
        Text(f"p{k}", b"\n".join(b"a line number %d of the text %d" % (n, k) for n in range(40))) for k in range(9)
    ]
    corpus = frozen(found, 10**6, 0.3)
    write(corpus, tmp_path / "corpus.xz")
    (tmp_path / "corpus.json").write_text(json.dumps(corpus.facts))
    monkeypatch.setattr(sys, "argv", ["byte_pairs.py", str(tmp_path / "corpus.xz"), "--vocabulary", "300"])
    main()
    assert f"for {len(corpus.validation):,} bytes" in capsys.readouterr().out
    with np.load(tmp_path / "corpus.bpe.npz") as kept:
        spelled = Encoder([(a, b) for a, b in kept["merges"].tolist()]).tokens
        assert len(spelled) == 300 and kept["lengths"].tolist() == [len(token) for token in spelled]
        for name, text in (("training", corpus.training), ("validation", corpus.validation)):
            assert b"".join(spelled[token] for token in kept[name]) == text
    monkeypatch.setattr(sys, "argv", ["byte_pairs.py", str(tmp_path / "corpus.xz"), "--vocabulary", "100"])
    with pytest.raises(SystemExit):
        main()
    assert "256 to 65536" in capsys.readouterr().err
