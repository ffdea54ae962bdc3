"""What a mutant changes: one small thing in the body of a function, of ten kinds.

An operator finds the places in a module's tree where it applies, always in the same order, and each place is a function
that changes the tree. Texts, annotations and what is raised are left alone: no mechanism is in them.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from typing import NamedTuple

MEMORIES = ("error", "errors", "memory", "memories", "state", "momentum", "residual")
WAITS = ("wait", "barrier", "synchronize")
UNORDERED = (ast.Sub, ast.Div, ast.FloorDiv, ast.Mod, ast.MatMult, ast.Pow)
SIGNS = {ast.Add: ast.Sub, ast.Sub: ast.Add}
SIGNED_CALLS = {"add_": "sub_", "sub_": "add_", "add": "sub", "sub": "add"}
COMPARISONS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}


class Place(NamedTuple):
    """A node, the function it is in, the statement it is in, and how to put another node in its place."""

    node: ast.AST
    scope: str
    statement: ast.stmt
    put: Callable[[ast.AST], None]


def places(tree: ast.Module) -> Iterator[Place]:
    """Yield every node in a function's body that may be changed, outer ones first."""
    for node in tree.body:
        yield from _definitions(node, "")


def _definitions(node: ast.AST, scope: str) -> Iterator[Place]:
    if isinstance(node, ast.ClassDef):
        for child in node.body:
            yield from _definitions(child, f"{scope}{node.name}.")
    elif isinstance(node, ast.FunctionDef):
        for at, child in enumerate(node.body):
            yield from _within(child, scope + node.name, child, _setter(node.body, at))


def _within(node: ast.AST, scope: str, statement: ast.stmt, put: Callable[[ast.AST], None]) -> Iterator[Place]:
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.ClassDef | ast.Import | ast.ImportFrom):
        return
    if isinstance(node, ast.stmt):
        statement = node
    yield Place(node, scope, statement, put)
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "args") and not isinstance(node, ast.Call):
            continue
        if isinstance(value, ast.AST):
            yield from _within(value, scope, statement, lambda new, name=name: setattr(node, name, new))
        elif isinstance(value, list):
            for at, child in enumerate(value):
                if isinstance(child, ast.AST):
                    yield from _within(child, scope, statement, _setter(value, at))


def _setter(nodes: list[ast.AST], at: int) -> Callable[[ast.AST], None]:
    return lambda new: nodes.__setitem__(at, new)


# ---------------------------------------------------------------------------------------------- operators
# Each yields what may stand in the place of a node.


def drop_term(node: ast.AST) -> Iterator[ast.AST]:
    """Drop a term of a sum or a factor of a product."""
    if isinstance(node, ast.BinOp) and not _is_text(node):
        if isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.Div):
            yield node.left
        if isinstance(node.op, ast.Add | ast.Mult):
            yield node.right


def flip_sign(node: ast.AST) -> Iterator[ast.AST]:
    """Add what was subtracted, and the other way round."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield node.operand
    elif isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in SIGNS and not _is_text(node):
        yield _with(node, op=SIGNS[type(node.op)]())
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SIGNED_CALLS:
        if _is_set_call(node):
            return
        yield _with(node, func=_with(node.func, attr=SIGNED_CALLS[node.func.attr]))


def skip_memory(node: ast.AST) -> Iterator[ast.AST]:
    """Leave a memory or a state as it was: no assignment to it, no operation in place."""
    if _updates_memory(node):
        yield _skipped(node)


def drop_part(node: ast.AST) -> Iterator[ast.AST]:
    """Send one part of a payload less, or zeros in its place."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "pack":
        for at, part in enumerate(node.args):
            if len(node.args) > 1:
                yield _with(node, args=node.args[:at] + node.args[at + 1 :])
            if not isinstance(part, ast.Starred):
                zeros = ast.BinOp(part, ast.Mult(), ast.Constant(0))
                yield _with(node, args=[*node.args[:at], zeros, *node.args[at + 1 :]])


