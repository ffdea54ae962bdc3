"""A page as a program sees it: its elements, by the parser of the standard library."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from urllib.parse import unquote

_VOID = {"meta", "link", "input", "br"}


@dataclass
class Element:
    tag: str
    attributes: dict[str, str | None]
    children: list[Element | str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(child if isinstance(child, str) else child.text for child in self.children)

    def all(self, tag: str, class_: str | None = None) -> list[Element]:
        """Below this one, in the page's order."""
        found: list[Element] = []
        for child in self.children:
            if isinstance(child, Element):
                classes = (child.attributes.get("class") or "").split()
                if child.tag == tag and (class_ is None or class_ in classes):
                    found.append(child)
                found += child.all(tag, class_)
        return found

    def everything(self) -> list[Element]:
        own = [child for child in self.children if isinstance(child, Element)]
        return [self, *(element for child in own for element in child.everything())]

    def rows(self) -> list[list[str]]:
        """Of a table: what its cells show."""
        cells = [[c for c in row.children if isinstance(c, Element)] for row in self.all("tr")]
        return [[cell.text for cell in row] for row in cells]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open = [Element("page", {})]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, dict(attrs))
        self.open[-1].children.append(element)
        if tag not in _VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open[-1].children.append(Element(tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].tag == tag, f"</{tag}> ends <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


def parsed(page: str) -> Element:
    """The page; every element must be ended, in order."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
    assert len(reader.open) == 1, f"<{reader.open[-1].tag}> is never ended"
    return reader.open[0]


def saved(link: Element) -> str:
    """What a link saves as CSV."""
    kind, _, content = (link.attributes["href"] or "").partition(",")
    assert kind == "data:text/csv;charset=utf-8"
    return unquote(content)
