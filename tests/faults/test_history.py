"""The checker itself: good histories pass, and each way to break a promise is seen."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from . import events
from .events import (
    Acknowledged,
    Believed,
    Calm,
    Connected,
    Connecting,
    Copied,
    Delivered,
    Disconnected,
    Ended,
    Event,
    Faulted,
    Granted,
    Haunted,
    Healed,
    Overdue,
    Reclaimed,
    Remembered,
    Returned,
    Sent,
    Settled,
    Stuck,
    Subscribed,
    SubscribeSent,
)
from .history import Tally, check, summary
from .rules import matches

P, S, T = "pub", "sub", "other"
TOPIC = "a/t"
SITES = {"south": "s"}


class Story:
    """
    Tells a history in few words. A method is one event or the usual few; numbers of connections and
    packet identifiers are the ones of the present connection unless given.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._clock = itertools.count()
        self._connections = itertools.count(1)
        self.connection: dict[str, int] = {}

    def add(self, what: type[Event], /, **fields: Any) -> Story:
        self.events.append(what(at=float(next(self._clock)), **fields))
        return self

    def connect(
        self, client: str, *, present: bool = True, code: int = 0, node: str = "a"
    ) -> Story:
        connection = self.connection[client] = next(self._connections)
        self.add(Connecting, client=client, connection=connection, node=node)
        return self.add(
            Connected,
            client=client,
            connection=connection,
            code=code,
            session_present=present,
        )

    def leave(self, client: str) -> Story:
        return self.add(Disconnected, client=client, connection=self.connection[client], why="test")

    def subscribe(self, client: str, *filters: tuple[str, int]) -> Story:
        connection = self.connection[client]
        self.add(SubscribeSent, client=client, connection=connection, filters=filters)
        return self.add(Subscribed, client=client, connection=connection, filters=filters)

    def send(self, number: int, qos: int = 1, **fields: Any) -> Story:
        fields = {"client": P, "topic": TOPIC, **fields}
        connection = self.connection[fields["client"]]
        return self.add(Sent, connection=connection, number=number, qos=qos, **fields)

    def acked(self, number: int | None, kind: str = "PUBACK", client: str = P) -> Story:
        connection = self.connection[client]
        return self.add(
            Acknowledged, client=client, connection=connection, number=number, kind=kind
        )

    def publish(self, number: int, qos: int = 1, **fields: Any) -> Story:
        client = fields.get("client", P)
        self.send(number, qos, **fields)
        if qos == 1:
            self.acked(number, client=client)
        if qos == 2:
            self.acked(number, "PUBREC", client).acked(number, "PUBCOMP", client)
        return self

    def deliver(self, number: int, qos: int = 1, client: str = S, **fields: Any) -> Story:
        fields = {
            "connection": self.connection[client],
            "publisher": P,
            "topic": TOPIC,
            "packet_id": number if qos else 0,
            **fields,
        }
        return self.add(Delivered, client=client, number=number, qos=qos, **fields)

    def settle(self, packet_id: int, client: str = S) -> Story:
        connection = self.connection[client]
        return self.add(Settled, client=client, connection=connection, packet_id=packet_id)

    def fault(self) -> Story:
        return self.add(Faulted, what="test")

    def heal(self) -> Story:
        return self.add(Healed)

    def calm(self) -> Story:
        return self.add(Calm)

    @property
    def broken(self) -> list[str]:
        """The rules that it breaks, each once."""
        return sorted({violation.rule for violation in check(self.events, SITES)})


@pytest.fixture
def story() -> Story:
    """A publisher, and a subscriber at QoS 2 of everything."""
    story = Story()
    story.connect(P, present=False).connect(S, present=False)
    return story.subscribe(S, ("a/#", 2))


# what is fine


def test_every_qos_passes(story: Story) -> None:
    """The plain flows."""
    story.publish(1, 0).publish(2, 1).publish(3, 2)
    story.deliver(1, 0).deliver(2, 1).deliver(3, 2).calm()

    assert [] == story.broken