def remove_wait(node: ast.AST) -> Iterator[ast.AST]:
    """Do not wait for a message or for the others."""
    if isinstance(node, ast.Expr) and (
        isinstance(node.value, ast.Yield | ast.YieldFrom) or _method(node.value) in WAITS
    ):
        yield _skipped(node)


def swap_operands(node: ast.AST) -> Iterator[ast.AST]:
    """Swap the operands where their order matters."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, UNORDERED) and not _is_text(node):
        yield _with(node, left=node.right, right=node.left)


def change_comparison(node: ast.AST) -> Iterator[ast.AST]:
    """Let equal values fall on the other side; of equality, take the opposite."""
    if isinstance(node, ast.Compare):
        for at, op in enumerate(node.ops):
            if type(op) in COMPARISONS:
                yield _with(node, ops=[*node.ops[:at], COMPARISONS[type(op)](), *node.ops[at + 1 :]])


def shift_constant(node: ast.AST) -> Iterator[ast.AST]:
    """Add one to a number."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield ast.Constant(node.value + 1)


def negate_condition(node: ast.AST) -> Iterator[ast.AST]:
    """Take the other branch, or return the opposite of a condition."""
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        yield _with(node, test=ast.UnaryOp(ast.Not(), node.test))
    elif isinstance(node, ast.Return) and node.value is not None and _is_condition(node.value):
        yield _with(node, value=ast.UnaryOp(ast.Not(), node.value))


def drop_statement(node: ast.AST) -> Iterator[ast.AST]:
    """Leave a statement out, of those on which no later name depends."""
    if _updates_memory(node) or any(remove_wait(node)):
        return
    called = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    branch = isinstance(node, ast.If) and not isinstance(node.body[0], ast.Raise)
    if called or branch or isinstance(node, ast.AugAssign | ast.For):
        yield _skipped(node)


OPERATORS = {
    operator.__name__: operator
    for operator in (
        drop_term,
        flip_sign,
        skip_memory,
        drop_part,
        remove_wait,
        swap_operands,
        change_comparison,
        shift_constant,
        negate_condition,
        drop_statement,
    )
}


def _skipped(statement: ast.AST) -> ast.AST:
    """Return the statement where it never runs: a function stays a generator, and keeps the names it closes over."""
    return ast.If(ast.Constant(False), [statement], [])


def _with(node: ast.AST, **fields: object) -> ast.AST:
    """Return this node with other fields; what is not named is shared."""
    made = copy.copy(node)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def _is_text(node: ast.AST) -> bool:
    """Return whether texts or lists are joined or formatted here."""
    parts = (getattr(node, name, None) for name in ("left", "right", "value"))
    return any(
        isinstance(part, ast.JoinedStr | ast.List | ast.Tuple)
        or (isinstance(part, ast.Constant) and isinstance(part.value, str))
        for part in parts
    )


def _is_set_call(node: ast.Call) -> bool:
    """Return whether this may be `add` of a set: one argument whose result nobody wants to subtract."""
    return _method(node) == "add" and not node.keywords and not isinstance(node.func.value, ast.Call)  # type: ignore[attr-defined]


def _method(node: ast.AST) -> str:
    name = node.func if isinstance(node, ast.Call) else None
    return name.attr if isinstance(name, ast.Attribute) else name.id if isinstance(name, ast.Name) else ""


def _updates_memory(node: ast.AST) -> bool:
    if isinstance(node, ast.Expr):
        name = _method(node.value)
        return name.endswith("_") and not name.startswith("_")
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
    return any(_is_memory(target) for target in targets)


def _is_condition(node: ast.AST) -> bool:
    return isinstance(node, ast.Compare) or _method(node) in ("all", "any", "isinstance")


def _is_memory(target: ast.AST) -> bool:
    if isinstance(target, ast.Subscript | ast.Attribute):
        return True
    return isinstance(target, ast.Name) and target.id in MEMORIES
