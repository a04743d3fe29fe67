"""What is shown when: nothing of QoS 1 and 2 before it is durable, and all in its order."""

from __future__ import annotations

import pytest

from tests.support.checking import checking
from tests.support.journal import MemoryJournal, authority_of, authority_over
from tests.support.recorders import EdgeRecorder, cut, take
from txbroker.authority.authority import Authority
from txbroker.authority.edge_peer import EdgeGreeting, EdgePeer, PublishVerdict
from txbroker.delegation.delegation_table import DelegationState, DelegationTable
from txbroker.delegation.zone_snapshot import EdgeInterest, ReceivedZone, ZoneSnapshot
from txbroker.model.log_position import JournalId
from txbroker.mqtt.wire.message import Message

checked = checking(Authority)


class Zone:
    """A zone whose journal is durable when the test says so, and one edge that wants all of it."""

    def __init__(self, apex: str = "") -> None:
        self.table = DelegationTable(apex)
        self.authority: Authority
        self.journal: MemoryJournal
        self.authority, self.journal = authority_of(apex, self.table, lazy=True)
        self.authority.open(1)
        self.port = EdgeRecorder()
        self.events = self.port.events
        self.peer = self.connect(self.port)

    def connect(
        self, port: EdgeRecorder, *, stream: int = 1, position: int | None = None
    ) -> EdgePeer:
        greeting = EdgeGreeting(
            edge="e", incarnation=1, filters=("#",), stream=stream, position=position
        )
        accepted = self.authority.reception.connect(greeting, port)
        assert accepted is not None
        return accepted[0]

    def say(
        self, topic: str, payload: str, qos: int = 1, *, retain: bool = False
    ) -> PublishVerdict:
        """Publish for the edge, which waits for the acknowledgement."""
        receipt = (self.port, payload) if qos else None
        message = Message(topic, payload.encode(), qos, retain)
        return self.authority.publish(message, receipt=receipt)

    def ask(self, request: int = 1) -> None:
        """What is retained?"""
        self.authority.reception.add_interest(self.peer, "#", request, True)

    def restart(self) -> None:
        """The process died and is back."""
        self.journal.crash()
        self.authority = authority_over(self.journal, self.authority.apex, self.table)
        self.authority.open(self.authority.epoch or 1)


# -- messages


def test_nothing_is_delivered_retained_or_acknowledged_before_it_is_durable() -> None:
    """And then in this order: deliveries, acknowledgement."""
    zone = Zone()
    zone.say("a", "1", retain=True)
    zone.say("a", "2", 2, retain=True)
    before = (zone.events[:], zone.authority.retained.get("a"), zone.authority.delivered)
    zone.journal.sync()
    retained = zone.authority.retained.get("a")

    assert ([], None, 0) == before
    assert [("deliver", 1, "1"), ("deliver", 2, "2"), ("settled", "1", "2")] == zone.events
    assert retained is not None
    assert (b"2", 2) == (retained.payload, zone.authority.delivered)


def test_qos0_is_delivered_at_once() -> None:
    """It waits for nobody, is retained at once, and has no position."""
    zone = Zone()
    zone.say("a", "1")
    zone.say("a", "2", 0, retain=True)
    before = take(zone.events)
    zone.journal.sync()

    assert [("deliver", 0, "2")] == before
    assert [("deliver", 1, "1"), ("settled", "1")] == zone.events
    assert zone.authority.retained.get("a") is not None


def test_part_of_what_waits_becomes_durable() -> None:
    """What is behind it goes on waiting, for its delivery and its acknowledgement."""
    zone = Zone()
    for number in (1, 2, 3):
        zone.say("a", str(number))
    zone.journal.sync(2)
    first = take(zone.events)
    is_settled = zone.authority.is_settled
    zone.journal.sync(3)

    assert [("deliver", 1, "1"), ("deliver", 2, "2"), ("settled", "1", "2")] == first
    assert [("deliver", 3, "3"), ("settled", "3")] == zone.events
    assert (False, True) == (is_settled, zone.authority.is_settled)


