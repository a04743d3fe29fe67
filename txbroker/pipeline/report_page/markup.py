"""
CORE: makes HTML and SVG that no content can break.

A plain `str` is escaped when it becomes part of an element. `Html`, which only this module makes,
is used as it is. Any publisher chooses topics and client ids. So characters that a browser or
terminal would not show as written (controls, changes of direction) are spelled out.
"""

from __future__ import annotations

import html

from txbroker.model.display_text import spelled

_EMPTY = {"meta", "br"}


class Html(str):
    """Markup whose contents are already escaped."""

    __slots__ = ()


def visible(text: str, longest: int = 200) -> str:
    """Return the text with hidden characters spelled out, cut to `longest` characters."""
    cut = text if len(text) <= longest else f"{text[: longest - 1]}\N{HORIZONTAL ELLIPSIS}"
    return spelled(cut)


def element(name: str, /, *children: str, **attributes: object) -> Html:
    """
    Return `<name attributes>children</name>`.

    In an attribute's name `_` becomes `-`, and a final `_` is dropped (`class_`). An attribute
    whose value is None is left out. A float has at most two decimal places.
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
    """Concatenate elements and texts."""
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
