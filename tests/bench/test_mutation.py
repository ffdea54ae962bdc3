"""Mutants change one thing, tests are chosen by what they reach, and a run goes on where it was."""

from __future__ import annotations

import ast
import tomllib
from dataclasses import asdict, replace
from pathlib import Path
from types import CodeType

import pytest
from bench.mutation import marks, patch, reasons, results, sources, techniques
from bench.mutation.choice import Index, Job, is_of, job
from bench.mutation.control import Control
from bench.mutation.forked import is_asserted
from bench.mutation.mutant import Mutant, mutants_of, sample
from bench.mutation.operators import OPERATORS, places
from bench.mutation.reach import Reach, digest, instrument, read
from bench.mutation.records import append, records
from bench.mutation.running import Mutating
from hypothesis import Phase, settings


def changes(operator: str, *body: str) -> list[str]:
    """Return all that an operator makes of a function with this body, as texts of the body."""
    made = []
    for at in range(100):
        tree = ast.parse("def f():\n" + "\n".join(f"    {line}" for line in body))
        found = [(place, new) for place in places(tree) for new in OPERATORS[operator](place.node)]
        if at == len(found):
            break
        place, new = found[at]
        place.put(new)
        made.append("\n".join(map(ast.unparse, tree.body[0].body)))  # type: ignore[attr-defined]
    return made


@pytest.mark.parametrize(
    ("operator", "before", "after"),
    [
        ("drop_term", "x = a + b", ["x = a", "x = b"]),
        ("drop_term", "x = a / b", ["x = a"]),
        ("drop_term", "x = 'a' + b", []),
        ("flip_sign", "x = a - b", ["x = a + b"]),
        ("flip_sign", "x += -a", ["x -= -a", "x += a"]),
        ("flip_sign", "x.sub_(a)", ["x.add_(a)"]),
        ("flip_sign", "names.add(a)", []),
        ("skip_memory", "state['e'] = a", ["if False:\n    state['e'] = a"]),
        ("skip_memory", "error.copy_(a)", ["if False:\n    error.copy_(a)"]),
        ("skip_memory", "total = a", []),
        ("drop_part", "x = pack(a, b)", ["x = pack(b)", "x = pack(a * 0, b)", "x = pack(a)", "x = pack(a, b * 0)"]),
        ("remove_wait", "yield [a]", ["if False:\n    yield [a]"]),
        ("remove_wait", "x = yield [a]", []),
        ("remove_wait", "handle.wait()", ["if False:\n    handle.wait()"]),
        ("swap_operands", "x = a @ b", ["x = b @ a"]),
        ("swap_operands", "x = a * b", []),
        ("change_comparison", "x = a < b", ["x = a <= b"]),
        ("shift_constant", "x = 2", ["x = 3"]),
        ("shift_constant", "raise ValueError(2)", []),
        ("negate_condition", "return all(a)", ["return not all(a)"]),
        ("drop_statement", "a.append(b)", ["if False:\n    a.append(b)"]),
        ("drop_statement", "x = a", []),
    ],
)  # fmt: skip
def test_an_operator_changes_one_thing(operator: str, before: str, after: list[str]) -> None:
    assert changes(operator, before) == after


def test_negating_a_condition_takes_the_other_branch() -> None:
    assert changes("negate_condition", "if a:", "    b()") == ["if not a:\n    b()"]


def test_keys_tell_mutants_apart_and_every_mutant_compiles() -> None:
    mutants = list(mutants_of("sync/a2s.py"))
    assert len({mutant.key for mutant in mutants}) == len(mutants) > 50
    before = compile(sources.tree_of("sync/a2s.py"), str(sources.SOURCE / "sync/a2s.py"), "exec", dont_inherit=True)
    assert all(isinstance(mutant.code(), CodeType) and mutant.code() != before for mutant in mutants)