def test_retained_qos0_that_is_newer_than_what_waits_stays() -> None:
    """The zone's order decides what is retained, not when it became durable."""
    zone = Zone()
    zone.say("a", "older", retain=True)
    zone.say("a", "newer", 0, retain=True)
    zone.say("b", "older", retain=True)
    zone.say("b", "newer", 0, retain=True)
    zone.say("b", "newest", retain=True)
    zone.journal.sync()
    zone.ask()
    zone.say("a", "later", retain=True)
    zone.journal.sync()
    zone.ask(2)

    answers = [event for event in zone.events if event[0] == "answer"]
    assert [("answer", 1, 5, ["newer", "newest"]), ("answer", 2, 6, ["later", "newest"])] == answers


def test_cleared_qos0_that_is_newer_than_what_waits_stays_cleared() -> None:
    """An empty message is one, too."""
    zone = Zone()
    zone.say("a", "older", retain=True)
    zone.say("a", "", 0, retain=True)
    zone.journal.sync()

    assert zone.authority.retained.get("a") is None


def test_topic_that_was_delivered_behind_a_fence_stays_fenced() -> None:
    """Who gets it is looked up then; that must not let the next publish through."""
    zone = Zone()
    zone.say("z/a", "1")
    source = zone.authority.subtrees.prepare("z")
    zone.authority.subtrees.fence(source)
    zone.journal.sync()

    assert [("deliver", 1, "1"), ("settled", "1")] == zone.events
    assert zone.say("z/a", "2") is PublishVerdict.PARKED


def test_topic_that_was_read_from_the_journal_stays_refused() -> None:
    """The same for a catch-up."""
    zone = Zone()
    zone.say("z/a", "1")
    zone.journal.sync()
    zone.table.commit(cut("z"))
    zone.authority.announce(cut("z"))
    accepted = zone.authority.reception.connect(
        EdgeGreeting(edge="f", incarnation=1, filters=("#",), position=0), EdgeRecorder()
    )
    assert accepted is not None
    _, records = zone.authority.reception.backlog(*accepted, 0, 1)

    assert 1 == len(records)
    assert zone.say("z/a", "2") is PublishVerdict.NOT_AUTHORITATIVE


# -- who hears that a publish is safe


def test_sources_hear_of_their_own_publishes_behind_all_deliveries() -> None:
    """In the order of the publishes, once for each sync."""
    zone = Zone()
    other = EdgeRecorder(zone.events, "other")
    zone.say("a", "1")
    zone.authority.publish(Message("a", b"2", 1), receipt=(other, "2"))
    zone.say("a", "3")
    zone.journal.sync()

    assert [("deliver", 1, "1"), ("deliver", 2, "2"), ("deliver", 3, "3")] == zone.events[:3]
    assert [("settled", "1", "3"), ("other", "settled", "2")] == zone.events[3:]


