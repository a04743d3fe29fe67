"""What a zone holds for its first subscriber: the history, once, in order."""

from __future__ import annotations

import pytest

from tests.support.journal import MemoryJournal, authority_over
from tests.support.recorders import EdgeRecorder
from txbroker.authority.authority import Authority
from txbroker.authority.edge_peer import EdgeGreeting, EdgePeer
from txbroker.authority.retained_messages import RetainedQuery
from txbroker.delegation.delegation_table import DelegationTable
from txbroker.mqtt.wire.message import Message

HELD = ("home/+/motion", "home/doors/a/#")


class Asker(EdgeRecorder):
    """An edge that keeps the answers to its interests."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[RetainedQuery | None] = []

    def confirm_interest(self, request: int, offset: int, retained: RetainedQuery | None) -> None:
        self.answers.append(retained)


def serving(journal: MemoryJournal | None = None) -> Authority:
    """A zone that starts, over a journal that may have been there."""
    authority = authority_over(journal or MemoryJournal(), "home", DelegationTable("home"))
    authority.held.set(HELD)
    authority.open(1)
    return authority


def say(authority: Authority, topic: str, *payloads: str, qos: int = 1) -> None:
    for payload in payloads:
        authority.publish(Message(topic, payload.encode(), qos))


def come(authority: Authority, *filters: str) -> tuple[EdgePeer, Asker]:
    port = Asker()
    accepted = authority.reception.connect(
        EdgeGreeting(edge="e", incarnation=1, filters=filters), port
    )
    assert accepted is not None
    return accepted[0], port


def ask(authority: Authority, topic_filter: str, *, retained: bool = False) -> list[str]:
    """What the answer to an interest brings."""
    peer, port = come(authority)
    authority.reception.add_interest(peer, topic_filter, 1, retained)
    (found,) = port.answers
    messages = () if found is None else iter(found)
    return [
        one.payload.decode() + ("R" if one.retain else "") for one in messages if one is not None
    ]


def test_first_subscriber_gets_the_history_once() -> None:
    """Of the held topics alone, in order; what is retained comes behind it."""
    authority = serving()
    say(authority, "home/hall/motion", "1", "2", "3", "4", "5")
    say(authority, "home/hall/light", "no")
    say(authority, "home/doors/a/b", "door")
    say(authority, "home/hall/motion", "qos 0", qos=0)
    authority.publish(Message("home/den/motion", b"6", 1, True))

    assert [] == ask(authority, "home/hall/light")
    peer, _ = come(authority)
    assert authority.reception.add_interest_now(peer, "home/+/motion") is None
    assert ["1", "2", "3", "4", "5", "6R", "6R"] == ask(authority, "home/+/motion", retained=True)
    assert [] == ask(authority, "home/hall/motion")
    assert ["6R"] == ask(authority, "home/+/motion", retained=True)
    assert ["door"] == ask(authority, "#")
    assert [] == ask(authority, "home/doors/a/b")


def test_restart_knows_who_was_first() -> None:
    """And holds on what nobody has subscribed to."""
    journal = MemoryJournal()
    authority = serving(journal)
    say(authority, "home/hall/motion", "1")
    say(authority, "home/doors/a", "2")
    assert ["1"] == ask(authority, "home/hall/motion")

    authority = serving(journal)

    assert [] == ask(authority, "home/hall/motion")
    assert ["2"] == ask(authority, "home/doors/#")


@pytest.mark.parametrize("looks", [1, 2])
def test_interests_that_nobody_asks_for_count_after_a_while(looks: int) -> None:
    """An edge that comes back with a session of before; or it asks in time, and gets all."""
    authority = serving()
    say(authority, "home/hall/motion", "1")
    come(authority, "home/hall/motion")
    for _ in range(looks):
        authority.held.look()

    peer, port = come(authority, "home/hall/motion")
    authority.reception.add_interest(peer, "home/hall/motion", 1, False)
    (found,) = port.answers
    assert (looks == 2) == (found is None)


def test_link_gathers_the_history_up_to_its_answer() -> None:
    """Records that come while it is gathered count, and ones that retention takes leave a gap."""
    journal = MemoryJournal()
    authority = serving(journal)
    say(authority, "home/hall/motion", "1", "2", "3", "4")
    authority.publish(Message("home/hall/light", b"lit", 1, True))
    peer, port = come(authority)
    authority.reception.add_interest(peer, "home/#", 1, True)
    (query,) = port.answers
    assert query is not None
    gathering = query.gather()
    steps = gathering.steps()
    for _ in range(3):  # two chunks of the journal, and the first of the retained messages
        next(steps)
    say(authority, "home/hall/motion", "5")
    for _ in steps:
        pass
    say(authority, "home/hall/motion", "later")
    journal.trim(1)

    assert 6 == len(gathering)
    found = gathering.next_batch(3) + gathering.next_batch(10)
    assert 0 == len(gathering)
    assert ["2", "3", "4", "5", "", "lit"] == [one.payload.decode() for one in found]
    assert [None] * 4 + [0, None] == [one.expiry for one in found]


def test_held_filters_are_replaced() -> None:
    """While the zone is served; one that had its first subscriber has had it."""
    authority = serving()
    say(authority, "home/hall/motion", "1")
    say(authority, "home/bell", "rung")
    assert ["1"] == ask(authority, "home/hall/motion")

    authority.held.set(["home/+/motion", "home/bell"])
    assert [] == ask(authority, "home/hall/motion")
    assert ["rung"] == ask(authority, "home/bell")
    assert [] == ask(authority, "home/bell")
    authority.held.set([])
    say(authority, "home/doors/a/b", "door")
    assert [] == ask(authority, "home/doors/a/b")
    authority.held.set(HELD)
    assert ["door"] == ask(authority, "home/doors/a/b")
