"""Sessions that move: what their earlier nodes are told."""

from __future__ import annotations

import pytest

from tests.edge.sessions.test_catch_up_after_moves import bench_of, everything, subscribed
from tests.support.edge_bench import Client, EdgeBench, forget_cuts
from tests.support.keeping import MemoryTable
from txbroker.directory.directory_ports import PendingPublishes, PublishOrigin
from txbroker.edge.routing.edge_limits import EdgeLimits
from txbroker.edge.sessions.journal_read_cache import RETRY
from txbroker.edge.sessions.session_connect import PublishBarrier
from txbroker.edge.sessions.session_transfer import SessionTransfer
from txbroker.model.log_position import JournalId
from txbroker.mqtt.session.inbound_publish import InboundPublish, OriginId, checksum_of
from txbroker.mqtt.session.window import SessionLimits
from txbroker.mqtt.wire.message import Message

A = JournalId("a", 1)

SENT = (("before", 1, "a", 5), 7)
"""As what the node that had the session before sent a publish."""

FIRST = PublishOrigin.of((SENT[0], 1))
"""The first one of that stream."""


def moved_with_a_publish_in_doubt(bench: EdgeBench) -> Client:
    """A session that was at another node, which died over a QoS 2 publish; it is sent again."""
    client = Client(bench, "c", clean=False)
    flow = InboundPublish(packet_id=1, qos=2, owed=0, origin=SENT, is_in_doubt=True)
    client.session.restore((), (), [flow], 0)
    client.publish("a/x", "1", qos=2)
    return client


def test_time_away_at_the_node_before_counts() -> None:
    """A session that moves now and then, without its client, would never be too old."""
    bench = EdgeBench(limits=EdgeLimits(session=SessionLimits(), session_age=100.0))
    transfer = SessionTransfer(bench.edge, PublishBarrier(), MemoryTable(), MemoryTable())
    Client(bench, "c", clean=False).leave()
    bench.settle()
    state = transfer.freeze("c")
    transfer.release("c", b"token")
    bench.clock.advance(30.0)
    transfer.adopt("c", state, 2, 60.0)
    bench.clock.advance(39.0)
    bench.edge.clients.expire_sessions()
    before = set(bench.edge.clients.sessions)
    bench.clock.advance(2.0)
    bench.edge.clients.expire_sessions()

    assert ({"c"}, set()) == (before, set(bench.edge.clients.sessions))


def test_publishes_wait_for_no_node_before_once_the_directory_asks_none() -> None:
    bench = EdgeBench("a")
    barrier = PublishBarrier()
    transfer = SessionTransfer(bench.edge, barrier, MemoryTable(), MemoryTable())
    Client(bench, "c", clean=False)
    transfer.await_remains("c", "before", PendingPublishes(zones=("a",)))
    before = barrier.must_wait("c", "a/x")
    transfer.forget_remains("c")

    assert before and "c" not in barrier.held


def test_node_before_keeps_its_stream_until_the_outbox_has_asked_for_it() -> None:
    """The client was answered when the publish was in the outbox; what became of it is open."""
    bench = EdgeBench("a")
    transfer = SessionTransfer(bench.edge, PublishBarrier(), MemoryTable(), MemoryTable())
    client = moved_with_a_publish_in_doubt(bench)

    def resolved() -> list[bool]:
        return [transfer.is_resolved("c", node) for node in ("before", "other")]

    in_doubt = resolved()
    bench.edge.publisher.on_unreachable(bench.route("a"))
    bench.settle()
    (flow,) = client.session.receiver.open()
    in_outbox = flow.taken, resolved()
    owner = bench.online("a")
    bench.settle()
    ((keys, answered),) = owner.asked
    answered({**dict.fromkeys(keys, 0), SENT[0]: SENT[1]})
    bench.settle()

    assert [False, True] == in_doubt
    assert (True, [False, True]) == in_outbox
    assert SENT[0] in keys
    assert [True, True] == resolved()
    assert not any("drained" in event for event in bench.events)


def test_what_a_session_left_behind_is_not_sent_anew() -> None:
    """Its new node asks what became of it as it was sent here; only a link that is lost tells."""
    bench = bench_of("a")
    transfer = SessionTransfer(bench.edge, PublishBarrier(), MemoryTable(), MemoryTable())
    client = Client(bench, "c", clean=False)
    for number in ("1", "2", "3"):
        client.publish("a/x", number, qos=1 + int(number) % 2)
    transfer.freeze("c")
    transfer.release("c", b"token")
    Client(bench, "other").publish("a/x", "other")
    bench.lose("a")
    open_zones = transfer.pending_publishes("c").zones
    bench.take()
    owner = bench.online("a")
    ((keys, answered),) = owner.asked
    answered({**dict.fromkeys(keys, 1)})

    assert ("a",) == open_zones
    assert ["other"] == [event[2] for event in bench.take() if event[1] == "publish"]
    assert () == transfer.pending_publishes("c").zones


