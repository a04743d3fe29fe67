"""Texts of others, as people read them: nothing hidden changes what a line seems to say."""

from __future__ import annotations

import re

_HIDDEN = re.compile(
    "[\\x00-\\x1f\\x7f-\\x9f\\xad\\u061c\\u180e\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff"
    "\\ud800-\\udfff\\ufff9-\\uffff\\U000e0000-\\U000e007f]"
)
"""
Controls and line ends, surrogates, zero-width characters, and those that turn the direction of what
follows: a topic could make a line of a table, or of a log, read as another one.
"""


def spelled(text: str, *, keep: str = "") -> str:
    """The text with hidden characters spelled out, but for those of `keep`."""
    return _HIDDEN.sub(
        lambda found: found[0] if found[0] in keep else found[0].encode("unicode_escape").decode(),
        text,
    )