def test_a_sample_is_spread_and_begins_as_a_smaller_one() -> None:
    mutants = [m for file in ("sync/a2s.py", "sync/ssp.py", "compression/atomo.py") for m in mutants_of(file)]
    drawn = sample(mutants, 30, seed=0)
    assert drawn[:10] == sample(mutants, 10, seed=0) != sample(mutants, 10, seed=1)
    files = [mutant.file for mutant in drawn]
    assert max(map(files.count, files)) - min(map(files.count, files)) <= 4
    assert {mutant.operator for mutant in drawn} >= OPERATORS.keys() - {"drop_part", "remove_wait"}


def test_a_mutant_is_put_into_functions_that_exist() -> None:
    from laconic.sync.equal_times import fit

    code = fit.__code__
    mutant = next(m for m in mutants_of("sync/equal_times.py") if m.scope == "fit" and m.operator == "negate_condition")
    try:
        assert patch.apply(mutant, patch.functions(str(sources.SOURCE))) == 1
        assert fit.__code__ != code
    finally:
        fit.__code__ = code


def test_statements_tell_that_they_were_run() -> None:
    lines: list[int] = []
    tree = instrument(ast.parse("def f(x):\n    'Text.'\n    if x:\n        return 1\n    return 2\n"), lines)
    space = {"__seen__": bytearray(len(lines))}
    exec(compile(tree, "f", "exec"), space)  # type: ignore[arg-type]
    space["f"](False)  # type: ignore[operator]
    assert {line for line, seen in zip(lines, space["__seen__"], strict=True) if seen} == {3, 5}


def mutant(scope: str = "A2S.receive", line: int = 7) -> Mutant:
    return Mutant("k", "sync/a2s.py", scope, line, "drop_term", 0, "x = a + b", "x = a")


def reach(test: str, seconds: float, *, line: int = 7, long: bool = False, check: int = 0) -> Reach:
    return Reach(test, "", seconds, True, long, [("a2s", check)] if check else [], {"sync/a2s.py": [line]})


def test_marked_tests_are_all_run_then_one_case_of_each_and_long_ones_last() -> None:
    known = [
        reach("t::slow", 3),
        reach("t::many[0]", 1),
        reach("t::many[1]", 2),
        reach("t::long", 0.5, long=True),
        reach("t::marked", 2, check=1),
        reach("t::elsewhere", 0.1, line=8),
    ]
    made = job(mutant(), Index(known), {("a2s", 1), ("ssp", 1)}, limit=60)
    assert [r.test for r in made.all_of] == ["t::marked"]
    assert [r.test for r in made.until_failure] == ["t::many[0]", "t::slow", "t::many[1]", "t::long"]
    short = job(mutant(), Index(known), (), limit=3.5)
    assert [r.test for r in short.until_failure] == ["t::many[0]", "t::marked", "t::long"]


def test_a_mutant_is_of_the_technique_whose_class_it_is_in() -> None:
    assert is_of(mutant(), ("a2s", 1))
    assert not is_of(mutant(), ("ssp", 1))
    assert is_of(mutant("helper"), ("A2S", 2))  # it serves all of its file


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("a2s", set()),
        ("torus2d", {"topology/torus.py"}),
        ("c2c_ratio", {"theory/intensity.py"}),
        ("lars", {"optim/lars.py"}),
    ],
)
def test_techniques_lie_outside_of_the_words_too(name: str, files: set[str]) -> None:
    """A class, a function, and a function that makes what is defined elsewhere."""
    assert techniques.outside_of([(name, 1)]) == files <= set(techniques.outside())
    for file in files:
        assert is_of(next(iter(mutants_of(file))), (name, 1)) and not is_of(next(iter(mutants_of(file))), ("a2s", 1))


def test_a_sentence_has_every_mutant() -> None:
    assert techniques.outside_of([("wfbp_ps", 1)]) == set(techniques.outside())
    assert is_of(mutant(), ("wfbp_ps", 1)) and is_of(next(iter(mutants_of("cost/iteration.py"))), ("wfbp_ps", 1))


