"""The answering side of links: whose token holds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from twisted.internet.task import Clock

from tests.support.journal import authority_of
from txbroker.counters import Counters
from txbroker.delegation.passage import Passage
from txbroker.delegation.table import DelegationTable
from txbroker.link.listener import TOKEN_LIFE, EdgeLife, LinkListener
from txbroker.place import PartKey, Place
from txbroker.pressure import Pressure

NOBODY = EdgeLife(identity="", life="", grpc="")


class Bench:
    """A listener whose disk has room; time stands still."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.table = DelegationTable("")
        authority, _ = authority_of("", self.table)
        authority.open(1)
        timers = SimpleNamespace(now=self.clock.seconds, call_later=self.clock.callLater)
        self.links = LinkListener(
            authority=authority,
            pressure=Pressure(cast(Any, timers)),
            space=cast(Any, SimpleNamespace(is_short=False, when_changed=lambda _: None)),
            counters=Counters(),
            turn=cast(Any, None),
            clock=cast(Any, self.clock),
            max_links=10,
        )

    def token(self) -> bytes:
        """One for the edge `e` in its first life."""
        token = self.links.issue("e", 1, NOBODY)
        assert token is not None
        return token


def test_token_holds_once_for_whom_it_was_given_to() -> None:
    """And for some seconds only."""
    bench = Bench()
    first, other, life, late = (bench.token() for _ in range(4))
    redeem = bench.links.redeem
    now = redeem(first, "e", 1), redeem(first, "e", 1), redeem(other, "f", 1), redeem(life, "e", 2)
    bench.clock.advance(TOKEN_LIFE + 1)

    assert (True, False, False, False) == now
    assert not redeem(late, "e", 1)


def test_token_does_not_outlive_what_was_told_with_it() -> None:
    """
    A zone went out, or came back, between the answer and the Hello: the edge is in no stream yet
    that says so, and its sessions would never read the part in between.
    """
    bench = Bench()
    redeem = bench.links.redeem
    root, child = Place(PartKey("", 1), 5), Place(PartKey("z", 7), 0)
    before = bench.token()
    bench.table.note(Passage(apex="z", left=root, entered=child))
    between = bench.token()
    bench.table.note(Passage(apex="z", left=child, entered=root))
    after = bench.token()

    assert [False, False, True] == [redeem(one, "e", 1) for one in (before, between, after)]