def test_what_was_durable_is_acknowledged_though_an_action_failed() -> None:
    """The others behind it are settled at the next sync."""
    zone = Zone()
    zone.say("a", "1")
    zone.authority.in_order(lambda: 1 // 0)
    zone.say("a", "2")
    with pytest.raises(ZeroDivisionError):
        zone.journal.sync()
    first = take(zone.events)
    zone.journal.sync()

    assert [("deliver", 1, "1"), ("settled", "1")] == first
    assert [("deliver", 2, "2"), ("settled", "2")] == zone.events


def test_a_new_epoch_gives_back_what_was_not_durable() -> None:
    """Nobody is acknowledged for it."""
    zone = Zone()
    zone.say("a", "1")
    zone.journal.sync()
    zone.say("a", "2")
    zone.say("a", "3")
    take(zone.events)
    zone.authority.open(2)
    zone.journal.sync()

    assert [("close",), ("void", "2", "3")] == zone.events


# -- what has its place among the messages


def test_answer_keeps_its_place() -> None:
    """Behind what was taken before it, with what is retained and the offset there."""
    zone = Zone()
    zone.say("a", "1", retain=True)
    zone.ask()
    zone.say("a", "2", retain=True)
    before = zone.events[:]
    zone.journal.sync(1)
    between = take(zone.events)
    zone.journal.sync(2)

    assert [] == before
    assert [("deliver", 1, "1"), ("answer", 1, 1, ["1"]), ("settled", "1")] == between
    assert [("deliver", 2, "2"), ("settled", "2")] == zone.events


def test_answer_waits_for_nothing_but_what_was_taken_before() -> None:
    """Not for a QoS 0 record, which nobody syncs, and not for a later one."""
    zone = Zone()
    zone.ask()
    zone.say("a", "1")
    zone.say("a", "2", 0)
    zone.ask(2)
    zone.say("a", "3", 0)
    zone.journal.sync(1)

    assert [
        ("answer", 1, 0, []),
        ("deliver", 0, "2"),
        ("deliver", 0, "3"),
        ("deliver", 1, "1"),
        ("answer", 2, 1, []),
        ("settled", "1"),
    ] == zone.events


def test_answer_goes_with_its_link() -> None:
    """The next link says anew what it wants."""
    zone = Zone()
    zone.authority.publish(Message("a", b"1", 1))
    zone.ask()
    again = EdgeRecorder()
    zone.connect(again, stream=2)
    zone.journal.sync()

    assert [("deliver", 1, "1")] == again.events
    assert [("close",)] == zone.events


def test_cuts_and_the_end_keep_their_place() -> None:
    """Each behind the last message that was taken before it."""
    zone = Zone("z")
    zone.say("z/a", "1", retain=True)
    zone.table.commit(cut("z/x"))
    zone.authority.announce(cut("z/x"))
    zone.say("z/a", "2")
    zone.table.release("z/x", DelegationState())
    zone.authority.announce_end("z/x", 1)
    zone.say("z/x", "3")
    zone.authority.close()
    before = zone.events[:]
    refused = zone.say("z/a", "4")
    zone.journal.sync()

    assert ([], PublishVerdict.NOT_AUTHORITATIVE) == (before, refused)
    assert [
        ("deliver", 1, "1"),
        ("cut", "z/x", 1),
        ("deliver", 2, "2"),
        ("gone", "z/x", 1),
        ("deliver", 3, "3"),
        ("gone", "z", 1),
        ("settled", "1", "2", "3"),
    ] == zone.events
    assert 0 == len(zone.authority.retained)


def test_rest_of_a_handover_can_be_had_when_the_fence_has_settled() -> None:
    """What was taken for the subtree is retained and delivered by then."""
    zone = Zone()
    source = zone.authority.subtrees.prepare("z")
    list(source.bulk())
    zone.say("z/a", "last", retain=True)
    zone.authority.subtrees.fence(source)
    parts: list[ZoneSnapshot] = []
    zone.authority.in_order(lambda: parts.extend(source.rest()))
    zone.say("elsewhere", "goes on")
    before = parts[:]
    zone.journal.sync(1)

    assert [] == before
    assert [b"last"] == [message.payload for part in parts for message in part.retained]


# -- a crash


def test_what_was_not_durable_was_never_there() -> None:
    """Neither message nor mark; the offset is given again."""
    zone = Zone()
    key = ("e", 1, "", 1)
    for sequence in (1, 2):
        zone.authority.publish(Message("a", b"%d" % sequence, 1), key, sequence)
        if sequence == 1:
            zone.journal.sync()
    told = zone.authority.marks.copy()
    zone.restart()
    zone.authority.publish(Message("a", b"again", 1), key, 2)

    assert ({key: 1}, {key: 1}) == (told, zone.authority.marks)
    assert (2, 1) == (zone.authority.offset, zone.authority.delivered)


def test_qos0_counts_for_no_mark() -> None:
    """It carries the number that the next QoS 1 will have: that one is not taken yet."""
    zone = Zone()
    key = ("e", 1, "", 1)
    zone.authority.publish(Message("a", b"1", 1), key, 1)
    zone.authority.publish(Message("a", b"not numbered", 0), key, 2)
    zone.journal.sync()
    before = zone.authority.marks.copy()
    zone.restart()

    assert ({key: 1}, {key: 1}) == (before, zone.authority.marks)


def test_position_that_is_told_survives() -> None:
    """The offset of a QoS 0 record may be that of another one after a crash."""
    zone = Zone()
    zone.say("a", "1")
    zone.journal.sync()
    zone.say("a", "lost", 0)
    zone.ask()
    told = zone.events[-1]
    zone.restart()
    zone.say("a", "2")
    zone.journal.sync()
    accepted = zone.authority.reception.connect(
        EdgeGreeting(edge="e", incarnation=1, filters=("#",), position=told[2]), EdgeRecorder()
    )
    assert accepted is not None
    _, records = zone.authority.reception.backlog(*accepted, told[2], zone.authority.delivered)

    assert ("answer", 1, 1, []) == told
    assert [b"2"] == [record.message.payload for record in records]


def test_claim_that_was_not_finished_survives() -> None:
    """From where it began; and one that was is forgotten."""
    zone = Zone()
    received_zone = ReceivedZone()
    received_zone.interests.append(EdgeInterest(edge="e", incarnation=1, filters=("#",)))
    zone.authority.absorb("z", received_zone)
    zone.say("z/a", "1")
    zone.journal.sync()
    zone.authority.reception.sync(zone.peer, ["#"], {"z": None})
    zone.restart()
    peer = zone.authority.peers.get("e")
    assert peer is not None
    open_ = dict(peer.unclaimed)
    zone.authority.reception.sync(peer, ["#"], {"z": None})
    zone.authority.reception.on_claimed(peer, ["z"])
    zone.restart()

    assert {"z": 0} == open_
    assert [] == list(zone.authority.unclaimed())


def test_what_an_edge_has_not_claimed_is_kept_for_it() -> None:
    """Its low-water mark knows nothing of that."""
    zone = Zone()
    zone.say("a", "1")
    zone.journal.sync()
    part, other = JournalId("", 1), JournalId("x", 4)
    zone.authority.reception.set_low_water(zone.peer, {part: 9}, lambda: None)
    zone.peer.unclaimed["z"] = 1
    zone.authority.reception.set_low_water(zone.peer, {part: 9, other: 3}, lambda: None)
    zone.authority.reception.set_low_water(zone.peer, {}, lambda: None)

    kept = [noted for noted in zone.journal.noted if not noted.startswith("e from")]
    assert ["e  9", "e  1", "e x 3", "e  1"] == kept


def test_marks_that_come_behind_a_fence_are_not_confirmed() -> None:
    """Those that go with the zone are of an earlier time; the next owner is told them."""
    zone = Zone()
    part, kept = JournalId("", 1), list[str]()
    subtrees = zone.authority.subtrees
    zone.authority.reception.set_low_water(zone.peer, {part: 3}, lambda: kept.append("before"))
    source = subtrees.prepare("")
    subtrees.fence(source)
    zone.authority.reception.set_low_water(zone.peer, {part: 2}, lambda: kept.append("fenced"))
    subtrees.roll_back(source)
    zone.authority.reception.set_low_water(zone.peer, {part: 1}, lambda: kept.append("after"))

    assert ["before", "after"] == kept


# -- links of one edge


def test_hello_ends_the_earlier_link_before_it_is_answered() -> None:
    """The marks that it waits for are the last that the earlier one may set."""
    zone = Zone()
    zone.say("a", "1")
    greeting = EdgeGreeting(edge="e", incarnation=1, filters=("#",), stream=2)

    assert zone.authority.reception.expect(greeting)
    assert [("close",)] == zone.events
    assert zone.peer.port is None


def test_hello_that_comes_late_is_refused() -> None:
    """A link that its edge has given up: its doubts and its position are old."""
    zone = Zone()
    newer = EdgeRecorder()
    zone.connect(newer, stream=2)
    zone.authority.marks["e", 1, "", 2] = 7
    late = EdgeGreeting(edge="e", incarnation=1, filters=(), stream=1)

    assert not zone.authority.reception.expect(late)
    assert zone.authority.reception.connect(late, EdgeRecorder()) is None
    assert ([], {("e", 1, "", 2): 7}) == (newer.events, zone.authority.marks)