def test_what_a_session_only_asked_about_here_is_not_put_down_when_it_has_left() -> None:
    """Its next node would never know that it is in an outbox here, and asks the owner itself."""
    bench = EdgeBench("a")
    transfer = SessionTransfer(bench.edge, PublishBarrier(), MemoryTable(), MemoryTable())
    moved_with_a_publish_in_doubt(bench)
    before = transfer.pending_publishes("c").zones
    transfer.freeze("c")
    transfer.release("c", b"token")
    bench.edge.publisher.on_unreachable(bench.route("a"))
    bench.settle()

    assert ("a",) == before
    assert ((), {}) == (transfer.pending_publishes("c").zones, bench.edge.unpublished())


def test_what_became_of_a_publish_is_told_to_a_session_that_came_back_and_left_again() -> None:
    """It is one publish, however often the session comes by."""
    bench = bench_of("a")
    transfer = SessionTransfer(bench.edge, PublishBarrier(), MemoryTable(), MemoryTable())
    client = Client(bench, "c", clean=False)
    client.publish("a/x", "1", qos=2)
    (flow,) = client.session.receiver.open()
    flow.origin = SENT[0], 1
    for _ in range(2):
        state = transfer.freeze("c")
        assert state is not None
        transfer.release("c", b"token")
        transfer.adopt("c", state, 2)
    transfer.freeze("c")
    transfer.release("c", b"token")
    before = transfer.pending_publishes("c")
    bench.edge.publisher.on_accepted(bench.route("a"), 1)

    assert (("a",), ()) == (before.zones, before.taken)
    assert ((), (FIRST,)) == (
        transfer.pending_publishes("c").zones,
        transfer.pending_publishes("c").taken,
    )


def left_in_doubt() -> tuple[EdgeBench, SessionTransfer, InboundPublish]:
    """A session went, and nobody knows what became of its QoS 2 publish."""
    bench = bench_of("a")
    transfer = SessionTransfer(bench.edge, PublishBarrier(), bench.commit.left, MemoryTable())
    client = Client(bench, "c", clean=False)
    client.publish("a/x", "1", qos=2)
    (flow,) = client.session.receiver.open()
    flow.origin = SENT[0], 1
    bench.lose("a")
    transfer.freeze("c")
    transfer.release("c", b"token")
    bench.commit.commit()
    return bench, transfer, flow


def restarted(bench: EdgeBench, entries: set[OriginId]) -> tuple[EdgeBench, SessionTransfer]:
    """The node died, and these entries of outboxes were safe."""
    after = bench.restart()
    transfer = SessionTransfer(after.edge, PublishBarrier(), after.commit.left, MemoryTable())
    transfer.load(lambda entry: entry in entries)
    after.commit.commit()
    return after, transfer


def test_what_a_session_left_in_the_outbox_is_told_after_a_crash() -> None:
    """Otherwise the next node would ask the owner for what it was sent as first, in vain."""
    bench, transfer, flow = left_in_doubt()
    in_doubt = transfer.pending_publishes("c").taken
    bench.edge.publisher.on_unreachable(bench.route("a"))
    bench.settle()
    assert flow.entry is not None
    after, moved = restarted(bench, {flow.entry})
    told = moved.pending_publishes("c").taken, list(moved.keys())
    moved.resolved("c", b"token")
    after.commit.commit()
    _, later = restarted(after, {flow.entry})

    assert () == in_doubt
    assert ((FIRST,), [SENT[0]]) == told
    assert ((), []) == (later.pending_publishes("c").taken, list(later.keys()))


def test_what_did_not_get_to_the_outbox_is_told_by_no_start() -> None:
    """The note is safe before the entry; later, an outbox that is gone has nothing to say."""
    bench, transfer, flow = left_in_doubt()
    bench.edge.publisher.on_unreachable(bench.route("a"))
    bench.commit.write()
    bench.commit.sync()
    assert flow.entry is not None and not flow.taken
    after, first = restarted(bench, set())
    _, second = restarted(after, {flow.entry})

    assert ((), ()) == (first.pending_publishes("c").taken, second.pending_publishes("c").taken)
    assert [SENT[0]] == list(second.keys())


