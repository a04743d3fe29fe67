"""A client gives up before CONNACK, and goes on elsewhere: its connection is not read meanwhile."""

from __future__ import annotations

import pytest

from tests.directory.scenarios import connect, site


@pytest.mark.parametrize("is_fresh", [False, True])
def test_search_that_its_client_left_begins_no_session(is_fresh: bool) -> None:
    """It would stay: the clean session elsewhere had nothing to end when it began."""
    whole = site("abc", is_fresh=is_fresh)
    whole.isolate("a")
    left = whole.nodes["a"].connect("x")
    whole.run(1.0)
    left.has_left = True
    connect(whole, "b", clean=True).lost(is_will_due=False)
    whole.run(1.0)
    if not is_fresh:
        whole.heal()
    whole.run(10.0)
    whole.heal()
    whole.run(30.0)

    assert [] == whole.holders("x")
    assert not left.is_open and left.present is None


def test_client_that_sends_all_at_once_is_served() -> None:
    """Its packets wait unread behind CONNECT, and the end of the connection behind them."""
    whole = site("abc")
    connection = whole.nodes["a"].connect("x")
    connection.has_left = True
    whole.run_until(lambda: connection.is_answered)

    assert connection.present is False
