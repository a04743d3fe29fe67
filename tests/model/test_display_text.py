"""What others call their topics and nodes does not change what a line says."""

from __future__ import annotations

import unicodedata

from txbroker.cli.output import one_line
from txbroker.pipeline.report_page.markup import visible


def test_what_nobody_sees_is_spelled_out() -> None:
    """In a terminal and in the report: directions, widths of zero, controls, line ends."""
    for code in range(0x110000):
        char = chr(code)
        if unicodedata.category(char) in ("Cc", "Zl", "Zp") or unicodedata.bidirectional(char) in (
            *("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"),
        ):
            assert char not in visible(char), hex(code)
            assert char not in one_line(char) or char == "\t", hex(code)
    assert "a\\u202eb\\u200bc" == one_line("a\u202eb\u200bc")


def test_what_people_write_stays() -> None:
    """Letters of any script, marks, emoji."""
    for text in ("K\u00fcche/\u6e29\u5ea6", "\u05d1\u05d9\u05ea/1", "\U0001f3e0/temp"):
        assert text == one_line(text) == visible(text)
