"""A strategy is a value and a text: each gives the other back, and what makes no sense is refused with a way out."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic import registry
from laconic.errors import StrategyError
from laconic.language.predicates import COMPARISONS, ROLES
from laconic.language.tokenizer import tokens
from laconic.registry import Technique, knob, named_sentence, technique
from laconic.strategy import (
    Else,
    Glob,
    Map,
    MetricCondition,
    Phases,
    Role,
    Sentence,
    Shape,
    StepCondition,
    Strategy,
    Tiers,
    Word,
)

parse = Strategy.parse


def toy(axis_name: str, name: str, *aliases: str, **members: Any) -> None:
    """A word of this axis; `members` are its annotations and class attributes."""
    knobs = {key: value for key, value in members.items() if isinstance(value, tuple)}
    body: dict[str, Any] = {key: value for key, value in members.items() if key not in knobs}
    body |= {key: default for key, (_, default) in knobs.items()}
    body |= {"__annotations__": {key: kind for key, (kind, _) in knobs.items()}}
    body |= {"__doc__": f"Toy {name}.", "axis": axis_name, "__module__": __name__}
    technique(name, paper="-", aliases=aliases)(dataclass(frozen=True)(type(name, (Technique,), body)))


@pytest.fixture(autouse=True, scope="module")
def vocabulary() -> Iterator[None]:
    with registry.temporary(empty=True):
        toy("sync", "bsp")
        toy("sync", "local_sgd", "local", period=("int", knob(8, low=1)), average=("str", "model"))
        toy("sync", "ssp", staleness=("int", knob(3, low=0)), needs={"architecture": ("ps",)})
        toy("sync", "asp", refuses={"architecture": ("allreduce",), "topology": ("ring",)})
        toy("compression", "none")
        toy(
            "compression",
            "topk",
            ratio=("float", knob(0.01, above=0, high=1)),
            count=("int | None", knob(None, low=1)),
            sampled=("bool", False),
            note=("str | None", None),
            layers=("tuple[float, ...]", ()),
        )
        toy("compression", "qsgd", bits=("int", knob(8, low=1, high=16)))
        toy("compression", "power_sgd", rank=("int", knob(2, low=1)))
        toy("compression", "error_feedback", "ef", decay=("float", knob(1.0, low=0, high=1)), wraps=True)
        toy("architecture", "allreduce", order=("str", knob("backend", choices=("backend", "rank"))))
        toy("architecture", "parameter_server", "ps", servers=("int", knob(1, low=1)))
        toy("architecture", "gossip", needs={"topology": ("ring",)})
        toy("schedule", "wfbp", bucket_bytes=("int", knob(25 * 2**20, low=0)))
        toy("schedule", "sequential", delay_seconds=("float", knob(0.0, low=0)))
        toy("protocol", "tcp", hosts=("tuple[str, ...]", ()))
        toy("topology", "ring")
        register_wholes()
        yield


def register_wholes() -> None:
    toy("cluster", "tiresias")

    @technique("a_bound", paper="-", axis="theory")
    def bound() -> None:
        """A bound."""

    for name, text in {
        "pytorch_ddp": "bsp / none / allreduce / wfbp(25MiB)",
        "qsparse": "local(4) / topk+qsgd(4)+ef",
        "hier": "[bsp]@node > [local]@site",
        "snake": "snake / none",
    }.items():
        named_sentence(name, text, axis="schedule", paper="-", doc="A whole method.")


# ------------------------------------------------------------------------------------------ reading


def test_words_left_out_take_their_default() -> None:
    assert parse("local(4)") == Sentence(
        sync=Word("local_sgd", (("period", 4),)),
        compression=(Word("none"),),
        architecture=Word("allreduce"),
        schedule=Word("wfbp"),
        protocol=None,
        topology=None,
    )


def test_the_sentence_of_the_design_page() -> None:
    sentence = parse("local(period=8) / topk(0.01)+ef / allreduce / wfbp")
    assert str(sentence) == "local_sgd / topk+error_feedback / allreduce"
    assert sentence == Sentence.of(Word("local"), (Word("topk"), Word("ef")))
    assert repr(sentence) == f"Strategy.parse({str(sentence)!r})"


def test_tiers() -> None:
    tiers = parse("[bsp / none / allreduce]@node > [local(64) / qsgd(4)+ef / allreduce]@site")
    assert isinstance(tiers, Tiers)
    assert [name for _, name in tiers.levels] == ["node", "site"]
    assert parse("[bsp]@node") == Tiers(((Sentence(), "node"),))
    assert parse("[[bsp]]") == Sentence()


def test_maps_choose_the_first_rule_that_matches() -> None:
    chosen = parse('{"*.attention.*": qsgd, numel<4KiB: none, ndim==4: power_sgd(4), norm: bsp, else: topk}')
    assert isinstance(chosen, Map)
    assert chosen.choose("h.attention.w", (64, 64), "matrix") == parse("qsgd")
    assert chosen.choose("h.w", (4, 4), "matrix") == parse("none")
    assert chosen.choose("h.w", (64, 64, 3, 3), "conv") == parse("power_sgd(4)")
    assert chosen.choose("h.w", (64, 64), "norm") == parse("bsp")
    assert chosen.choose("h.w", (64, 64), "matrix") == parse("topk")
    assert chosen.choose("h.s", (), "scalar") == parse("none")


def test_phases() -> None:
    phases = parse("bsp until step 500, then local until loss<1.6, then local(16)")
    assert isinstance(phases, Phases)
    assert phases.parts == (
        (parse("bsp"), StepCondition(500)),
        (parse("local"), MetricCondition("loss", "<", 1.6)),
    )
    assert phases.last == parse("local(16)")
    assert phases.conditions() == (StepCondition(500), MetricCondition("loss", "<", 1.6))


def test_conditions_are_found_at_any_depth_each_once() -> None:
    inner = "[bsp until loss<2, then topk]"
    nested = parse(f"[{{matrix: {inner}, else: {inner}}}]@node > [bsp until step 5, then local]@site")
    assert nested.conditions() == (MetricCondition("loss", "<", 2), StepCondition(5))
    assert MetricCondition("loss", "<", 2).holds(1.5)
    assert not MetricCondition("loss", "<", 2).holds(2.0)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("topk(1e-3)", 0.001),
        ("topk(.5)", 0.5),
        ("topk(5.e-1)", 0.5),
        ("topk(0.5%)", 0.005),
        ("topk(0.7%)", 0.007),
        ("topk(1)", 1.0),
        ("sequential(50ms)", 0.05),
        ("sequential(2s)", 2.0),
        ("sequential(3us)", 3e-6),
        ("sequential(inf)", math.inf),
        ("wfbp(1KB)", 1000),
        ("wfbp(1.5MB)", 1_500_000),
        ("wfbp(2GB)", 2 * 10**9),
        ("wfbp(1KiB)", 1024),
        ("wfbp(24MiB)", 24 * 2**20),
        ("wfbp(1GiB)", 2**30),
        ("wfbp(0)", 0),
        ("local(1e3)", 1000),
        ("topk(sampled=True)", True),
        ("topk(count=4)", 4),
        ("topk(note=plain)", "plain"),
        ('topk(note="none")', "none"),
        (r'topk(note="a \"b\" \\ \u00e9")', 'a "b" \\ é'),
        ("topk(layers=[1, 0.5,])", (1.0, 0.5)),
        ("tcp([alpha, beta])", ("alpha", "beta")),
    ],
)
def test_literals(text: str, value: object) -> None:
    sentence = parse(text)
    assert isinstance(sentence, Sentence)
    [argument] = [value for word in sentence.words for _, value in word.arguments]
    assert argument == value and type(argument) is type(value)
    assert parse(str(sentence)) == sentence


def test_printing_is_canonical() -> None:
    assert str(parse("ring / SEQUENTIAL / ps(4) / topk(count=3, ratio=0.02) / Local_SGD(8)")) == (
        "local_sgd / topk(0.02, count=3) / parameter_server(4) / sequential / ring"
    )
    assert str(parse("wfbp(1MB)")) == "bsp / none / allreduce / wfbp(1000000)"
    assert str(parse("wfbp(26214400)")) == "bsp / none / allreduce"
    assert str(parse("wfbp(3072)")) == "bsp / none / allreduce / wfbp(3KiB)"
    assert str(parse('topk(note="a b")')) == 'bsp / topk(note="a b") / allreduce'
    assert str(parse("topk(count=none)")) == "bsp / topk / allreduce"


def test_equal_words_are_equal_however_they_are_given() -> None:
    assert Word.of("local", 4) == Word.of("Local-SGD", period=4.0) == Word("localsgd", (("period", 4),))
    assert Word.of("local", period=8) == Word("local_sgd")
    assert len({Word.of("topk", 1), Word.of("topk", 1.0)}) == 1
    assert Word.of("local", 4).make().period == 4


def test_named_sentences_stand_for_their_text() -> None:
    assert parse("pytorch_ddp") == parse("bsp / none / allreduce / wfbp(25MiB)")
    assert parse("[PyTorchDDP]@node") == Tiers(((parse("bsp"), "node"),))
    assert parse("hier") == parse("[bsp]@node > [local]@site")
    assert parse("hier until step 5, then qsparse") == parse(
        "[bsp]@node > [local]@site until step 5, then local(4) / topk+qsgd(4)+ef"
    )


def test_words_beside_a_named_sentence_replace_its_own() -> None:
    assert parse("qsparse / bsp") == parse("bsp / topk+qsgd(4)+ef")
    assert parse("none / qsparse / ps") == parse("local(4) / none / ps")


def test_a_strategy_is_its_own_parse() -> None:
    sentence = parse("bsp")
    assert parse(sentence) is sentence


# ------------------------------------------------------------------------------------------ refusing

REFUSALS = [
    ("", "expected a word and found the end; write a name such as bsp"),
    ("topkk", "no technique is called topkk; write topk (at `topkk`, column 1)"),
    ("local / topkk(0.1)", "(at `topkk(0.1)`, column 9)"),
    ("topk(2)", "topk cannot take ratio=2: ratio is a number, above 0 and at most 1; write topk(ratio=0.01)"),
    ("local(2.5)", "period is a whole number, at least 1; write local_sgd(period=8)"),
    ("allreduce(order=fast)", "order is one of backend, rank; write allreduce(order=backend)"),
    ("topk(rato=1)", "topk has no argument rato; it takes ratio, count, sampled, note, layers: write topk(ratio=0.01)"),
    ("bsp(3)", "bsp is given 1 arguments; it takes none: write bsp"),
    ("local(1, 2, 3)", "local_sgd is given 3 arguments; it takes period, average: write local_sgd(period=8)"),
    ("local(1, period=2)", "local_sgd is given an argument twice"),
    ("local(period=1, period=2)", "local_sgd is given period twice; write it once"),
    ("local(average=x, 2)", '"2" comes after a named argument; write its name before it too'),
    ("local(period=topk(3))", 'expected "," or ")" and found "("; write a comma between arguments'),
    ("wfbp(1.5KiB, 12QB)", 'the unit "QB" is unknown; write one of %, us, ms, s, KB'),
    ("wfbp(0.3KiB)", "0.3KiB is not a whole number of bytes in 64 bits; write one, such as 25MiB"),
    ("wfbp(99999999999999999999)", "does not fit into 64 bits; write it as a float"),
    ("topk(nan)", "topk cannot take ratio=nan"),
    (r'topk(note="\q")', r"has an escape that is none; write \\ for \ "),
    ('topk(note="open)', 'the quote is never closed; write another "'),
    ("topk(,)", '"," is no value; write a number, a name'),
    ("bsp / local", "bsp and local_sgd are both sync, and a sentence has one word of it; write bsp or local_sgd"),
    ("topk / qsgd", "write topk or qsgd, or chain them as in bf16+ef"),
    ("bsp+topk", 'only compression is chained with "+", not bsp; write bsp / topk'),
    ("topk+ef+qsgd", "error feedback wraps the whole chain, so it comes once and last; write topk+qsgd+error_feedback"),
    ("topk+ef+ef", "write topk+error_feedback"),
    ("ef", "error feedback needs a compressor to wrap; write bf16+ef, or none"),
    ("none+topk+ef", "none stands alone, it compresses nothing; write topk"),
    (
        "ssp / allreduce",
        "ssp needs the architecture ps, and this sentence has allreduce; write ssp / none / parameter_server",
    ),
    ("ssp(4) / topk+ef / gossip / ring", "write ssp(4) / topk+error_feedback / parameter_server / ring"),
    ("asp", "asp cannot go with allreduce; write asp / none / parameter_server"),
    ("asp / ps / ring", "asp cannot go with ring; write asp / none / parameter_server"),
    (
        "tiresias",
        "tiresias is a technique of cluster, not a word of a sentence, which has one each of sync, compression",
    ),
    ("bsp / a_bound", "a_bound is a function of theory, not a word of a sentence"),
    ("pytorch_ddp(3)", 'pytorch_ddp is a whole method and takes no arguments; write "pytorch_ddp / word"'),
    ("topk+pytorch_ddp", "pytorch_ddp is a whole method, not one word; write it alone or with / beside other words"),
    ("pytorch_ddp / qsparse", "pytorch_ddp and qsparse are both whole methods; write one of them"),
    ("hier / topk", "hier is not one sentence, so no word of it can be replaced; write out [bsp / none"),
    ("snake", "snake is defined by itself"),
    ("bsp local", '"local" cannot stand here; write "/" between words'),
    ("bsp $", '"$" cannot stand here'),
    ("bsp / ", "expected a word and found the end"),
    ("[bsp / local]@node", "are both sync"),
    ("[bsp", 'expected "]" and found the end; close the bracket'),
    ("[bsp]@3", 'expected the tier\'s name and found "3"; write [bsp]@node'),
    ("bsp@node", "a tier stands in brackets and has a name; write [bsp]@node > "),
    ("[bsp]@node > local", "a tier stands in brackets: write [bsp]@node > "),
    ("[bsp] > [local]@site", "every tier has a name; write [bsp]@node > "),
    ("[bsp]@node > [local]@node", "two tiers are called node; write another mesh dimension"),
    ("[bsp] / topk", "words do not follow a bracket; write them inside it"),
    ("[" * 40 + "bsp" + "]" * 40, "nested more than 32 deep; write fewer brackets"),
    ("{matrix: topk}", "a parameter that no rule matches would have no strategy; end the map with else: none"),
    ("{else: none, matrix: topk}", "the rule for matrix can never apply after else; write else last"),
    ("{norm: none, norm: topk, else: bsp}", "the second rule for norm can never apply; write one rule for it"),
    ("{weights: topk, else: none}", '"weights" selects no parameter; write matrix, vector'),
    ("{matrix topk, else: none}", 'expected ":" and found "topk"; a rule is a selector, a colon and a strategy'),
    ("{numel~3: topk, else: none}", 'expected one of < <= > >= == and found "~"; write numel>=4096'),
    ("{numel>2.5: topk, else: none}", "numel takes a whole number of at least 0, not 2.5"),
    (
        "{matrix: bsp until step 3, then topk, else: none}",
        "write {matrix: [bsp until step 500, then bf16], else: none}",
    ),
    ("{matrix: topk, else: none", 'expected "}" and found the end; close the map'),
    ("bsp until step 0, then local", "until step takes a whole number of at least 1, not 0"),
    ("bsp until step<5, then local", "steps are counted, not compared; write until step 500"),
    ("bsp until loss, then local", 'expected one of < <= > >= == and found ","'),
    ("bsp until loss<low, then local", 'expected a number and found "low"; write 500, 1.6'),
    ("bsp until 5, then local", 'expected a condition and found "5"; write until step 500 or until loss<1.6'),
    ("bsp until step 5", "after a condition write , then and the next strategy"),
    ("bsp until step 5, local", 'expected "then" and found "local"; after a condition write , then'),
    ("bsp until step 5, then local until step 5, then bsp", "step 5 is over when step 5 is; write a step above 5"),
]


@pytest.mark.parametrize(("text", "message"), REFUSALS, ids=[text[:30] or "empty" for text, _ in REFUSALS])
def test_refusals_say_what_to_write_instead(text: str, message: str) -> None:
    with pytest.raises(StrategyError, match=re.escape(message)):
        parse(text)


def test_words_left_out_are_what_the_others_need() -> None:
    assert str(Strategy.parse("ssp")) == "ssp / none / parameter_server"
    assert str(Strategy.parse("gossip")) == "bsp / none / gossip / ring"


def test_what_refusals_advise_is_accepted() -> None:
    advised = re.compile(r"; write ((?:ssp|bsp|asp|topk|local_sgd|allreduce)\b.*?) \(at `")
    texts = []
    for text, _ in REFUSALS:
        with pytest.raises(StrategyError) as refusal:
            parse(text)
        texts += [match for match in advised.findall(str(refusal.value)) if " or " not in match]
    assert len(texts) >= 10
    for text in texts:
        parse(text)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: parse(3), "a strategy is text, not 3"),  # type: ignore[arg-type]
        (lambda: Word("local", (("period", object()),)), "cannot take period=<object"),
        (lambda: Sentence(sync=Word("topk")), "topk is a word of compression, not of sync"),
        (lambda: Sentence(sync="bsp"), r"bsp is no Word; write Word.of\(bsp\)"),  # type: ignore[arg-type]
        (lambda: Sentence(compression=()), "or none for no compression"),
        (lambda: Tiers(()), "tiers without a level"),
        (lambda: Tiers((("bsp", "node"),)), "Tiers holds strategies, not bsp"),  # type: ignore[arg-type]
        (lambda: Tiers(((Sentence(), "a b"),)), '"a b" is no name of a tier'),
        (lambda: Map(()), "end the map with else"),
        (lambda: Phases((), Sentence()), "phases without a condition"),
        (lambda: Role("weights"), "weights is no role"),
        (lambda: Shape("size", "<", 3), "size is not part of a shape"),
        (lambda: Shape("numel", "!=", 3), '"!=" compares nothing'),
        (lambda: MetricCondition("loss", "<", math.nan), "loss cannot be compared with nan"),
        (lambda: MetricCondition("my loss", "<", 1.0), '"my loss" is no name of a metric'),
    ],
)
def test_constructors_check_too(build: Any, message: str) -> None:
    with pytest.raises(StrategyError, match=message):
        build()


def test_values_cannot_be_nested_deeper_than_their_text() -> None:
    strategy: Strategy = Sentence()
    with pytest.raises(StrategyError, match="nested more than 32 deep"):
        for _ in range(40):
            assert parse(str(strategy)) == strategy
            strategy = Tiers(((strategy, "node"),))


# ------------------------------------------------------------------------------------------ properties

finite = st.floats(allow_nan=False)
names = st.sampled_from(["node", "site", "rack", "Zone_2", "a-b"])
notes = st.none() | st.text() | st.sampled_from(["none", "True", "inf", "nan", "plain", "25MB", 'a"b\\'])
topk = st.builds(
    lambda **values: Word.of("topk", **values),
    ratio=st.floats(0, 1, exclude_min=True),
    count=st.none() | st.integers(1, 2**63 - 1),
    sampled=st.booleans(),
    note=notes,
    layers=st.lists(finite, max_size=3),
)
qsgd = st.builds(lambda bits: Word.of("qsgd", bits), st.integers(1, 16))
feedback = st.builds(lambda decay: (Word.of("ef", decay),), st.floats(0, 1)) | st.just(())
chains = st.builds(lambda links, ef: (*links, *ef), st.lists(topk | qsgd, min_size=1, max_size=3), feedback)


@st.composite
def sentences(draw: st.DrawFn) -> Sentence:
    words: list[Word | tuple[Word, ...]] = []
    local = st.builds(lambda period, average: Word.of("local", period, average), st.integers(1, 10**6), st.text())
    sync = draw(st.sampled_from(["default", "local", "ssp"]))
    if sync == "local":
        words.append(draw(local))
    if sync == "ssp":
        words += [Word.of("ssp", draw(st.integers(0, 9))), Word.of("ps", draw(st.integers(1, 64)))]
    if draw(st.booleans()):
        words.append(draw(chains))
    if draw(st.booleans()):
        sizes = st.integers(0, 2**40) | st.integers(0, 2**12).map(lambda n: n * 2**20)
        delay = st.builds(lambda seconds: Word.of("sequential", seconds), st.floats(0))
        words.append(draw(delay | sizes.map(lambda size: Word.of("wfbp", size))))
    if draw(st.booleans()):
        words.append(Word.of("tcp", draw(st.lists(st.text(), max_size=2))))
    if draw(st.booleans()):
        words.append(Word("ring"))
    return Sentence.of(*words)


def tiers_of(inner: st.SearchStrategy[Strategy]) -> st.SearchStrategy[Strategy]:
    levels = st.lists(st.tuples(inner, names), min_size=1, max_size=3, unique_by=lambda level: level[1])
    return levels.map(lambda found: Tiers(tuple(found)))


def maps_of(inner: st.SearchStrategy[Strategy]) -> st.SearchStrategy[Strategy]:
    comparisons = st.sampled_from(list(COMPARISONS))
    shapes = st.builds(Shape, st.sampled_from(["numel", "ndim"]), comparisons, st.integers(0, 2**40))
    selectors = st.sampled_from(ROLES).map(Role) | shapes | st.text().map(Glob)
    rules = st.lists(st.tuples(selectors, inner), max_size=3, unique_by=lambda rule: rule[0])
    return st.builds(lambda found, last: Map((*found, (Else(), last))), rules, inner)


@st.composite
def phases_of(draw: st.DrawFn, inner: st.SearchStrategy[Strategy]) -> Strategy:
    steps = iter(sorted(draw(st.sets(st.integers(1, 10**9), min_size=3, max_size=3))))
    metric = st.builds(
        MetricCondition, st.sampled_from(["loss", "val_loss", "Accuracy"]), st.sampled_from(list(COMPARISONS)), finite
    )
    count = draw(st.integers(1, 3))
    parts = tuple(
        (draw(inner), StepCondition(next(steps)) if draw(st.booleans()) else draw(metric)) for _ in range(count)
    )
    return Phases(parts, draw(inner))


strategies = st.recursive(sentences(), lambda inner: tiers_of(inner) | maps_of(inner) | phases_of(inner), max_leaves=6)


@pytest.mark.long
@settings(derandomize=True, deadline=None, max_examples=200)
@given(strategies)
def test_text_and_value_give_each_other_back(strategy: Strategy) -> None:
    again = parse(str(strategy))
    assert again == strategy
    assert hash(again) == hash(strategy)
    assert str(again) == str(strategy)


def spelled(name: str, random: Random) -> str:
    """Another spelling of a word's name."""
    all_messages = [random.choice([one_message.upper(), one_message.lower()]) for one_message in name.replace("_", "")]
    return all_messages[0] + "".join(random.choice(["", "", "_"]) + one_message for one_message in all_messages[1:])


