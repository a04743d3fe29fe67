"""What others have named is printed so that a terminal shows what is there."""

from __future__ import annotations

import pytest

from txbroker.cli.output import payload_text, show_table, zone_name

HIDDEN = "a\u202eb\u200b\x1b[2J"
SPELLED = "a\\u202eb\\u200b\\x1b[2J"


def test_hidden_characters_are_spelled_out(capsys: pytest.CaptureFixture[str]) -> None:
    """A topic with these reads as another one, or clears the screen."""
    show_table(("ZONE",), [(HIDDEN,)])

    assert SPELLED in capsys.readouterr().out
    assert (SPELLED, SPELLED) == (payload_text(HIDDEN.encode()), zone_name(HIDDEN))
