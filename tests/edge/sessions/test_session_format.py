"""Sessions as they are stored: what is in flight comes back as it was."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.support.edge_bench import EdgeBench
from txbroker.edge.sessions.window_format import decode_window, encode_numbered, encode_window
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.session.window import OutboundMessage
from txbroker.mqtt.wire.message import Message
from txbroker.v1 import state_pb2

PARTS = [JournalId("", 1), JournalId("", 2), JournalId("a", 1)]


def session_with(flows: dict[int, OutboundMessage]) -> Session:
    session = EdgeBench().edge.clients.new_session("c")
    session.restore(flows.items(), (), (), last_id=max(flows, default=0))
    return session


def shape(entry: OutboundMessage) -> tuple[object, ...]:
    return entry.place, entry.qos, entry.retain, entry.released, entry.number


entries = st.builds(
    OutboundMessage,
    st.just(Message("t", b"p", 2)),
    st.sampled_from([1, 2]),
    st.booleans(),
    st.builds(LogPosition, st.sampled_from(PARTS), st.integers(1, 1 << 62)),
    released=st.booleans(),
)
alike = st.integers(1, 1 << 40).map(
    lambda offset: OutboundMessage(Message("t", b"p", 1), 1, False, LogPosition(PARTS[0], offset))
)


@given(flows=st.dictionaries(st.integers(1, 65_535) | st.integers(1, 20), entries | alike))
def test_flows_come_back_in_order(flows: dict[int, OutboundMessage]) -> None:
    """Whatever is in flight, with any packet ids."""
    restored = decode_window(encode_window(session_with(flows)), session_with({}), lambda _: None)

    assert [(i, shape(entry)) for i, entry in flows.items()] == [
        (i, shape(entry)) for i, entry in restored.flows
    ]
    assert all(entry.is_sent and entry.message is None for _, entry in restored.flows)


def test_run_is_one_flow() -> None:
    """A window full of what was caught up with takes two bytes a message."""
    flows = {
        i: OutboundMessage(None, 1, False, LogPosition(PARTS[0], 1_000_000 + 3 * i))
        for i in range(1, 101)
    }
    value = encode_window(session_with(flows))

    assert 1 == len(state_pb2.StoredWindow.FromString(value).flows)
    assert len(value) < 200


def test_messages_that_no_journal_has_keep_their_properties() -> None:
    """In a session that moves to another node, and by number in a table."""
    properties = b"\x02\x00\x00\x00\x07\x26\x00\x01n\x00\x01v"
    message = Message("t", b"p", 1, properties=properties)
    session = session_with({7: OutboundMessage(message, 1, False)})

    moved = decode_window(encode_window(session, whole=True), session_with({}), lambda _: None)
    ((_, entry),) = moved.flows
    assert entry.message is not None
    assert (b"p", properties) == (entry.message.payload, entry.message.properties)

    stored = state_pb2.StoredFlow.FromString(encode_numbered(entry, 0.0, 0))
    assert (b"p", properties) == (stored.payload, stored.properties)


def test_messages_that_no_journal_has_age_over_a_restart() -> None:
    """While they wait before it, by the session's clock, and on the disk by that of messages."""
    message = Message("t", b"p", 1, properties=b"\x02\x00\x00\x00\x64")
    entry = OutboundMessage(message, 1, False, number=1)
    entry.begin_to_wait(1000.0)
    value = encode_numbered(entry, 1010.0, 5_000_000)
    window = state_pb2.StoredWindow(held_first=1, held=1).SerializeToString()

    for clock, left in ((5_000_000, 90), (35_500_000, 60), (200_000_000, 0), (1, 90)):
        restored = decode_window(window, session_with({}), {1: value}.get, clock)
        (found,) = restored.held
        assert found.message is not None and found.message.expiry == left
        session = session_with({})
        session.restore(restored.flows, restored.held, [], 0)
        (waiting,) = session.durable_sender.held()
        assert waiting.until is not None
