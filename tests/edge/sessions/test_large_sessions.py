"""Sessions with very many filters or open publishes: a commit costs by what changed of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.edge.sessions.test_catch_up_after_moves import bench_of, subscribed
from tests.support.edge_bench import Client, EdgeBench
from tests.support.keeping import CommitRecorder, MemoryTable
from txbroker.edge.sessions import session_store
from txbroker.edge.sessions.session_connect import PublishBarrier
from txbroker.edge.sessions.session_format import encode_subscriptions
from txbroker.edge.sessions.session_transfer import SessionTransfer
from txbroker.edge.sessions.window_format import encode_window
from txbroker.model.log_position import JournalId
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.wire.packets import Publish
from txbroker.v1 import state_pb2

NAME = "c"


def parts_of(session: Session) -> tuple[dict[str, bytes], dict[int, bytes]]:
    """What a session has many of, as it is kept."""
    window = state_pb2.StoredWindow.FromString(encode_window(session))
    publishes = {one.packet_id: one.SerializeToString() for one in window.publishes}
    return dict(encode_subscriptions(session.subscriptions.values())), publishes


def kept(bench: EdgeBench) -> dict[str, tuple[dict[str, bytes], dict[int, bytes]]]:
    """What a process would find that is started now."""
    after = bench.commit.crash().keeper(bench.clock)
    found = after.load(bench.edge.clients.new_session)
    return {session.client_id: parts_of(session) for session in found}


def publish(client: Client, packet_id: int) -> None:
    """A publish of QoS 2 which the client does not release."""
    packet = Publish(topic="t", payload=b"p", qos=2, packet_id=packet_id)
    client._edge.clients.publish(client.session, packet)


def fill(bench: EdgeBench, *, filters: int, publishes: int) -> Client:
    """A session with so many of each, kept."""
    client = Client(bench, NAME, clean=False)
    for number in range(filters):
        client.subscribe(f"f/{number}")
        bench.answer("", f"f/{number}")
    for packet_id in range(1, publishes + 1):
        publish(client, packet_id)
    bench.settle()
    for flow in list(client.session.open_publishes()):
        client.session.receiver.on_accepted(flow)
    bench.edge.session_store.checkpoint_now({})
    bench.settle()
    return client


def rows(commit: CommitRecorder) -> int:
    """How many rows there are of large sessions."""
    return len(commit.filters.values) + len(commit.publishes.values)


def sizes(commit: CommitRecorder) -> int:
    """Bytes of all that is kept of sessions."""
    tables = commit.sessions, commit.windows, commit.filters, commit.publishes
    return sum(len(k) + len(v) for table in tables for k, v in table.values.items())


class Written:
    """Counts the bytes that are put into the tables of sessions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, commit: CommitRecorder) -> None:
        self.size = 0
        for table in (commit.sessions, commit.windows, commit.filters, commit.publishes):
            monkeypatch.setattr(table, "put", self._counted(table))

    def _counted(self, table: MemoryTable) -> Any:
        put = table.put

        def counted(key: bytes, value: bytes) -> None:
            self.size += len(key) + len(value)
            put(key, value)

        return counted


def test_a_commit_costs_by_what_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a thousand filters and open publishes: one more of each, one less of each."""
    bench = bench_of()
    client = fill(bench, filters=1_000, publishes=1_000)
    written = Written(monkeypatch, bench.commit)

    client.subscribe("more")
    client.unsubscribe("f/7")
    publish(client, 2_000)
    (flow,) = (one for one in client.session.open_publishes() if one.packet_id == 2_000)
    client.session.receiver.on_accepted(flow)
    client.session.receiver.on_pubrel(7)
    bench.settle()

    assert 0 < written.size < sizes(bench.commit) // 20
    assert {NAME: parts_of(client.session)} == kept(bench)
    filters, publishes = parts_of(client.session)
    assert "more" in filters and "f/7" not in filters
    assert 2_000 in publishes and 7 not in publishes


@pytest.mark.parametrize("is_restarted", [False, True])
def test_what_changes_of_a_filter_that_stays_is_kept(is_restarted: bool) -> None:
    """Its QoS, and where it begins; also of a session that was read at a start."""
    bench = bench_of()
    fill(bench, filters=100, publishes=0)
    if is_restarted:
        bench = bench.restart()
    session = bench.edge.clients.sessions[NAME]

    session.subscriptions["f/5"].grant(2)
    session.subscriptions["f/6"].exclude(JournalId("", 1), 7)
    bench.edge.session_store.save_all(session)
    bench.settle()

    assert {NAME: parts_of(session)} == kept(bench)


def test_small_session_has_no_rows() -> None:
    """Most sessions: what they have stands in their own row, which takes less room."""
    bench = bench_of()
    fill(bench, filters=session_store.LARGE, publishes=session_store.LARGE)

    assert 0 == rows(bench.commit)


@pytest.mark.parametrize(("filters", "publishes"), [(100, 0), (0, 100), (100, 100)])
def test_one_that_was_kept_as_a_whole_is_read(
    monkeypatch: pytest.MonkeyPatch, filters: int, publishes: int
) -> None:
    """As an earlier version wrote it; with the next write it is one with rows."""
    bench = bench_of()
    with monkeypatch.context() as patch:
        patch.setattr(session_store, "LARGE", 1_000_000)
        client = fill(bench, filters=filters, publishes=publishes)
    assert 0 == rows(bench.commit)
    before = parts_of(client.session)
    after = bench.restart()
    session = after.edge.clients.sessions[NAME]
    assert before == parts_of(session)

    after.edge.session_store.save_all(session)
    after.settle()

    assert filters + publishes == rows(after.commit)
    assert {NAME: before} == kept(after)
    assert sizes(after.commit) < 2 * sizes(bench.commit) + 5_000  # none is kept twice


def test_what_is_left_of_a_session_that_ended_goes_bit_by_bit() -> None:
    """Its rows are nobody's at once, whoever has its client id then; also after a crash."""
    bench = bench_of()
    client = fill(bench, filters=200, publishes=200)
    steps: list[Iterator[None]] = []
    bench.edge.session_store.wire_slices(steps.append)
    bench.edge.clients.delete(NAME)
    successor = subscribed(bench, "its")
    assert 400 == rows(bench.commit)
    assert {NAME: parts_of(successor.session)} == kept(bench)
    assert client.session is not successor.session

    for work in steps:
        next(work)
    bench.commit.commit()
    assert 300 == rows(bench.commit)
    after = bench.restart()
    after.settle()
    assert 0 == rows(after.commit)
    assert {NAME: parts_of(successor.session)} == kept(after)


