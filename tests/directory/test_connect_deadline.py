"""
A CONNECT waits for `roaming_wait`, and for the calls that are on their way by then.

Nodes that had the session answer slowly, and each names another one: the trail is long.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.directory.scenarios import connect
from tests.support.site import CALL_TIMEOUT, Connection, Node, Site
from txbroker.directory.entry import DirectoryEntry
from txbroker.directory.requests import Discard, MovedTo, Reply, Request, Take
from txbroker.directory.session_takeover import HOPS

ROAMING_WAIT = 2.0

SLOW = 0.8
"""Seconds until an answer of those that had the session: below a call's time."""

AT_MOST = ROAMING_WAIT + 3 * CALL_TIMEOUT
"""Seconds: a look-up, a step of the trail and another look-up may be on their way."""


def long_trail() -> Site:
    """Sessions of "x" have always just moved, between b and c."""
    three = Site("abc", 1, roaming_wait=ROAMING_WAIT)
    three.start(3)
    three.run(3.0)
    send = three.send

    def slow(source: Node, target: str, request: Request, answered: Any) -> None:
        wait = SLOW if isinstance(request, Take | Discard) else 0.0
        three.after(wait, lambda: send(source, target, request, answered))

    three.send = slow  # type: ignore[method-assign]
    for name, other in ("bc", "cb"):
        directory = three.nodes[name].directory
        handle: Callable[[str, Request], Reply | None] = directory.handle

        def moved(source: str, request: Request, other: str = other, handle: Any = handle) -> Any:
            if isinstance(request, Take | Discard):
                return MovedTo(node=other, incarnation=request.incarnation + 1)
            return handle(source, request)

        directory.handle = moved  # type: ignore[method-assign]
    entry = DirectoryEntry(client_id="x", node="b", incarnation=1, persistent=True)
    for node in three.nodes.values():
        node.directory.replica.entries.store(entry)
    return three


def timed(site: Site, *, clean: bool) -> tuple[Connection, float]:
    """A client's CONNECT at a, and the seconds to its answer."""
    before = site.now
    return connect(site, "a", clean=clean), site.now - before


def test_kept_session_is_refused_in_time() -> None:
    """The log names a node that is slow."""
    three = long_trail()
    connection, seconds = timed(three, clean=False)

    assert connection.refused is not None and "take too long" in connection.refused
    assert ROAMING_WAIT <= seconds <= AT_MOST < HOPS * SLOW


def test_clean_session_begins_in_time() -> None:
    """The discard is remembered."""
    three = long_trail()
    connection, seconds = timed(three, clean=True)

    assert connection.present is False
    assert seconds <= AT_MOST
    assert three.nodes["a"].directory.clearings.is_due("x")


def test_pending_discard_takes_no_time_of_its_own() -> None:
    """It is tried first, within the time of the CONNECT."""
    three = long_trail()
    timed(three, clean=True)[0].lost(is_will_due=False)
    directory = three.nodes["a"].directory
    directory._start = lambda _, procedure: procedure.close()  # type: ignore[method-assign]
    three.run(20.0)
    assert directory.clearings.is_due("x")
    _, seconds = timed(three, clean=False)

    assert seconds <= AT_MOST