@pytest.mark.long
@settings(derandomize=True, deadline=None, max_examples=100)
@given(sentences(), st.randoms(use_true_random=False))
def test_case_underscores_order_and_spaces_do_not_matter(sentence: Sentence, random: Random) -> None:
    def written(word: Word) -> str:
        text = str(word).removeprefix(word.name)
        return spelled(word.name, random) + text.replace("(", " (\t", 1)

    texts = ["+".join(map(written, sentence.on(axis))) for axis in registry.AXES if sentence.on(axis)]
    random.shuffle(texts)
    assert parse(random.choice(["/", " / ", "\n/  "]).join(texts)) == sentence


@pytest.mark.long
@settings(derandomize=True, deadline=None, max_examples=100)
@given(strategies, st.randoms(use_true_random=False))
def test_spaces_between_tokens_are_free(strategy: Strategy, random: Random) -> None:
    spread = tight = ""
    for token in tokens(str(strategy)):
        spread += random.choice([" ", "\n", "\t  "]) + token.text
        touching = tight[-1:].isalnum() and (token.text[:1].isalnum() or token.text[:1] in "_-.")
        tight += (" " if touching or token.kind in ("name", "number") else "") + token.text
    assert parse(spread) == parse(tight) == strategy


messages = '/ + ( ) [ ] { } , : @ < > = == >= " \\ - . % bsp local topk ef none qsparse hier tiresias'
messages += " until step then loss else matrix numel inf 1 0.5 1e400 2MiB é 999999999999999999999999"
jumbles = st.lists(st.sampled_from([*messages.split(), "\n"]), max_size=20)


@pytest.mark.long
@settings(derandomize=True, deadline=None, max_examples=400)
@given(st.text() | jumbles.map(" ".join) | jumbles.map("".join))
def test_any_text_is_a_strategy_or_a_sentence_about_it(text: str) -> None:
    try:
        strategy = parse(text)
    except StrategyError:
        return
    assert parse(str(strategy)) == strategy


@pytest.mark.long
@settings(derandomize=True, deadline=None, max_examples=200)
@given(strategies, st.randoms(use_true_random=False))
def test_damaged_text_is_refused_or_means_something(strategy: Strategy, random: Random) -> None:
    text = str(strategy)
    start = random.randrange(len(text))
    try:
        damaged = parse(text[:start] + text[start + random.randint(1, 4) :])
    except StrategyError:
        return
    assert parse(str(damaged)) == damaged
