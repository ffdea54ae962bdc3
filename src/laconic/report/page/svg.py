"""Parts of plots in SVG: a frame with axes, lines, marks and labels; colours are CSS classes of the style sheet."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from laconic.report.page.axes import Axis
from laconic.report.page.html import Child, Markup, compact, el, escape, join

COLOURS = 8
_MARKS = (
    "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0z",  # circle
    "M-3.6,-3.6h7.2v7.2h-7.2z",  # square
    "M0,-4.8L4.6,3.6H-4.6z",  # triangle
    "M0,-5L5,0L0,5L-5,0z",  # diamond
    "M0,4.8L4.6,-3.6H-4.6z",  # triangle on its head
    "M-1.5,-4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",  # plus
    "M-4.5,-2.2L0,-4.8L4.5,-2.2L2.9,4H-2.9z",  # pentagon
)
_TIP = re.compile("<title>[^<]*</title>")
_DASHES = (None, "7 3", "2 3", "9 3 2 3")


def drawing(width: float, height: float, alt: str, *children: Child, class_: str | None = None) -> Markup:
    """Return a picture that scales with its box, with `alt` as its description for screen readers."""
    box = f"0 0 {compact(width)} {compact(height)}"
    return el("svg", *children, viewBox=box, role="img", aria_label=alt, class_=class_)


def text(
    x: float, y: float, content: str, class_: str = "tick", anchor: str = "start", tip: str | None = None
) -> Markup:
    inner = join([el("title", tip) if tip else None, content])
    return el("text", inner, x=x, y=y, class_=class_, text_anchor=None if anchor == "start" else anchor)


def rect(x: float, y: float, width: float, height: float, class_: str, tip: str | None = None) -> Markup:
    title = el("title", tip) if tip else None
    return el("rect", title, x=x, y=y, width=max(width, 0.0), height=height, class_=class_)


def segment(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    return el("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def path(points: Iterable[tuple[float, float]], class_: str, dash: str | None = None, close: bool = False) -> Markup:
    inner = "L".join(f"{x:.1f},{y:.1f}" for x, y in points).replace(".0", "")
    return el("path", d=f"M{inner}{'z' if close else ''}", class_=class_, stroke_dasharray=dash)


def mark(x: float, y: float, place: int, tip: str | None = None) -> Markup:
    """Return the mark of one series; shapes differ where colours repeat."""
    title = el("title", tip) if tip else None
    return el("use", title, href=f"#m{place % len(_MARKS)}", x=x, y=y, class_=f"mk {colour(place)}")


def marks() -> Markup:
    """Return the definitions of the marks' shapes, which a page contains once."""
    return join(el("path", id=f"m{place}", d=shape) for place, shape in enumerate(_MARKS))


def colour(place: int) -> str:
    return f"c{place % COLOURS}"


def dash(place: int) -> str | None:
    return _DASHES[place % len(_DASHES)]


def swatch(place: int) -> Markup:
    """Return a piece of a series' line for a legend."""
    line = el("path", d="M1,7H29", class_=f"ln {colour(place)}", stroke_dasharray=dash(place))
    return el("svg", line, mark(15, 7, place), viewBox="0 0 30 14", width=30, height=14, aria_hidden="true")


def legend(entries: Sequence[tuple[Markup, str]]) -> Markup:
    return el("ul", *(el("li", sign, el("span", name)) for sign, name in entries), class_="legend")


def shortened(content: str, characters: int) -> str:
    """Return `content` without its middle where it is too long."""
    if len(content) <= characters:
        return content
    kept = max(characters - 1, 2)
    return f"{content[: (kept + 1) // 2]}…{content[-(kept // 2) :]}"


def tail(content: str, characters: int) -> str:
    """Return `content` without its beginning where it is too long, since names of one model's tensors begin alike."""
    return content if len(content) <= characters else f"…{content[-max(characters - 1, 1) :]}"


@dataclass(frozen=True)
class Frame:
    """The area of a picture in which a plot's data are drawn, with its axes."""

    x_axis: Axis
    y_axis: Axis
    width: float
    height: float
    left: float = 58
    right: float = 14
    top: float = 26
    bottom: float = 44

    def x(self, value: float) -> float:
        return self.left + self.x_axis.at(value) * (self.width - self.left - self.right)

    def y(self, value: float) -> float:
        return self.height - self.bottom - self.y_axis.at(value) * (self.height - self.top - self.bottom)

    def axes(self) -> Markup:
        """Return grid lines, labels at round values, and the axes' headings."""
        floor, end = self.height - self.bottom, self.width - self.right
        parts: list[Child] = []
        for value, shown in self.y_axis.ticks(5):
            parts += [segment(self.left, self.y(value), end, self.y(value), "grid")]
            parts += [text(self.left - 7, self.y(value) + 4, shown, anchor="end")]
        for value, shown in self.x_axis.ticks(max(2, int((self.width - self.left) / 85))):
            parts += [segment(self.x(value), floor, self.x(value), floor + 4, "axis")]
            parts += [text(self.x(value), floor + 18, shown, anchor="middle")]
        parts += [
            segment(self.left, floor, end, floor, "axis"),
            text(end, self.height - 6, self._heading(self.x_axis), "label", "end"),
            text(2, 14, self._heading(self.y_axis), "label"),
        ]
        return join(parts)

    @staticmethod
    def _heading(axis: Axis) -> str:
        return f"{axis.heading}{', logarithmic' if axis.log else ''}"


def figure(wide: Markup, narrow: Markup, caption: Child = None, below: Child = None) -> Markup:
    """Return a picture drawn twice, for screens and for phones, so that text keeps its size; the style shows one.

    The phone's has no tool tips, since they need a pointer that can hover.
    """
    bare = Markup(_TIP.sub("", narrow))
    pictures = join([el("div", wide, class_="wide"), el("div", bare, class_="narrow")])
    return el("figure", el("figcaption", caption) if caption else None, pictures, escape(below) if below else None)