def test_numbers_are_not_given_twice() -> None:
    """After a restart, too: a new large session finds nothing of others."""
    bench = bench_of()
    client = fill(bench, filters=100, publishes=0)
    after = bench.restart()
    after.online("")
    other = Client(after, "other", clean=False)
    other.subscribe(*(f"o/{number}" for number in range(100)))
    after.edge.session_store.save_all(other.session)
    after.settle()

    found = kept(after)
    assert parts_of(client.session)[0] == found[NAME][0]
    assert {f"o/{number}" for number in range(100)} == found["other"][0].keys()


def test_moved_session_takes_its_rows_along_and_leaves_none() -> None:
    """It travels as a whole, and gets a number of the node that it comes to."""
    here, there = bench_of(), bench_of()
    client = fill(here, filters=100, publishes=100)
    other = Client(there, "other", clean=False)
    other.subscribe(*(f"o/{number}" for number in range(100)))
    there.edge.session_store.save_all(other.session)
    there.settle()
    before = parts_of(client.session)
    leaving = SessionTransfer(here.edge, PublishBarrier(), MemoryTable(), MemoryTable())
    coming = SessionTransfer(there.edge, PublishBarrier(), MemoryTable(), MemoryTable())
    state = leaving.freeze(NAME)
    assert state is not None
    coming.adopt(NAME, state, 2)
    leaving.release(NAME, b"token")
    here.settle()
    there.settle()

    assert 0 == rows(here.commit)
    found = kept(there)
    assert before[1] == found[NAME][1]
    assert before[0].keys() == found[NAME][0].keys()
    assert {f"o/{number}" for number in range(100)} == found["other"][0].keys()


number = st.integers(1, 6)
actions = st.one_of(
    st.tuples(st.sampled_from(["subscribe", "unsubscribe", "publish", "release", "taken"]), number),
    st.tuples(st.sampled_from(["subscribe", "publish", "taken"]), number),
    st.tuples(st.sampled_from(["leave", "end", "crash", "write", "sync"]), st.just(0)),
)


class Story:
    """One client id that has more than the patched limit, now and then."""

    def __init__(self) -> None:
        self.bench = bench_of()
        self.client: Client | None = None

    def here(self) -> Client:
        if self.client is None:
            self.client = Client(self.bench, NAME, clean=False)
        return self.client

    def subscribe(self, number: int) -> None:
        self.here().subscribe(f"f/{number}", qos=number % 2 + 1)
        self.bench.settle()

    def unsubscribe(self, number: int) -> None:
        self.here().unsubscribe(f"f/{number}")
        self.bench.settle()

    def publish(self, number: int) -> None:
        publish(self.here(), number)

    def release(self, number: int) -> None:
        self.here().session.receiver.on_pubrel(number)

    def taken(self, number: int) -> None:
        for flow in list(self.here().session.open_publishes()):
            if flow.packet_id == number:
                self.here().session.receiver.on_accepted(flow)

    def leave(self, _: int) -> None:
        if self.client is not None:
            self.client.leave()
            self.client = None

    def end(self, _: int) -> None:
        self.bench.edge.clients.delete(NAME)
        self.client = None

    def write(self, _: int) -> None:
        self.bench.commit.write()

    def sync(self, _: int) -> None:
        self.bench.commit.sync()

    def crash(self, _: int) -> None:
        self.bench = self.bench.restart()
        self.bench.online("")
        self.client = None

    def check(self) -> None:
        """All is written, and a start finds it."""
        for session in self.bench.edge.clients.sessions.values():
            self.bench.edge.session_store.save_all(session)  # else only when zones have confirmed
        self.bench.edge.session_store.checkpoint_now({})
        self.bench.settle()
        sessions = self.bench.edge.clients.sessions
        assert {name: parts_of(session) for name, session in sessions.items()} == kept(self.bench)
        if not sessions:
            assert 0 == rows(self.bench.commit)


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=st.lists(actions, max_size=40))
def test_whatever_happens_to_it_is_found_by_a_start(
    monkeypatch: pytest.MonkeyPatch, steps: list[tuple[str, int]]
) -> None:
    """In any order, with the process killed in between."""
    monkeypatch.setattr(session_store, "LARGE", 2)
    story = Story()
    for name, which in steps:
        getattr(story, name)(which)
    story.check()