def test_resends_and_reconnects_explain_copies(story: Story) -> None:
    """A QoS 1 message may come twice after a resend; and again, flagged, after a reconnect."""
    story.send(1).connect(P).send(1, dup=True).acked(1)
    story.deliver(1, packet_id=7).deliver(1, packet_id=8)
    story.leave(S).connect(S).deliver(1, packet_id=8, dup=True).calm()

    assert [] == story.broken


def test_half_known_repeat_is_not_a_duplicate(story: Story) -> None:
    """A receiver at QoS 2 that has not seen PUBREL gets the PUBLISH again and does not take it."""
    story.publish(1, 2).deliver(1, 2).connect(S)
    story.deliver(1, 2, dup=True, is_fresh=False).calm()

    assert [] == story.broken


def test_undecided_subscription_promises_nothing_yet(story: Story) -> None:
    """SUBACK while something was away counts from the next calm on."""
    story.connect(T, present=False).fault().subscribe(T, ("a/t", 1))
    story.publish(1).deliver(1).heal().calm()

    assert [] == story.broken

    story.publish(2).deliver(2).calm()

    assert ["lost"] == story.broken


def test_unacknowledged_message_may_be_missing(story: Story) -> None:
    """Nobody has promised anything before the PUBACK."""
    story.send(1).send(2).add(Overdue, what="no PUBACK")

    assert ["late"] == story.broken


def test_order_is_per_qos_topic_and_publisher(story: Story) -> None:
    """Between these any order is good."""
    story.connect(T, present=False)
    story.publish(1, 1).publish(2, 2).publish(3, 1, topic="a/u").publish(1, 1, client=T)
    story.deliver(1, 1, publisher=T, packet_id=9)
    story.deliver(3, 1, topic="a/u").deliver(2, 2).deliver(1, 1).calm()

    assert [] == story.broken


def test_calm_message_takes_the_two_hops(story: Story) -> None:
    """Edge to owner, owner to each holder once."""
    hops = {"publisher": P, "number": 1, "edge": "e", "owner": "o", "holders": ("e", "h", "o")}
    for source, target in [("e", "o"), ("o", "e"), ("o", "h")]:
        story.add(Copied, source=source, target=target, count=1, **hops)

    assert [] == story.broken


def test_zone_comes_back_at_a_higher_epoch(story: Story) -> None:
    """A renewal has the same epoch, a new delegation a higher one."""
    grant = {"node": "a", "zone": "a"}
    story.add(Granted, **grant, epoch=1).add(Granted, **grant, epoch=1)
    story.add(Returned, node="root", zone="a").add(Granted, **grant, epoch=3)

    assert [] == story.broken


def test_what_a_reclaim_cut_off_comes_late(story: Story) -> None:
    """Behind newer messages, without retained values, twice where the dead owner did not answer."""
    story.publish(1, retain=True).deliver(1).fault().publish(7).add(Reclaimed, zone="a")
    story.publish(8).deliver(8).deliver(7).deliver(7, packet_id=9).heal().calm().add(
        Remembered, values=()
    )

    assert [] == story.broken


def test_session_may_be_refused_while_its_holder_is_away(story: Story) -> None:
    """Code 3 says that nobody can be asked now."""
    story.fault().connect(S, code=3).heal().connect(S).calm()

    assert [] == story.broken


def test_session_may_begin_at_another_site_while_its_own_is_away(story: Story) -> None:
    """
    What the old one waits for comes later, behind newer messages, and what was in flight as new;
    then all is as ever.
    """
    story.publish(1).deliver(1).publish(2).fault()
    story.connect(S, present=False, node="south").subscribe(S, ("#", 1))
    story.publish(3).deliver(3).heal().deliver(1).deliver(2).calm()
    story.publish(4).deliver(4)

    assert [] == story.broken


def test_publisher_whose_session_is_at_another_site_sends_as_new(story: Story) -> None:
    """Nobody there knows that QoS 2 was sent before."""
    story.send(1, 2).fault().connect(P, present=False, node="south").send(1, 2)
    story.acked(1, "PUBREC").acked(1, "PUBCOMP").heal()
    story.deliver(1, 2, packet_id=1).deliver(1, 2, packet_id=2).calm()

    assert [] == story.broken


