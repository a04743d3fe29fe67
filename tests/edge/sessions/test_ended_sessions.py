"""
Sessions that are over, and what comes for them late: nothing of it reaches the store.

Random orders of take-over, end, move, deletion and late answers, for one client id: after each
commit the store has the window of the session that there is, and of no other.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.edge.sessions.test_catch_up_after_moves import bench_of
from tests.support.edge_bench import Client
from tests.support.keeping import MemoryTable
from txbroker.edge.sessions.session_connect import PublishBarrier
from txbroker.edge.sessions.session_transfer import SessionTransfer
from txbroker.edge.sessions.window_format import encode_window
from txbroker.mqtt.session.inbound_publish import InboundPublish
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.wire.packets import Publish, Pubrec

NAME = "x"

which = st.integers(0, 7)
packet_id = st.integers(1, 3)
actions = st.one_of(
    st.tuples(st.just("connect"), st.booleans()),
    st.tuples(st.just("connect"), st.just(False)),
    st.tuples(st.just("leave"), which),
    st.tuples(st.just("delete")),
    st.tuples(st.just("move")),
    st.tuples(st.just("come_back")),
    st.tuples(st.just("publish"), packet_id),
    st.tuples(st.just("publish"), packet_id),
    st.tuples(st.just("taken"), which),
    st.tuples(st.just("taken"), which),
    st.tuples(st.just("release"), which, packet_id),
    st.tuples(st.just("acknowledge"), which, packet_id),
    st.tuples(st.just("deliver")),
    st.tuples(st.just("subscribe")),
    st.tuples(st.just("save"), which),
    st.tuples(st.just("commit")),
)


class Story:
    """One client id, all its sessions, and all that they sent."""

    def __init__(self) -> None:
        self.bench = bench_of()
        self.moving = SessionTransfer(
            self.bench.edge, PublishBarrier(), MemoryTable(), MemoryTable()
        )
        self.clients: list[Client] = []
        self.flows: list[tuple[Session, InboundPublish]] = []
        self.copy: bytes | None = None
        self.offset = 0

    @property
    def session(self) -> Session | None:
        return self.bench.edge.clients.sessions.get(NAME)

    # what happens

    def connect(self, clean: bool) -> None:
        self.clients.append(Client(self.bench, NAME, clean=clean))

    def leave(self, number: int) -> None:
        if self.clients:
            self.clients[number % len(self.clients)].leave()

    def delete(self) -> None:
        self.bench.edge.clients.delete(NAME)

    def move(self) -> None:
        copy = self.moving.freeze(NAME)
        if copy is not None:
            self.copy = copy
            self.moving.release(NAME, b"token")

    def come_back(self) -> None:
        if self.copy is not None and self.session is None:
            self.moving.adopt(NAME, self.copy, 2)

    def publish(self, packet_id: int) -> None:
        if self.clients and self.clients[-1].session.sink is self.clients[-1].sink:
            session = self.clients[-1].session
            packet = Publish(topic="t", payload=b"p", qos=2, packet_id=packet_id)
            self.bench.edge.clients.publish(session, packet)
            self.flows += [(session, flow) for flow in session.open_publishes()]

    def taken(self, number: int) -> None:
        if self.flows:
            session, flow = self.flows[number % len(self.flows)]
            session.receiver.on_accepted(flow)

    def release(self, number: int, packet_id: int) -> None:
        if self.clients:
            self.clients[number % len(self.clients)].session.receiver.on_pubrel(packet_id)

    def acknowledge(self, number: int, packet_id: int) -> None:
        if self.clients:
            self.clients[number % len(self.clients)].session.sender.on_pubacks((packet_id,))

    def deliver(self) -> None:
        self.offset += 1
        self.bench.deliver("", "t", "m", self.offset)

    def subscribe(self) -> None:
        if self.clients and self.clients[-1].session.sink is self.clients[-1].sink:
            self.clients[-1].subscribe("t")
            self.bench.settle()

    def save(self, number: int) -> None:
        """Whoever has a session at hand asks for all of it to be kept."""
        if self.clients:
            session = self.clients[number % len(self.clients)].session
            session_store = self.bench.edge.session_store
            if not session.clean:
                session_store.save(session, urgent=True)
                session_store.mark_seen(session)
                session_store.save_all(session)

    def commit(self) -> None:
        self.bench.edge.session_store.checkpoint_now({})
        self.bench.settle()

    # what must hold

    def check(self) -> None:
        self.commit()
        commit, session = self.bench.commit, self.session
        kept = None if session is None or session.clean else session
        windows, rows = commit.durable(commit.windows), commit.durable(commit.sessions)
        assert ({NAME.encode()} if kept is not None else set()) == set(rows)
        if kept is None:
            assert {} == windows
            assert {} == commit.durable(commit.messages)
        else:
            assert encode_window(kept) == windows.get(NAME.encode(), encode_window(kept))


@settings(max_examples=300, deadline=None)
@given(st.lists(actions, max_size=30))
def test_session_that_is_over_writes_nothing(steps: list[Any]) -> None:
    """Whoever asks, whenever, and whatever has taken its place."""
    story = Story()
    for name, *arguments in steps:
        getattr(story, name)(*arguments)
        story.check()


def test_publish_of_a_successor_is_not_taken_for_one_of_the_session_before() -> None:
    """The owner answers late: the successor's publish with that packet id is new, after a crash."""
    bench = bench_of()
    first = Client(bench, NAME, clean=False)
    first.publish_as(1, "t", "old", dup=False)
    first.subscribe("t")
    (flow,) = first.session.open_publishes()
    bench.edge.clients.delete(NAME)
    second = Client(bench, NAME, clean=False)
    first.session.receiver.on_accepted(flow)
    bench.edge.session_store.checkpoint_now({})
    bench.settle()
    second.leave()
    bench.settle()
    after = bench.restart()
    after.online("")
    again = Client(after, NAME, clean=False)
    after.take()
    again.publish_as(1, "t", "new", dup=False)
    after.settle()

    assert [("publish", "new")] == [event[1:] for event in after.take() if event[1] == "publish"]
    assert not any(isinstance(event, Pubrec) for event in again.events)
