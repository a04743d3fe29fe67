"""What of a chunk of a journal is a session's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.recorders import WatcherRecorder
from tests.support.stored import GivenRecords
from txbroker.core import StoredRecords
from txbroker.edge.sessions import matching_records
from txbroker.edge.sessions.matching_records import granted_qos, wanted
from txbroker.journal.store.record_format import encode_records
from txbroker.journal.zone_journal import JournalChunk, Record, Records
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.mqtt.session.cursor import Subscription
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.session.window import SessionLimits
from txbroker.mqtt.wire.message import Message

PART = JournalId("", 1)
TOPICS = ("a", "a/b", "a/b/c", "b", "b/b", "a/", "$a/b")
FILTERS = ("a", "a/b", "a/+", "a/#", "+/b", "+", "#", "+/#", "a/+/c", "$a/#", "b/b/b")


def session_with(*filters: str, starts: int = 0) -> Session:
    """Filters that began behind this offset."""
    limits, watcher = SessionLimits(), WatcherRecorder()
    session = Session("c", clean=False, limits=limits, watcher=watcher)
    for topic_filter in filters:
        session.subscriptions[topic_filter] = Subscription(
            topic_filter, 1 + len(topic_filter) % 2, starts={PART: starts}
        )
    return session


def chunk_of(*topics: str) -> JournalChunk:
    """Every second offset has a record, of QoS 1 and 2 in turn."""
    records = (
        Record(2 * at, Message(topic, b"", 1 + at % 2)) for at, topic in enumerate(topics, 1)
    )
    return JournalChunk(records=GivenRecords(records), through=2 * len(topics), first=1)


@given(
    st.lists(st.sampled_from(TOPICS), max_size=12),
    st.sets(st.sampled_from(FILTERS), max_size=4),
    st.integers(0, 26),
    st.integers(0, 26),
    st.integers(1, 4),
)
def test_session_gets_what_its_filters_match(
    topics: list[str], filters: set[str], offset: int, starts: int, at_once: int
) -> None:
    """Each record once and in order, just as if it was asked about every one of them."""
    session, chunk = session_with(*sorted(filters), starts=starts), chunk_of(*topics)
    every = [
        (
            one,
            min(
                granted_qos(session, LogPosition(PART, one.offset), one.message.topic),
                one.message.qos,
            ),
        )
        for one in chunk.records
    ]
    expected = [(record, qos) for record, qos in every if qos and record.offset > offset]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matching_records, "AT_ONCE", at_once)
        found = list(wanted(session, PART, chunk, offset))
    assert expected == [(chunk.records[place], qos) for place, *_, qos in found]
    assert [(one.offset, one.message.size) for one, _ in expected] == [
        (offset, size) for _, offset, size, _ in found
    ]


def test_session_is_not_asked_about_what_is_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many that come back at once would look at the backlogs of all, each of them."""
    asked: list[str] = []

    def noting(session: Session, place: LogPosition, topic: str) -> int:
        asked.append(topic)
        return granted_qos(session, place, topic)

    monkeypatch.setattr(matching_records, "granted_qos", noting)
    chunk = chunk_of(*(f"to/{number}" for number in range(500)))
    given_to = [list(wanted(session_with(f"to/{n}"), PART, chunk, 0)) for n in (7, 450)]

    assert [[16], [902]] == [[offset for _, offset, _, _ in found] for found in given_to]
    assert ["to/7", "to/450"] == asked


def test_what_nobody_gets_is_never_made() -> None:
    """What is made of a record takes many times its bytes; it is made once for all sessions."""
    body = encode_records([Message(f"to/{number}", b"", 1) for number in range(500)], {})
    stored = StoredRecords()
    stored.add(1, body, 500)
    chunk = JournalChunk(records=Records(stored), through=500, first=1)
    before = chunk.records.size

    assert 3 == len(list(wanted(session_with("to/7", "to/8", "to/9"), PART, chunk, 0)))
    assert before == chunk.records.size
    assert chunk.records[7] is chunk.records[7]
    assert before < chunk.records.size < before + 1000