@pytest.mark.parametrize(
    ("node", "others", "is_faulted", "expected"),
    [
        ("b", (), True, []),
        ("b", (), False, ["session"]),
        ("b", ("c",), True, ["session"]),
        ("a", (), True, ["session"]),
    ],
)
def test_session_may_begin_at_the_peer_of_a_node_that_is_away(
    node: str, others: tuple[str, ...], is_faulted: bool, expected: list[str]
) -> None:
    """In a site of two; of three a majority is asked, and a node itself has it."""
    story = Story().connect(S, present=False).calm()
    if is_faulted:
        story.fault()
    story.connect(S, present=False, node=node)

    found = check(story.events, dict.fromkeys(("a", "b", *others), "s"))
    assert expected == [violation.rule for violation in found]


@pytest.mark.parametrize("present", [False, True])
def test_what_was_published_at_a_site_that_is_away_may_come_later(
    story: Story, present: bool
) -> None:
    """The client may have begun a session elsewhere without a word of it; the last of one stays."""
    story.publish(1, retain=True).fault().connect(P, present=present, node="south")
    story.publish(2, retain=True).deliver(2).heal().deliver(1).calm()
    story.add(Remembered, values=((TOPIC, P, 1),))

    assert [] == story.broken


# what is not


def bad() -> Iterator[tuple[str, str, Any]]:
    """Rule, what happened, and how to tell it."""
    yield "lost", "an acknowledged message", lambda s: s.publish(1).calm()
    yield "lost", "QoS 2 counts from PUBREC", lambda s: s.send(1, 2).acked(1, "PUBREC").calm()
    yield "lost", "for one of two sessions", _lost_for_one
    yield "duplicate", "QoS 0", lambda s: s.publish(1, 0).deliver(1, 0).deliver(1, 0)
    yield "duplicate", "QoS 1 out of nothing", lambda s: _twice(s, packet_id=8)
    yield "duplicate", "QoS 1, flagged, same connection", lambda s: _twice(s, dup=True)
    yield (
        "duplicate",
        "QoS 1 after a reconnect as if it were new",
        lambda s: s.publish(1).deliver(1).connect(S).deliver(1, packet_id=8),
    )
    yield (
        "duplicate",
        "QoS 1 after a reconnect, not flagged",
        lambda s: s.publish(1).deliver(1).connect(S).deliver(1),
    )
    yield (
        "duplicate",
        "QoS 1, settled before a calm",
        lambda s: s.publish(1).deliver(1).settle(1).calm().connect(S).deliver(1, dup=True),
    )
    yield (
        "duplicate",
        "more often than it was sent",
        lambda s: (
            s.send(1)
            .connect(P)
            .send(1, dup=True)
            .deliver(1)
            .deliver(1, packet_id=8)
            .deliver(1, packet_id=9)
        ),
    )
    yield "duplicate", "QoS 2", lambda s: s.publish(1, 2).deliver(1, 2).deliver(1, 2, packet_id=8)
    yield (
        "duplicate",
        "QoS 2 after a publisher's resend",
        lambda s: (
            s.send(1, 2)
            .connect(P)
            .send(1, 2, dup=True)
            .deliver(1, 2)
            .connect(S)
            .deliver(1, 2, dup=True)
        ),
    )
    yield (
        "duplicate",
        "QoS 2 granted QoS 1, after a publisher's resend",
        lambda s: (
            s.connect(T, present=False)
            .subscribe(T, ("a/t", 1))
            .send(1, 2)
            .connect(P)
            .send(1, 2, dup=True)
            .deliver(1, 1, client=T)
            .deliver(1, 1, client=T, packet_id=8)
        ),
    )
    yield "order", "QoS 1", lambda s: s.publish(1).publish(2).deliver(2).deliver(1)
    yield "order", "QoS 0", lambda s: s.publish(1, 0).publish(2, 0).deliver(2, 0).deliver(1, 0)
    yield (
        "order",
        "live overtakes a backlog",
        lambda s: (
            s.publish(1).deliver(1).leave(S).publish(2, 2).connect(S).publish(3, 2).deliver(3, 2)
        ).deliver(2, 2),
    )
    yield "order", "of a session at another site", _disordered_elsewhere
    yield "disagreement", "two publishers, two sessions", _disagree
    yield "session", "lost", lambda s: s.connect(S, present=False)
    yield "session", "lost at another site", lambda s: s.connect(S, present=False, node="south")
    yield "lost", "what waited at another site", _lost_elsewhere
    yield "duplicate", "at another site, too", _twice_elsewhere
    yield "session", "refused in the calm", lambda s: s.connect(S, code=3)
    yield "session", "refused for good", lambda s: s.fault().connect(S, code=2)
    yield "session", "of nobody", lambda s: s.connect(T, present=True)
    yield "session", "left behind", lambda s: s.add(Haunted, client=S, connection=2)
    yield "acknowledgement", "of nothing", lambda s: s.acked(None)
    yield (
        "acknowledgement",
        "of something sent on another connection",
        lambda s: s.send(1).connect(P).acked(1),
    )
    yield "acknowledgement", "out of order", lambda s: s.send(1).send(2).acked(2).acked(1)
    yield "packet", "spoilt", lambda s: s.publish(1).deliver(1, is_intact=False)
    yield (
        "packet",
        "illegal",
        lambda s: s.add(Disconnected, client=S, connection=2, why="illegal: CONNECT"),
    )
    yield "packet", "from nowhere", lambda s: s.deliver(1)
    yield "packet", "not subscribed", lambda s: s.publish(1, topic="b").deliver(1, topic="b")
    yield "packet", "at a QoS that nobody asked for", lambda s: s.publish(1, 2).deliver(1, 1)
    yield (
        "packet",
        "identifier in use",
        lambda s: (
            s.publish(1, 2)
            .publish(2, 2)
            .deliver(1, 2, packet_id=7)
            .connect(S)
            .deliver(2, 2, packet_id=7, is_fresh=False)
        ),
    )
    yield "owner", "two at an epoch", _two_owners
    yield (
        "owner",
        "an epoch again",
        lambda s: (
            s.add(Granted, node="a", zone="a", epoch=2)
            .add(Returned, node="root", zone="a")
            .add(Granted, node="a", zone="a", epoch=2)
        ),
    )
    yield "retained", "gone", lambda s: _retain(s).add(Remembered, values=())
    yield "retained", "old", lambda s: _retain(s).add(Remembered, values=((TOPIC, P, 1),))
    yield "retained", "old, of a session at another site", _forgotten_elsewhere
    yield "hops", "a third hop", lambda s: _copied(s, "h", "x")
    yield "hops", "to an edge that wants nothing", lambda s: _copied(s, "o", "x")
    yield "copies", "twice to an edge", lambda s: _copied(s, "o", "h", count=2)
    yield "ended", "a node", lambda s: s.add(Ended, node="a", status=1)
    yield "ended", "not, when told", lambda s: s.add(Stuck, node="a", order="SIGTERM")
    yield "damage", "believed", lambda s: s.add(Believed, node="a", what="a log")
    yield "lost", "after a reclaim", lambda s: s.publish(1).add(Reclaimed, zone="a").calm()
    yield "order", "after a reclaim", _disordered_after_reclaim
    yield "late", "still something to do", lambda s: s.heal().add(Overdue, what="a zone is away")


