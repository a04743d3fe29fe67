"""
Texts of other nodes and clients for display: hidden characters must not change a line's meaning.
"""

from __future__ import annotations

import re

_HIDDEN = re.compile(
    "[\\x00-\\x1f\\x7f-\\x9f\\xad\\u061c\\u180e\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff"
    "\\ud800-\\udfff\\ufff9-\\uffff\\U000e0000-\\U000e007f]"
)
"""
Controls, line ends, surrogates, zero-width characters, and marks that change the text's direction.

A topic with these could make a line of a table or a log read as another one.
"""


def spelled(text: str, *, keep: str = "") -> str:
    """Return the text with hidden characters spelled out, except those of `keep`."""
    return _HIDDEN.sub(
        lambda found: found[0] if found[0] in keep else found[0].encode("unicode_escape").decode(),
        text,
    )