def test_what_became_of_a_publish_while_its_session_moves_is_told() -> None:
    """Its copy at the new node was made before."""
    bench = bench_of("a")
    transfer = SessionTransfer(bench.edge, PublishBarrier(), bench.commit.left, MemoryTable())
    client = Client(bench, "c", clean=False)
    client.publish("a/x", "1", qos=2)
    (flow,) = client.session.receiver.open()
    flow.origin = SENT[0], 1
    bench.lose("a")
    transfer.freeze("c")
    bench.edge.publisher.on_unreachable(bench.route("a"))
    bench.settle()
    transfer.release("c", b"token")
    bench.commit.commit()
    _, after = restarted(bench, set())

    assert (FIRST,) == transfer.pending_publishes("c").taken
    assert (FIRST,) == after.pending_publishes("c").taken
    assert [SENT[0]] == list(after.keys())


def test_answer_about_an_earlier_publish_answers_no_other_with_its_packet_identifier() -> None:
    """The session came back to where it had left the first one, and uses the identifier again."""
    bench = EdgeBench("a")
    transfer = SessionTransfer(bench.edge, PublishBarrier(), bench.commit.left, MemoryTable())
    client = moved_with_a_publish_in_doubt(bench)
    (flow,) = client.session.receiver.open()
    transfer.await_remains("c", "before", PendingPublishes(taken=(FIRST,)))
    before = flow.taken, client.got()
    transfer.await_remains("c", "before", PendingPublishes(taken=(PublishOrigin.of(SENT),)))

    assert (False, []) == before
    assert (True, ["Pubrec"]) == (flow.taken, client.got())


def test_answer_of_the_node_before_is_safe_in_the_turn_in_which_it_comes() -> None:
    """That node forgets what it was asked, once it is told that nobody has to know any more."""
    bench = EdgeBench("a")
    transfer = SessionTransfer(bench.edge, PublishBarrier(), bench.commit.left, MemoryTable())
    moved_with_a_publish_in_doubt(bench)
    transfer.await_remains("c", "before", PendingPublishes(taken=(PublishOrigin.of(SENT),)))
    bench.settle()
    (flow,) = bench.restart().edge.clients.sessions["c"].receiver.open()

    assert flow.taken


@pytest.mark.parametrize("is_root_known", [True, False])
def test_session_that_moved_here_is_behind_until_its_filters_are_confirmed(
    is_root_known: bool,
) -> None:
    """What others here want brings the position on, over what only the new session wants."""
    old = bench_of("a")
    subscribed(old, "#").leave()
    state = SessionTransfer(old.edge, PublishBarrier(), MemoryTable(), MemoryTable()).freeze("c")
    assert state is not None
    bench = EdgeBench("a")
    if not is_root_known:
        forget_cuts(bench.route(""))
    bench.online("a")
    other = subscribed(bench, "a/y", name="other", clean=True)
    for offset in (1, 2):
        bench.journals.add(A, offset, Message("a/x", b"%d" % offset, 1))
    SessionTransfer(bench.edge, PublishBarrier(), MemoryTable(), MemoryTable()).adopt("c", state, 2)
    client = Client(bench, "c", clean=False)
    bench.clock.advance(5.0)  # the zones that do not answer are not waited for any more
    before = everything(client)
    bench.deliver("a", "a/y", "3", 3)
    bench.journals.add(A, 4, Message("a/x", b"4", 1))
    bench.deliver("a", "a/y", "5", 5)
    bench.clock.advance(RETRY)
    bench.online("", "a")
    bench.answer("a", "#")
    bench.deliver("a", "a/x", "6", 6)

    assert ["3", "5"] == other.got()
    assert ["1", "2", "3", "4", "5", "6"] == before + everything(client)


# -- a session that takes in another: what its client had published there


def taken_in(bench: EdgeBench, *, is_taken: bool = True) -> None:
    """A session at another node, of the same client, has its publish 1 of QoS 2 open."""
    other = EdgeBench()
    checksum = checksum_of("a/x", b"1")
    flow = InboundPublish(
        packet_id=1, qos=2, taken=is_taken, owed=0, origin=SENT, checksum=checksum
    )
    Client(other, "c", clean=False).session.restore((), (), [flow], 0)
    state = SessionTransfer(other.edge, PublishBarrier(), MemoryTable(), MemoryTable()).freeze("c")
    assert state is not None
    SessionTransfer(bench.edge, PublishBarrier(), MemoryTable(), MemoryTable()).adopt("c", state, 2)
    bench.settle()
    bench.take()