def _disordered_after_reclaim(story: Story) -> Story:
    story.fault().add(Reclaimed, zone="a").publish(1).publish(2)
    return story.deliver(2).deliver(1).heal().calm()


def _begin_elsewhere(story: Story) -> Story:
    story.publish(1).fault().connect(S, present=False, node="south")
    return story.subscribe(S, ("#", 1))


def _lost_elsewhere(story: Story) -> Story:
    return _begin_elsewhere(story).heal().calm()


def _twice_elsewhere(story: Story) -> Story:
    return _begin_elsewhere(story).deliver(1).heal().deliver(1, packet_id=2).calm()


def _disordered_elsewhere(story: Story) -> Story:
    story.fault().connect(P, present=False, node="south")
    return story.publish(1).publish(2).deliver(2).deliver(1).heal().calm()


def _forgotten_elsewhere(story: Story) -> Story:
    story.fault().connect(P, present=False, node="south").publish(1, retain=True).deliver(1)
    story.publish(2, retain=True).deliver(2).heal().calm()
    return story.add(Remembered, values=((TOPIC, P, 1),))


def _lost_for_one(story: Story) -> Story:
    story.connect(T, present=False).subscribe(T, ("+/t", 1)).calm()
    return story.publish(1).deliver(1).calm()


def _twice(story: Story, **fields: Any) -> Story:
    return story.publish(1).deliver(1).deliver(1, **fields)


