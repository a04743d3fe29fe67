"""
A link to a zone that was just cut off, of which the stream from above has not told yet.

Publishes need the link early. The zone's owner holds its records until the edge claims the zone,
while the owner counts them as delivered. So for a client that leaves they are still to come.
"""

from __future__ import annotations

import pytest

from tests.link.test_life import Pair
from tests.support.journal import authority_of
from tests.support.pair import Client, Host, Link
from tests.support.recorders import cut
from txbroker.delegation.delegation_table import DelegationTable
from txbroker.delegation.zone_snapshot import EdgeInterest, ReceivedZone
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.mqtt.wire.message import Message

A = JournalId("a", 1)
SAID = 6


class CutPair(Pair):
    """
    The root and the zone `a`, which has just left it, with the interest of the edge's client.

    `below` is the link to its owner.
    """

    def __init__(self) -> None:
        super().__init__()
        self.durable = Client(self.edge, "d", clean=False)
        self.commit.commit()
        self.durable.subscribe(("a/x", 1))
        self.settle()
        received = ReceivedZone()
        received.interests.append(EdgeInterest(edge="edge", incarnation=1, filters=("a/x",)))
        child, _ = authority_of("a", DelegationTable("a"))
        child.open(1, received)
        self.child = child
        route = self.edge.zones.add(cut("a"))
        self.edge.on_owner(route, 1, LogPosition(JournalId("", 1), self.authority.delivered))
        self.below = Link(self.edge, route, Host(child, self.alarms), split=lambda: 40)
        self.below.edge_end.start(b"token")

    def settle(self) -> None:
        """Carry what is on its way, and commit."""
        self.link.pump()
        self.edge.work()
        self.link.pump()
        self.commit.commit()

    def say_below(self, first: int, last: int) -> None:
        """Messages that the child accepts."""
        for number in range(first, last + 1):
            self.child.publish(Message("a/x", b"%d" % number, 1))

    def announce(self) -> None:
        """The root's stream tells of the cut."""
        self.table.commit(cut("a"))
        self.authority.announce(cut("a"))
        self.settle()

    def owed(self) -> set[int]:
        """The offsets of the child's records that the absent session has, or will read."""
        session = self.durable.session
        flights = {e.place.offset for _, e in session.durable_sender.flows() if e.place}
        cursor = session.places.behind[A]
        begun = max(cursor.offset, session.subscriptions["a/x"].starts.get(A, 0))
        return flights | set(range(begun + 1, SAID + 1))


@pytest.mark.parametrize("come", [0, 1, 4, SAID])
@pytest.mark.parametrize("early", ["hello", "welcome", "online", "reached"])
@pytest.mark.parametrize("beats", [False, True])
def test_client_that_leaves_misses_nothing_of_a_zone_that_was_just_cut(
    early: str, come: int, *, beats: bool
) -> None:
    """
    `come` messages have come when it leaves; the link is as far as `early` before the cut.

    `beats`: True if the owner says how far it has come before it has the claim.
    """
    pair = CutPair()
    pair.say_below(1, SAID)
    if early == "welcome":
        next(pair.below.steps())
    elif early != "hello":
        pair.below.pump()
    if early == "reached":
        pair.below.owner_end.beat()
        pair.below.pump()
    pair.announce()
    session, route = pair.durable.session, pair.edge.zones.add(cut("a"))
    for _ in pair.below.steps():
        if beats and route.port is not None:
            pair.below.owner_end.beat()
            beats = False
        pair.edge.work()
        if len(list(session.durable_sender.flows())) >= come:
            break
    pair.edge.clients.disconnect(session, pair.durable, will=False)
    pair.below.pump()

    assert set(range(1, SAID + 1)) == pair.owed()


def test_client_that_stays_gets_what_waited_and_what_follows_once() -> None:
    """Over a link that has said Hello before the cut, and breaks."""
    pair = CutPair()
    pair.say_below(1, 3)
    pair.announce()
    for _ in pair.below.steps():
        pair.edge.work()
        if len(list(pair.durable.session.durable_sender.flows())) >= 2:
            break
    pair.below.cut()
    pair.say_below(4, SAID)
    route = pair.edge.zones.get("a")
    assert route is not None
    Link(pair.edge, route, pair.below.host).open()
    pair.commit.commit()

    assert [b"%d" % number for number in range(1, SAID + 1)] == pair.durable.payloads
    assert route.position is not None and SAID == route.position.offset