def test_what_a_test_reaches_is_collected_anew_where_its_techniques_code_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever that lies, whether or not its lines were known before."""
    path, test = tmp_path / "reach.jsonl", "tests/topology/test_torus.py::test_it"
    for name in ("torus", "ring"):
        known = digest(f"{test}_{name}", [(name, 1)], [])
        append(path, asdict(Reach(f"{test}_{name}", known, 1, True, False, [(name, 1)])))
    assert read(path).keys() == {f"{test}_torus", f"{test}_ring"}
    before = sources._digest
    monkeypatch.setattr(sources, "_digest", lambda path: b"new" if path.name == "torus.py" else before(path))
    assert read(path).keys() == {f"{test}_ring"}


def test_a_result_counts_what_did_not_end_as_killed() -> None:
    tests = (reach("t::a", 1), reach("t::b", 1))
    log = [{"changed": 1}, {"begun": "t::a", "long": False}, {"test": "t::a", "passed": True, "long": False}]
    assert results.result(Job(mutant(), (), tests), log, long=False).verdict == "survived"
    crashed = results.result(Job(mutant(), (), tests), [*log, {"begun": "t::b", "long": True}], long=True)
    assert (crashed.verdict, crashed.killers, crashed.by_long) == ("killed", ["t::b"], True)
    assert results.result(Job(mutant(), (), ()), [{"changed": 1}], long=False).verdict == "unreached"
    assert results.result(Job(mutant(), (), tests), [{"changed": 0}, *log[1:]], long=False).verdict == "same"


def test_a_run_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    survived = results.result(Job(mutant(), (), (reach("t::a", 1),)), [{"changed": 1}], long=False)
    append(path, vars(survived))
    with path.open("a") as file:
        file.write('{"key": "cut o')
    assert len(records(path)) == 1
    known = results.read(path)["k", ""]
    assert known == survived
    assert results.is_done(known, long=False, again=False)
    assert not results.is_done(known, long=True, again=False)
    assert not results.is_done(known, long=False, again=True)
    assert not results.is_done(None, long=False, again=False)


def test_what_broke_a_marked_test_on_its_way_is_tried_again() -> None:
    begun = [{"changed": 1}, {"begun": "t::a", "long": False}]
    failed = {"test": "t::a", "long": False, "passed": False, "asserted": True}
    tests = (reach("t::a", 1, check=1),)
    for mark, log, done in (("a2s 1", begun, False), ("a2s 1", [*begun, failed], True), ("", begun, True)):
        killed = results.result(Job(mutant(), tests, (), mark), log, long=False)
        assert killed.verdict == "killed" and results.is_done(killed, long=False, again=False)
        assert results.is_done(killed, long=False, again=True) is done


def test_a_property_fails_with_its_first_counterexample() -> None:
    before = settings.default
    try:
        Mutating((), 1, lambda job, log: None).pytest_sessionstart()
        assert settings.default.phases == (Phase.explicit, Phase.generate)
        assert settings.default.derandomize == before.derandomize
    finally:
        settings.load_profile("repeatable")


def test_the_control_runs_what_is_not_known_and_forgets_what_has_changed(tmp_path: Path) -> None:
    known = {f"t::{name}": reach(f"t::{name}", 8) for name in "abcd"}
    path = tmp_path / "control.jsonl"
    control = Control(path, known)
    groups = list(control.jobs(known.values(), seconds=20))
    assert [[r.test for r in group.all_of] for group in groups] == [["t::a", "t::b", "t::c"], ["t::d"]]
    assert all(group.mutant is None for group in groups)
    control.record(groups[0], [{"begun": "t::a"}, {"test": "t::a", "passed": True}, {"begun": "t::b"}])
    again = Control(path, known)
    assert again.failing == {"t::b"} and "1 of 2 tests pass" in again.report() and "left out: t::b" in again.report()
    assert [[r.test for r in job.all_of] for job in again.jobs(known.values(), seconds=0)] == [["t::c"], ["t::d"]]
    changed = {test: replace(r, digest="other") for test, r in known.items()}
    assert not Control(path, changed).passed


def test_a_test_that_fails_without_a_mutant_has_killed_none() -> None:
    tests = (reach("t::a", 1), reach("t::b", 1))
    log = [{"changed": 1}, {"begun": "t::a", "long": False}, {"begun": "t::b", "long": False}]
    killed = results.result(Job(mutant(), tests, ()), log, long=False)
    assert killed.killers == ["t::a", "t::b"]
    assert results.without({"t::a"}, {("k", ""): killed})["k", ""].killers == ["t::b"]
    assert not results.without({"t::a", "t::b"}, {("k", ""): killed})
    survived = results.result(Job(mutant(), tests, ()), log[:1], long=False)
    assert results.without({"t::a"}, {("k", ""): survived}) == {("k", ""): survived}


def test_reasons_are_given_for_mutants_that_there_are() -> None:
    given = tomllib.loads(reasons.PATH.read_text())["mutant"]
    files = {one["where"].partition(",")[0] for one in given}
    assert reasons.read().keys() == {one["key"] for one in given}
    assert reasons.read().keys() <= {mutant.key for file in files for mutant in mutants_of(file)}


def test_the_report_prints_reasons_and_says_which_are_wrong() -> None:
    tests = (reach("t::a", 1),)
    log = [{"changed": 1}, {"begun": "t::a", "long": False}]
    killed, survived = (
        results.result(Job(mutant(line=line), (), tests), given, long=False) for line, given in ((7, log), (9, log[:1]))
    )
    text = results.report([survived], {"k": "Both are zero."})
    assert "No survivor." in text and "k: equivalent" in text and "Both are zero." in text
    assert "k: killed, so that its reason is wrong" in results.report([killed], {"k": "Both are zero."})


def test_the_report_names_survivors() -> None:
    tests = (reach("t::a", 1), reach("t::b", 1))
    begun = [{"changed": 1}, {"begun": "t::a", "long": False}]
    killed = results.result(Job(mutant(), (), tests), begun, long=False)
    survived = results.result(Job(mutant(line=9), (), tests), begun[:1], long=False)
    text = results.report([killed, survived])
    assert "sync/a2s.py:9 A2S.receive, drop_term" in text and "- x = a + b" in text and "a2s.py:7" not in text


def test_marks_without_a_mutant_are_named_with_how_many_were_tried() -> None:
    known = {f"t::{check}": reach(f"t::{check}", 1, check=check) for check in (1, 2, 3)}
    begun = [{"changed": 1}, {"begun": "t::1", "long": False}]
    failed = {"test": "t::1", "long": False, "passed": False, "asserted": True}
    killed = results.result(Job(mutant(), (), tuple(known.values())), [*begun, failed], long=False)
    broken = results.result(Job(mutant(), (), tuple(known.values())), begun, long=False)
    assert not results.killed_marks([broken], known), "whatever runs the line breaks"
    drawn = [
        results.result(Job(mutant(line=line), (known["t::2"],), (), "a2s 2"), begun[:1], long=False) for line in (8, 9)
    ]
    borne = {mark for test in known.values() for mark in results.marks_of(test)}
    text = marks.report(borne, results.killed_marks([killed, *drawn], known), drawn, borne | {("ssp", 1)})
    assert text.splitlines() == [
        "1 of 3 marks had an assertion that a mutant of their technique failed.",
        "    without one: a2s 2 (2 drawn for it)",
        "    without one: a2s 3 (none drawn: --marks was not run, or no line of it is)",
        "    not tried: ssp 1 (its tests are long, start processes or fail without a mutant)",
    ]


@pytest.mark.parametrize(
    ("message", "is_one"),
    [
        ("assert 1 == 2", True),
        ("AssertionError: no", True),
        ("Failed: DID NOT RAISE", True),
        ("RuntimeError: no", False),
    ],
)
def test_a_failure_is_an_assertion_or_a_break(message: str, is_one: bool) -> None:
    assert is_asserted([message]) is is_one and not is_asserted([])


def test_marks_are_found_where_they_are_written() -> None:
    assert ("hsp", 3) in marks.written(["tests/sync/test_turns.py"]) <= marks.written(["tests/sync"])
    assert ("hsp", 3) not in marks.written(["tests/sync/test_ends.py"])
