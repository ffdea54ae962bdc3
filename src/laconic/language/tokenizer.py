"""A reader of tokens and literals, on which the grammar of strategies is built."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import NoReturn

from laconic.errors import StrategyError
from laconic.literals import CONSTANTS, NAME, NUMBER, read_number
from laconic.places import PLACE

_STRING = r"""(?P<string>"(?:[^"\\]|\\.)*")"""
_OTHERS = rf"""(?P<number>{NUMBER})|(?P<name>{NAME})|(?P<mark><=|>=|==|[^\s])"""
_TOKEN = re.compile(f"{_STRING}|{_OTHERS}", re.DOTALL)
_TOKEN_OR_PLACE = re.compile(f"{_STRING}|(?P<place>{PLACE})|{_OTHERS}", re.DOTALL)


@dataclass(frozen=True)
class Token:
    """A piece of a text: its kind, its characters and where it begins."""

    kind: str
    text: str
    start: int

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else f'"{self.text}"' if self.kind != "string" else self.text


def tokens(text: str) -> list[Token]:
    """Return the pieces of a text. It never fails: a stray character is a mark that no rule takes."""
    pattern = _TOKEN_OR_PLACE if ":" in text else _TOKEN  # a place takes long to look for
    found = [Token(match.lastgroup or "", match.group(), match.start()) for match in pattern.finditer(text)]
    return [*found, Token("end", "", len(text))]


class Reader:
    """A position in a text. `mark` is the token that a refusal points at; it is set before a constructor checks its
    arguments."""

    def __init__(self, text: str) -> None:
        self.text, self.tokens = text, tokens(text)
        self.position = 0
        self.mark = self.token

    @property
    def token(self) -> Token:
        return self.tokens[self.position]

    def at(self, *texts: str) -> bool:
        """Tell whether one of these marks or keywords comes next, in upper or lower case."""
        return self.token.kind != "string" and self.token.text.lower() in texts

    def advance(self) -> Token:
        token = self.token
        self.position += token.kind != "end"
        return token

    def take(self, text: str) -> bool:
        """Skip this mark or keyword if it comes next, and tell whether it did."""
        if not self.at(text):
            return False
        self.advance()
        return True

    def refuse(self, message: str) -> NoReturn:
        """Raise a `StrategyError` with this message, or one about a quote that is not closed."""
        self.mark = self.token
        if self.at('"'):
            raise StrategyError('the quote is never closed; write another " at its end')
        raise StrategyError(message)

    def expect(self, text: str, advice: str) -> None:
        if not self.take(text):
            self.refuse(f'expected "{text}" and found {self.token}; {advice}')

    def name(self, what: str, advice: str) -> str:
        if self.token.kind != "name":
            self.refuse(f"expected {what} and found {self.token}; {advice}")
        return self.advance().text

    def separator(self, closing: str, advice: str) -> None:
        if not self.take(",") and not self.at(closing):
            self.refuse(f'expected "," or "{closing}" and found {self.token}; {advice}')

    def arguments(self, of: str) -> tuple[list[object], dict[str, object]]:
        """Return the arguments in the parentheses after a name, if there are any: by position, then by name."""
        positional: list[object] = []
        named: dict[str, object] = {}
        if self.take("("):
            while not self.take(")"):
                key = self.keyword()
                if key is None and named:
                    self.refuse(f"{self.token} comes after a named argument; write its name before it too")
                if key in named:
                    self.refuse(f"{of} is given {key} twice; write it once")
                if key is None:
                    positional.append(self.literal())
                else:
                    named[key] = self.literal()
                self.separator(")", "write a comma between arguments, each a number, a name, a list or a quote")
        return positional, named

    def keyword(self) -> str | None:
        """Return the name of an argument that is given by name, or None."""
        if self.token.kind != "name" or self.tokens[self.position + 1].text != "=":
            return None
        name = self.advance().text
        self.advance()
        return name

    def literal(self) -> object:
        if not self.take("["):
            return self.scalar()
        items: list[object] = []
        while not self.take("]"):
            items.append(self.scalar())
            self.separator("]", "write a list as [1, 2]")
        return tuple(items)

    def scalar(self) -> object:
        match self.token.kind:
            case "number":
                return self.number()
            case "string":
                return self.string()
            case "name":
                name = self.advance().text
                return CONSTANTS.get(name.lower(), name)
        self.refuse(f"{self.token} is no value; write a number, a name, true, false, none, a list or a quoted string")

    def number(self) -> int | float:
        self.mark = self.token
        if self.take("inf"):
            return math.inf
        if self.token.kind != "number":
            self.refuse(f"expected a number and found {self.token}; write 500, 1.6, 0.5% or 25MiB")
        return read_number(self.advance().text)

    def string(self) -> str:
        self.mark = self.token
        try:
            return str(json.loads(self.advance().text))
        except ValueError:
            raise StrategyError(
                rf"{self.mark} has an escape that is none; write \\ for \ and \n for a line end"
            ) from None

    def where(self) -> str:
        """Return the place of the mark as text."""
        rest = " ".join(self.text[self.mark.start :].split())
        short = rest if len(rest) <= 40 else f"{rest[:37]}..."
        return f"at `{short}`, column {self.mark.start + 1}" if short else "at the end of the text"