def _disagree(story: Story) -> Story:
    story.connect(T, present=False).subscribe(T, ("a/#", 1)).connect("p2", present=False)
    story.publish(1).publish(1, client="p2")
    story.deliver(1).deliver(1, publisher="p2", packet_id=8)
    return story.deliver(1, client=T, publisher="p2", packet_id=8).deliver(1, client=T)


def _two_owners(story: Story) -> Story:
    story.add(Granted, node="a", zone="a", epoch=2).add(Granted, node="a", zone="a", epoch=2)
    return story.add(Granted, node="b", zone="a", epoch=2)


def _retain(story: Story) -> Story:
    story.publish(1, retain=True).deliver(1).publish(2, retain=True).deliver(2)
    return story.send(3, retain=True)


def _copied(story: Story, source: str, target: str, count: int = 1) -> Story:
    fields = {"edge": "e", "owner": "o", "holders": ("h",), "publisher": P, "number": 1}
    return story.add(Copied, source=source, target=target, count=count, **fields)


CASES = list(bad())


@pytest.mark.parametrize(
    ("rule", "tell"),
    [(rule, tell) for rule, _, tell in CASES],
    ids=[f"{r}: {w}" for r, w, _ in CASES],
)
def test_each_violation_is_seen(story: Story, rule: str, tell: Any) -> None:
    """That rule, and no other."""
    tell(story)

    assert [rule] == story.broken


def test_what_never_comes_is_late_and_lost(story: Story) -> None:
    """Time is up before it is calm."""
    story.fault().publish(1).heal().add(Overdue, what="1 delivery is missing")

    assert ["late", "lost"] == story.broken


def test_every_rule_is_documented_and_tested() -> None:
    """The table in the module's text, and the cases above."""
    from . import history

    assert history.__doc__ is not None
    for rule, _, _ in CASES:
        assert f"`{rule}`" in history.__doc__


# the rest


def test_history_survives_the_file(story: Story, tmp_path: Path) -> None:
    """What is kept of a failure can be checked again."""
    _retain(story).add(Remembered, values=((TOPIC, P, 1),))
    events.write(story.events, tmp_path / "history.jsonl")

    assert story.events == list(events.read(tmp_path / "history.jsonl"))


def test_summary_counts_and_shows_the_first() -> None:
    """For the terminal."""
    story = Story().connect(P, present=False).connect(S, present=False)
    story.subscribe(S, ("#", 1)).publish(1).publish(2).calm()

    lines = summary(check(story.events), each=1)

    assert 2 == len(lines)
    assert "lost: 2" == lines[0]
    assert "sub never got pub 1 on a/t, QoS 1" in lines[1]


def test_tally(story: Story) -> None:
    """Resends are not counted as messages."""
    story.send(1, 2).connect(P).send(1, 2, dup=True).acked(1, "PUBREC").acked(1, "PUBCOMP")
    story.publish(2).deliver(1, 2)

    assert Tally(published=2, acknowledged=2, delivered=1) == Tally.of(story.events)


@pytest.mark.parametrize(
    ("topic_filter", "topic", "expected"),
    [
        ("#", "a/b", True),
        ("a/#", "a", True),
        ("a/#", "a/b/c", True),
        ("a/#", "ab", False),
        ("a/+", "a/b", True),
        ("a/+", "a", False),
        ("a/+", "a/b/c", False),
        ("+/b", "a/b", True),
        ("a", "a", True),
        ("a", "a/b", False),
        ("a/b", "a", False),
    ],
)
def test_filters(topic_filter: str, topic: str, expected: bool) -> None:
    """MQTT 4.7."""
    assert expected == matches(topic_filter, topic)
