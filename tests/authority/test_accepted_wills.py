"""A will is taken once, whoever sends it, and never acknowledged before it is safe."""

from __future__ import annotations

import pytest

from tests.support.journal import authority_of
from tests.support.recorders import EdgeRecorder
from txbroker.authority.accepted_wills import LIMIT, MOST, OTHERS_FOR, OWN_FOR, AcceptedWills
from txbroker.authority.authority import Authority
from txbroker.authority.edge_peer import EdgeGreeting, PublishVerdict
from txbroker.delegation.delegation_table import DelegationTable
from txbroker.delegation.zone_snapshot import MarkKey, ReceivedZone, mark_of_will, will_of_mark
from txbroker.mqtt.wire.message import Message, WillId, owner_of_will

WILL: WillId = ("whose", 3, 7)


def will(number: int = 7, qos: int = 1) -> Message:
    return Message("w", b"gone", qos, client_id="c", will=("whose", 3, number))


def watched(authority: Authority) -> EdgeRecorder:
    port = EdgeRecorder()
    assert authority.reception.connect(EdgeGreeting(edge="e", incarnation=1, filters=("#",)), port)
    return port


def serving(*, lazy: bool = False) -> tuple[Authority, EdgeRecorder, object]:
    authority, journal = authority_of("", DelegationTable(""), lazy=lazy)
    authority.open(1)
    return authority, watched(authority), journal


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_the_second_one_counts_as_taken_and_is_no_record(qos: int) -> None:
    """Those of other connections, and other messages, are."""
    authority, port, _ = serving()
    for message in (will(qos=qos), will(qos=qos), will(8, qos), Message("w", b"gone", qos)):
        assert PublishVerdict.TAKEN is authority.publish(message, ("edge", 1, "", 1), 1)

    assert 3 == len([event for event in port.events if event[0] == "deliver"])


def test_the_second_one_waits_for_the_first_to_be_durable() -> None:
    """Also where a message of QoS 0 came between, which nothing waits for."""
    authority, journal = authority_of("", DelegationTable(""), lazy=True)
    authority.open(1)
    source = EdgeRecorder()
    authority.publish(will(), ("one", 1, "", 1), 1, (source, "one"))
    authority.publish(Message("x", b"", 0))
    authority.publish(will(), ("other", 1, "", 1), 1, (source, "other"))

    assert ((1, 0), []) == ((authority.durable_at, authority.delivered), source.events)
    journal.sync(1)
    assert (1, [("settled", "one", "other")]) == (authority.delivered, source.events)

    authority.publish(will(), ("third", 1, "", 1), 1, (source, "third"))
    assert ("settled", "third") == source.events[-1]


def test_it_is_known_where_its_topic_went() -> None:
    """Its mark goes along with a subtree, and is kept for the next process."""
    authority, _, _ = serving()
    authority.publish(will(), ("edge", 1, "", 1), 1)
    source = authority.subtrees.prepare("w")
    authority.subtrees.fence(source)
    marks = [key for part in source.rest() for key, _ in part.marks]

    assert mark_of_will(WILL) in marks
    assert (WILL, None) == (will_of_mark(mark_of_will(WILL)), will_of_mark(("whose", 3, "", 7)))


def test_an_epoch_that_ends_forgets_what_was_not_durable() -> None:
    """Whoever sent it was not told that it was taken, and sends it again."""
    authority, journal = authority_of("", DelegationTable(""), lazy=True)
    authority.open(1)
    authority.publish(will(), ("edge", 1, "", 1), 1)
    authority.close()
    authority.open(2)
    port = watched(authority)
    authority.publish(will(), ("edge", 1, "", 1), 1)
    journal.sync()

    assert [("deliver", 1, "gone")] == [event for event in port.events if event[0] == "deliver"]


def taken_from(sender: str, number: int, node: str = "n", client_id: str = "c") -> Message:
    """The will of a client of `node`, as it came from `sender`."""
    which = (owner_of_will(node, client_id), 1, number)
    return Message("w", b"gone", 1, client_id=client_id, will=which, edge=sender)


def mark(message: Message) -> MarkKey:
    assert message.will is not None
    return mark_of_will(message.will)


