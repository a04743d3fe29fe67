"""The members of a group at one edge: who gets which of many messages."""

from __future__ import annotations

import pytest

from tests.support.keeping import CommitRecorder
from tests.support.pair import Alarms, Client, Recorder, make_edge
from tests.support.runs import read_run
from txbroker.core import Run
from txbroker.edge.sessions.edge_group import EdgeGroup
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.session.shared_subscription import SharedSubscription
from txbroker.mqtt.session.window import Lent, SessionLimits
from txbroker.mqtt.wire.encoder import encode, encode_publish
from txbroker.mqtt.wire.message import Message
from txbroker.mqtt.wire.packets import Pingresp, Publish

TEXT = "$share/g/a/#"
PART = JournalId("a", 1)


class Members:
    """An edge whose clients are members of one group, with room for `inflight` messages each."""

    def __init__(
        self, count: int, inflight: int = 100, *, qos: int = 1, clean: bool = True
    ) -> None:
        self.commit = CommitRecorder()
        self.edge = make_edge(Alarms(), Recorder(), commit=self.commit)
        self.group = EdgeGroup(TEXT, "a/#")
        self.clients = [
            Client(self.edge, f"member-{number}", clean=clean) for number in range(count)
        ]
        self.commit.commit()
        self._leases = 0
        for client in self.clients:
            session = client.session
            session.sender.set_limits(SessionLimits(inflight=inflight))
            session.share(SharedSubscription(TEXT, qos))
            self.group.sessions[session.client_id] = session
            self.group.connect(session)

    def lend(self, first: int, count: int) -> list[int]:
        """Lend messages with these offsets; return their leases."""
        places = [LogPosition(PART, offset) for offset in range(first, first + count)]
        messages = [Message("a/b", b"%d" % place.offset, 1, False) for place in places]
        leases = range(self._leases + 1, self._leases + 1 + count)
        self._leases += count
        self.group.lend_all(places, messages, leases, is_again=False)
        self.group.check()
        return list(leases)

    def lend_run(self, first: int, count: int, *, is_again: bool = False) -> int:
        """Lend messages with these offsets in a run; return how many were given."""
        messages = [Message("a/b", b"%d" % offset, 1) for offset in range(first, first + count)]
        given = self.group.lend_run(PART, read_run(messages, first), 7, is_again=is_again)
        self.group.check()
        return given

    def qos0_run(self, count: int) -> Run:
        """So many messages of QoS 0, as a client sends them."""
        router = self.edge.router
        packet_reader = router.make_packet_reader(router.make_packet_writer(), 1 << 20)
        packet_reader.open(object(), "somebody", None, clean=True)
        packet_reader.feed(encode_publish("a/b", b"0", 0, False, False, None) * count)
        packet_reader.step()
        assert packet_reader.qos0 is not None
        return packet_reader.qos0

    def offsets(self) -> list[list[int]]:
        """The offsets of what each member got."""
        return [[int(payload) for payload in client.payloads] for client in self.clients]


def test_each_member_gets_its_share_in_order() -> None:
    """As many each, none twice."""
    members = Members(3)
    members.lend(1, 30)

    found = members.offsets()
    assert [10, 10, 10] == [len(one) for one in found]
    assert all(one == sorted(one) for one in found)
    assert list(range(1, 31)) == sorted(offset for one in found for offset in one)


def test_members_with_durable_sessions_get_their_shares_when_these_are_durable() -> None:
    """A packet id is durable before a packet with it leaves."""
    members = Members(2, clean=False)
    members.lend(1, 10)
    before = members.offsets()
    members.commit.commit()

    assert ([[], []], [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]]) == (before, members.offsets())
    lent = [entry.lent for _, entry in members.clients[0].session.durable_sender.flows()]
    assert [Lent(TEXT, LogPosition(PART, offset)) for offset in range(1, 6)] == lent


def test_few_messages_go_in_turn() -> None:
    """Also to those who had none of the last ones."""
    members = Members(3)
    for first in (1, 3):
        members.lend(first, 2)

    assert [[1, 4], [2], [3]] == members.offsets()


def test_a_member_with_less_room_takes_less() -> None:
    """Others take its share; what nobody has room for is returned."""
    members = Members(2, inflight=10)
    members.lend(1, 3)
    members.lend(4, 20)

    assert [10, 10] == [len(one) for one in members.offsets()]
    report = members.group.report()
    assert [21, 22, 23] == sorted(place.offset for place in report.returned)
    assert 23 == report.limit


def test_what_is_lent_again_among_others_comes_once() -> None:
    """The coordinator lends it again as the edge's report was on its way."""
    members = Members(2)
    members.lend(1, 10)
    members.lend(6, 10)

    assert list(range(1, 16)) == sorted(offset for one in members.offsets() for offset in one)


@pytest.mark.parametrize("qos", [0, 1])
def test_what_members_answer_is_reported(qos: int) -> None:
    """A message to a member of QoS 0 is done when it is sent."""
    members = Members(2, qos=qos)
    leases = members.lend(1, 10)
    for lease in leases:
        assert members.group.answer(lease) is bool(qos)

    assert list(range(1, 11)) == sorted(place.offset for place in members.group.report().done)


def test_members_without_room_get_qos0_as_plain_subscribers_do() -> None:
    """Publishers wait for a full output; the output itself drops what is beyond its bound."""
    members = Members(2)
    for client in members.clients:
        while client.packet_writer.has_room:
            client.packet_writer.send(encode(Pingresp()) * 1024)
    assert 0 == members.group.send_run(members.qos0_run(10))
    members.group.lend(LogPosition(PART, 1), Message("a/b", b"10", 0), 1, is_again=False)

    assert [5, 6] == sorted(len(client.payloads) for client in members.clients)


