"""Sessions that move: what their earlier nodes are told."""

from __future__ import annotations

import pytest

from tests.edge.test_catch_up import bench_of, everything, subscribed
from tests.support.edge_bench import Client, EdgeBench
from tests.support.roaming import MemoryTable
from txbroker.edge.chunks import RETRY
from txbroker.edge.moving import Moving
from txbroker.edge.roaming import Successions
from txbroker.message import Message
from txbroker.mqtt.incoming import Incoming
from txbroker.place import PartKey

A = PartKey("a", 1)

SENT = (("before", 1, "a", 5), 7)
"""As what the node that had the session before sent a publish."""


def moved_with_a_publish_in_doubt(bench: EdgeBench) -> Client:
    """A session that was at another node, which died over a QoS 2 publish; it is sent again."""
    client = Client(bench, "c", clean=False)
    flow = Incoming(packet_id=1, qos=2, origin=SENT, is_in_doubt=True)
    client.session.restore((), (), [flow], 0)
    client.publish("a/x", "1", qos=2)
    return client


def test_node_before_keeps_its_stream_until_the_outbox_has_asked_for_it() -> None:
    """The client was answered when the publish was in the outbox; what became of it is open."""
    bench = EdgeBench("a")
    moving = Moving(bench.edge, Successions(), MemoryTable())
    client = moved_with_a_publish_in_doubt(bench)

    def resolved() -> list[bool]:
        return [moving.is_resolved("c", node) for node in ("before", "other")]

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
    moving = Moving(bench.edge, Successions(), MemoryTable())
    client = Client(bench, "c", clean=False)
    for number in ("1", "2", "3"):
        client.publish("a/x", number, qos=1 + int(number) % 2)
    moving.freeze("c")
    moving.release("c")
    Client(bench, "other").publish("a/x", "other")
    bench.lose("a")
    open_zones = moving.remains("c").zones
    bench.take()
    owner = bench.online("a")
    ((keys, answered),) = owner.asked
    answered({**dict.fromkeys(keys, 1)})

    assert ("a",) == open_zones
    assert ["other"] == [event[2] for event in bench.take() if event[1] == "publish"]
    assert () == moving.remains("c").zones


def test_what_a_session_only_asked_about_here_is_not_put_down_when_it_has_left() -> None:
    """Its next node would never know that it is in an outbox here, and asks the owner itself."""
    bench = EdgeBench("a")
    moving = Moving(bench.edge, Successions(), MemoryTable())
    moved_with_a_publish_in_doubt(bench)
    before = moving.remains("c").zones
    moving.freeze("c")
    moving.release("c")
    bench.edge.publisher.on_unreachable(bench.route("a"))
    bench.settle()

    assert ("a",) == before
    assert ((), {}) == (moving.remains("c").zones, bench.edge.unpublished())


def test_what_became_of_a_publish_is_told_to_a_session_that_came_back_and_left_again() -> None:
    """It is one publish, however often the session comes by."""
    bench = bench_of("a")
    moving = Moving(bench.edge, Successions(), MemoryTable())
    client = Client(bench, "c", clean=False)
    client.publish("a/x", "1", qos=2)
    (flow,) = client.session.receiver.open()
    flow.origin = SENT[0], 1
    for _ in range(2):
        state = moving.freeze("c")
        assert state is not None
        moving.release("c")
        moving.adopt("c", state, 2)
    moving.freeze("c")
    moving.release("c")
    before = moving.remains("c")
    bench.edge.publisher.on_taken(bench.route("a"), 1)

    assert (("a",), ()) == (before.zones, before.taken)
    assert ((), (1,)) == (moving.remains("c").zones, moving.remains("c").taken)


@pytest.mark.parametrize("is_root_known", [True, False])
def test_session_that_moved_here_is_behind_until_its_filters_are_confirmed(
    is_root_known: bool,
) -> None:
    """What others here want brings the position on, over what only the new session wants."""
    old = bench_of("a")
    subscribed(old, "#").leave()
    state = Moving(old.edge, Successions(), MemoryTable()).freeze("c")
    assert state is not None
    bench = EdgeBench("a")
    if not is_root_known:
        bench.route("").cuts = None
    bench.online("a")
    other = subscribed(bench, "a/y", name="other", clean=True)
    for offset in (1, 2):
        bench.journals.add(A, offset, Message("a/x", b"%d" % offset, 1))
    Moving(bench.edge, Successions(), MemoryTable()).adopt("c", state, 2)
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