def restarted_online(bench: EdgeBench) -> EdgeBench:
    """The process died, and its zones are here again."""
    after = bench.restart()
    after.online("", "a")
    after.online("a")
    return after


def told_and_published(bench: EdgeBench, client: Client) -> tuple[list[str], list[str]]:
    """What the client was answered, and its owner sent, since the last call."""
    answers = client.got()
    return answers, [event[2] for event in bench.take() if event[1] == "publish"]


@pytest.mark.parametrize("before", ["nothing", "a crash", "another release"])
def test_publish_that_was_open_in_the_session_taken_in_is_not_published_again(before: str) -> None:
    """A session began here, of which the client never heard: it goes on where it was before."""
    bench = bench_of("a")
    client = Client(bench, "c", clean=False)
    if before == "a crash":
        bench = restarted_online(bench)
    elif before == "another release":
        client.session.receiver.on_pubrel(9)
    taken_in(bench)
    client = Client(bench, "c", clean=False)
    bench.take()
    client.publish_as(1, "a/x", "1", dup=True)

    assert (["Pubrec"], []) == told_and_published(bench, client)


def test_publish_in_doubt_in_the_session_taken_in_is_asked_for() -> None:
    """Nobody knows what became of it but the owner, by what it was sent as first."""
    bench = EdgeBench("a")
    bench.online("", "a")
    owner = bench.online("a")
    Client(bench, "c", clean=False)
    taken_in(bench, is_taken=False)
    client = Client(bench, "c", clean=False)
    client.publish_as(1, "a/x", "1", dup=True)
    before = told_and_published(bench, client)
    ((keys, answered),) = owner.asked
    answered({SENT[0]: SENT[1]})

    assert ([], []) == before
    assert [SENT[0]] == keys
    assert (["Pubrec"], []) == told_and_published(bench, client)


@pytest.mark.parametrize("is_crash", [False, True])
@pytest.mark.parametrize(("payload", "dup"), [("another", False), ("another", True), ("1", False)])
def test_client_that_begins_anew_is_not_answered_for_what_it_published_elsewhere(
    payload: str, dup: bool, is_crash: bool
) -> None:
    """It was told that there is no session; what it says with that packet identifier is new."""
    bench = bench_of("a")
    client = Client(bench, "c", clean=False)
    taken_in(bench)
    if is_crash:
        bench = restarted_online(bench)
        client = Client(bench, "c", clean=False)
        bench.take()
    client.publish_as(1, "a/x", payload, dup=dup)
    first = told_and_published(bench, client)
    bench.edge.publisher.on_accepted(bench.route("a"), 1)

    assert ([], [payload]) == first
    assert (["Pubrec"], []) == told_and_published(bench, client)


@pytest.mark.parametrize(("payload", "is_repeat"), [("own", True), ("1", False), ("new", False)])
def test_session_that_takes_in_another_keeps_its_own_publishes(
    payload: str, is_repeat: bool
) -> None:
    """The client may have gone on elsewhere, and be done with what this one has open."""
    bench = bench_of("a")
    client = Client(bench, "c", clean=False)
    client.publish_as(1, "a/x", "own", dup=False)
    bench.edge.publisher.on_accepted(bench.route("a"), 1)
    first = told_and_published(bench, client)
    taken_in(bench)
    client = Client(bench, "c", clean=False)
    client.publish_as(1, "a/x", payload, dup=True)

    assert (["Pubrec"], ["own"]) == first
    expected = (["Pubrec"], []) if is_repeat else ([], [payload])
    assert expected == told_and_published(bench, client)


def test_publishes_of_the_session_taken_in_are_answered_in_turn() -> None:
    """Also where its client is connected, and repeats something on that connection already."""
    bench = bench_of("a")
    client = Client(bench, "c", clean=False)
    client.publish_as(5, "a/x", "5", dup=False)
    client.leave()
    client = Client(bench, "c", clean=False)
    client.publish_as(5, "a/x", "5", dup=True)
    taken_in(bench)
    client.publish_as(1, "a/x", "1", dup=True)
    before = told_and_published(bench, client)
    bench.edge.publisher.on_accepted(bench.route("a"), 1)
    client.session.receiver.on_pubrel(5)

    assert [] == before[0]
    assert ["Pubrec", "Pubrec", "Pubcomp"] == client.got()
