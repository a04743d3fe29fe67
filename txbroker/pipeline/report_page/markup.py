"""
CORE: HTML and SVG as text that cannot be broken by what is put into it.

Whatever is a plain `str` is escaped when it becomes part of an element; only `Html`, which this
module makes, stands as it is. Topics and client ids come from anybody who may publish, so what a
browser or a terminal would not show as written (controls, changes of direction) is spelled out.
"""

from __future__ import annotations

import html

from txbroker.model.display_text import spelled

_EMPTY = {"meta", "br"}


class Html(str):
    """Markup: it was escaped where that was due."""

    __slots__ = ()


def visible(text: str, longest: int = 200) -> str:
    """The text with hidden characters spelled out, cut to `longest` characters."""
    cut = text if len(text) <= longest else f"{text[: longest - 1]}\N{HORIZONTAL ELLIPSIS}"
    return spelled(cut)


def element(name: str, /, *children: str, **attributes: object) -> Html:
    """
    `<name attributes>children</name>`.

    Of an attribute's name `_` becomes `-`, one at the end falls away (`class_`); one whose value is
    None is left out. Numbers with a fraction are written with two places.
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(_spelled(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _EMPTY:
        return Html(f"<{name}{given}>")
    return Html(f"<{name}{given}>{joined(*children)}</{name}>")


def joined(*children: str) -> Html:
    """Elements and texts, one after the other."""
    return Html(
        "".join(
            child if isinstance(child, Html) else html.escape(visible(child, longest=2000))
            for child in children
        )
    )


def _spelled(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return visible(str(value), longest=2000)