def test_members_that_groups_have_not_followed_yet_get_no_qos0() -> None:
    """Thousands of groups follow a client in slices: some still have it when it has left."""
    members = Members(3)
    gone, left, stays = members.clients
    gone.session.detach()
    left.session.unshare(TEXT)

    assert 0 == members.group.send_run(members.qos0_run(3))
    assert [0, 0, 3] == [len(client.payloads) for client in (gone, left, stays)]
    stays.session.unshare(TEXT)
    assert 3 == members.group.send_run(members.qos0_run(3))


def test_a_member_with_a_maximum_packet_size_gets_what_it_accepts() -> None:
    """Each message has to be looked at then; the other member gets those that are too large."""
    members = Members(2)
    members.clients[0].packet_writer.max_packet = 5
    members.lend(1, 10)

    assert [[], list(range(1, 11))] == members.offsets()


def test_a_member_that_leaves_returns_its_share() -> None:
    """Those that it has not acknowledged."""
    members = Members(2)
    members.lend(1, 10)
    session: Session = members.clients[0].session
    lent = [event.packet_id for event in members.clients[0].events if isinstance(event, Publish)]
    session.sender.on_pubacks([packet_id for packet_id in lent[:2] if packet_id is not None])
    back, ended = session.sender.reclaim()
    members.group.give_back(back)

    assert not ended
    assert [3, 4, 5] == sorted(place.offset for place in members.group.report().returned)


def test_what_was_returned_and_is_lent_again_is_held_and_not_returned() -> None:
    """The coordinator would lend it to another member as well."""
    members = Members(1, inflight=1)
    members.lend(1, 2)
    session = members.clients[0].session
    (packet_id,) = (e.packet_id for e in members.clients[0].events if isinstance(e, Publish))
    assert packet_id is not None
    session.sender.on_pubacks([packet_id])
    members.lend(2, 1)

    assert [[1, 2]] == members.offsets()
    assert {} == members.group.report().returned


def test_what_was_answered_and_is_lent_again_is_done() -> None:
    """Its report was on its way; nobody gets it again, whether it comes alone or among many."""
    members = Members(2)
    for lease in members.lend(1, 10):
        members.group.answer(lease)
    before = members.offsets()
    members.lend(1, 10)
    members.lend(1, 1)

    assert before == members.offsets()
    assert 10 == len(members.group.report().done)


def test_what_a_session_brings_along_and_has_here_is_not_done() -> None:
    """Its client has not answered it."""
    members = Members(1)
    members.lend(1, 1)
    members.group.own(LogPosition(PART, 1))
    members.group.check()

    assert not members.group.report().done


def places(*offsets: int) -> set[LogPosition]:
    return {LogPosition(PART, offset) for offset in offsets}


def test_a_run_is_shared_in_order() -> None:
    """As many each, none twice; what comes again has DUP."""
    members = Members(3)
    given = members.lend_run(1, 30), members.lend_run(31, 6, is_again=True)

    found = members.offsets()
    assert (30, 6) == given
    assert [12, 12, 12] == [len(one) for one in found]
    assert all(one == sorted(one) for one in found)
    assert list(range(1, 37)) == sorted(offset for one in found for offset in one)


def test_a_short_run_goes_in_turn() -> None:
    """Also to those who had none of the last ones; a member without room is passed over."""
    members = Members(3, inflight=3)
    for first in (1, 3):
        assert 2 == members.lend_run(first, 2)
    assert [[1, 4], [2], [3]] == members.offsets()
    assert [4, 1, 0] == [members.lend_run(first, 4) for first in (5, 9, 13)]
    assert [3, 3, 3] == [len(one) for one in members.offsets()]


def test_a_run_is_given_as_far_as_there_is_room() -> None:
    """The rest is for others; members without room for a run get nothing of it."""
    members = Members(2, inflight=4)
    assert 8 == members.lend_run(1, 12)
    assert 0 == members.lend_run(13, 6)
    assert 0 == Members(2, clean=False).lend_run(1, 6)
    assert 0 == Members(2, qos=0).lend_run(1, 6)


def test_a_run_that_is_known_is_looked_at_one_by_one() -> None:
    """Its members have it, have answered, or have left."""
    members = Members(2)
    assert 6 == members.lend_run(1, 6)
    assert 0 == members.lend_run(4, 6)
    members.group.answer_run(PART, [1, 2])
    assert 0 == members.lend_run(1, 4)
    members.group.report()
    assert 0 == members.lend_run(1, 4)
    members.group.give_back_run(PART, [3])
    assert 0 == members.lend_run(3, 6)


def test_answers_to_runs_are_reported_until_they_are_durable() -> None:
    """What members have is held, what they have answered is done, each once."""
    members = Members(2)
    members.lend_run(1, 6)
    members.group.answer_run(PART, [2, 1, 2, 99])
    first = members.group.report()
    again = members.group.first_report()
    members.group.confirm_report(again.request)
    members.group.give_back_run(PART, [5, 4, 1])
    last = members.group.first_report()

    assert places(1, 2) == set(first.done) == set(again.done)
    assert places(3, 4, 5, 6) == set(again.held)
    assert (places(3, 6), set()) == (set(last.held), set(last.done))


def test_messages_of_a_member_that_leaves_are_returned_in_order() -> None:
    members = Members(2)
    members.lend_run(1, 6)
    members.group.give_back_run(PART, [6, 5, 4])
    returned = members.group.report().returned

    assert [(LogPosition(PART, offset), True) for offset in (4, 5, 6)] == list(returned.items())