def test_beyond_the_limit_the_oldest_are_forgotten() -> None:
    """Marks of streams are not."""
    stream: MarkKey = ("edge", 1, "", 1)
    first, second, third = (taken_from("k", number) for number in (1, 2, 3))
    marks = {stream: 5, mark(first): 1}
    wills = AcceptedWills(marks, limit=2)
    wills.load()
    for message in (second, third):
        assert wills.start(message)
        wills.finish(message)

    assert {stream, mark(second), mark(third)} == marks.keys()
    assert [True, False, False] == [wills.start(message) for message in (first, second, third)]


@pytest.mark.parametrize("edge", ["n", ""], ids=["over a link", "here"])
def test_a_will_that_its_own_node_sent_is_remembered_for_a_while(edge: str) -> None:
    """One that a keeper sent, for as long as the node may be cut off; by what the node lived."""
    marks: dict[MarkKey, int] = {}
    wills = AcceptedWills(marks, node="n")
    own, other = taken_from(edge, 1), taken_from("k", 2)
    for message in (own, other):
        assert wills.start(message)
        wills.finish(message)
    begun = 10**15
    for lived, left in (
        (begun, 2),
        (begun + OWN_FOR - 1, 2),
        (begun + OWN_FOR, 1),
        (begun + OTHERS_FOR - 1, 1),
        (begun + OTHERS_FOR, 0),
    ):
        wills.forget_old(lived)
        assert (left, left) == (len(wills), len(marks))


def told(*zones: str, first: int = 0) -> ReceivedZone:
    """Marks of a will for each zone, of connections that begin with `first`."""
    received_zone = ReceivedZone()
    received_zone.marks = {
        mark_of_will(("whose", 3, first + place), zone): 1 for place, zone in enumerate(zones)
    }
    return received_zone


def test_what_came_back_says_nothing_of_wills_elsewhere() -> None:
    """A node that gave `w` back may lie about the wills that it took."""
    authority, port, _ = serving()
    authority.absorb("w", told("w", "w/x"))
    wills = [
        Message(topic, topic.encode(), 1, will=("whose", 3, number))
        for topic, number in (("w", 0), ("w/x/y", 0), ("ww", 0), ("w", 1), ("w/x/y", 1))
    ]
    for one in wills:
        authority.publish(one)

    assert ["ww", "w"] == [event[2] for event in port.events if event[0] == "deliver"]


def test_what_came_back_pushes_out_no_will_that_was_taken_here() -> None:
    authority, port, _ = serving()
    authority.wills = AcceptedWills(authority.marks, limit=10)
    authority.publish(will(), ("edge", 1, "", 1), 1)
    authority.absorb("a", told(*["a"] * 30, first=100))
    authority.publish(will(), ("other", 1, "", 1), 1)

    assert 1 == len([event for event in port.events if event[0] == "deliver"])
    assert 11 == len(authority.wills)


def test_there_is_a_bound_for_all_kinds_together() -> None:
    """Sent by their own nodes, by others, and told."""
    marks: dict[MarkKey, int] = {}
    wills = AcceptedWills(marks, node="n")
    for number in range(LIMIT + 5):
        for message in (taken_from("n", number), taken_from("k", number, node="other")):
            wills.finish(message)
    marks |= (news := told(*["a"] * (LIMIT + 5)).marks)
    wills.add(news)

    assert MOST == len(wills) == len(marks)


def test_what_came_back_and_is_known_is_not_kept_twice() -> None:
    """The zone took the mark along when it went."""
    authority, _, _ = serving()
    authority.publish(will(), ("edge", 1, "", 1), 1)
    before = dict(authority.marks)
    authority.absorb("a", told("a", first=7))

    assert before == authority.marks


def test_a_will_is_remembered_until_slow_keepers_have_sent_theirs() -> None:
    """`will_after` may be longer than the while for which wills of living nodes are remembered."""
    wills = AcceptedWills({}, node="n")
    hour = 3600
    wills.expect(hour)
    wills.forget_old(1)
    message = taken_from("n", 1)
    assert wills.start(message)
    wills.finish(message)
    wills.forget_old(1 + hour * 1_000_000)
    assert not wills.start(message)
    wills.forget_old(1 + 2 * hour * 1_000_000)
    assert wills.start(message)
