"""The answering side of links: whose token holds."""

from __future__ import annotations

import contextlib
import gc
import weakref
from types import SimpleNamespace
from typing import Any, cast

import pytest
from twisted.internet.task import Clock

from tests.support.journal import authority_of
from txbroker.delegation.delegation_table import DelegationTable
from txbroker.link.frames import LinkError, encode_frame
from txbroker.link.hello import LARGEST_HEAD, HelloHead, head_of
from txbroker.link.listener import LinkListener
from txbroker.link.silent_connections import MOST_SILENT, SilentConnections
from txbroker.link.tokens import TOKEN_LIFE, EdgeLife
from txbroker.model.counters import Counters
from txbroker.model.epoch_transition import EpochTransition
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.runtime.backpressure import Backpressure
from txbroker.runtime.connection_parts import ConnectionParts
from txbroker.runtime.flush_queue import FlushQueue
from txbroker.runtime.unauthenticated import MOST_HALVES, HalfPackets, Unauthenticated
from txbroker.v1 import link_pb2

NOBODY = EdgeLife(identity="", life="", grpc="")


class Connection:
    """One that keeps why it was dropped; `awaited`: the bytes that it holds."""

    peer = "somewhere"
    awaited = 1_000

    def __init__(self) -> None:
        self.dropped: list[str] = []

    def drop(self, reason: str) -> None:
        self.dropped.append(reason)

    def push_out(self) -> str:
        self.dropped.append("pushed out")
        return self.peer


class Bench:
    """A listener whose disk has room; time stands still."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.table = DelegationTable("")
        authority, _ = authority_of("", self.table)
        authority.open(1)
        timers = SimpleNamespace(now=self.clock.seconds, call_later=self.clock.callLater)
        self.counters = counters = Counters()
        parts = ConnectionParts(
            clock=cast(Any, self.clock),
            flush_queue=FlushQueue(lambda _: None),
            counters=counters,
            backpressure=Backpressure(cast(Any, timers)),
            shares=cast(Any, None),
            unauthenticated=Unauthenticated(counters),
            halves=cast(Any, None),
        )
        self.links = LinkListener(
            parts,
            authority=authority,
            groups=cast(Any, None),
            watermark=cast(Any, SimpleNamespace(is_short=False, when_changed=lambda _: None)),
            max_links=10,
        )

    def token(self, edge: str = "e", incarnation: int = 1) -> bytes:
        """One for the first life of an edge."""
        token = self.links.issue(edge, incarnation, NOBODY)
        assert token is not None
        return token

    def redeem(self, token: bytes, edge: str = "e", incarnation: int = 1) -> bool:
        """True if a Hello with it is let in."""
        try:
            head = HelloHead(token=token, edge=edge, incarnation=incarnation)
            self.links.show(Connection(), "host", head)
        except LinkError:
            return False
        return self.links.redeem(token, edge, incarnation) is not None


def test_token_holds_once_for_whom_it_was_given_to() -> None:
    """And for some seconds only."""
    bench = Bench()
    token, late = bench.token(), bench.token("late")
    tries = [("f", 1), ("e", 2), ("e", 1), ("e", 1)]
    found = [bench.redeem(token, *one) for one in tries]
    bench.clock.advance(TOKEN_LIFE + 1)

    assert [False, False, True, False] == found
    assert not bench.redeem(late, "late")


def test_unused_tokens_keep_nobody_out() -> None:
    """The oldest makes room, an edge's next token ends its last one."""
    bench = Bench()
    for number in range(5_000):
        bench.token(f"invented-{number}")
    first, second = bench.token(), bench.token()

    assert len(bench.links._tokens) <= bench.links.max_links
    assert [False, True] == [bench.redeem(one) for one in (first, second)]
    assert bench.counters.get("link.pushed_out") >= 4_990


def test_token_does_not_outlive_what_was_told_with_it() -> None:
    """
    A zone went out, or came back, between the answer and the Hello: the edge is in no stream yet
    that says so, and its sessions would never read the part in between.
    """
    bench = Bench()
    root, child = LogPosition(JournalId("", 1), 5), LogPosition(JournalId("z", 7), 0)
    before = bench.token("1")
    bench.table.record_transition(EpochTransition(apex="z", left=root, entered=child))
    between = bench.token("2")
    bench.table.record_transition(EpochTransition(apex="z", left=child, entered=root))
    after = bench.token("3")

    found = [bench.redeem(one, str(n)) for n, one in enumerate((before, between, after), 1)]
    assert [False, False, True] == found


def test_silent_connections_make_room_for_the_next() -> None:
    """Those of the address that has most of them, the oldest first."""
    silent, lonely = SilentConnections(), Connection()
    assert silent.add(lonely, "lonely") is None
    crowd = [Connection() for _ in range(MOST_SILENT)]
    pushed = [silent.add(one, "crowd") for one in crowd]

    assert [None] * (MOST_SILENT - 1) + [crowd[0]] == pushed
    assert MOST_SILENT == len(silent)


def test_strangers_hold_so_much_together() -> None:
    """Beyond it the oldest is closed, and nobody whose bytes are let go of."""
    counters, (a, b, c) = Counters(), (Connection() for _ in range(3))
    unauthenticated = Unauthenticated(counters, 100)
    for one, size in ((a, 40), (b, 40), (a, 60), (c, 40)):
        unauthenticated.hold(one, size)
    assert ["pushed out"] == a.dropped
    unauthenticated.forget(b)
    unauthenticated.hold(c, 100)

    assert (100, [], []) == (unauthenticated.held, b.dropped, c.dropped)
    assert 1 == counters.get("unauthenticated.over_limit")


def test_who_holds_less_by_now_stays() -> None:
    """The core forwards the rest of a packet without a word; who waits for it is closed."""
    counters, (a, b, c, d) = Counters(), (Connection() for _ in range(4))
    halves = Unauthenticated(counters, 100)
    halves.hold(a, 40)
    halves.hold(b, 40)
    a.awaited, b.awaited = 0, 10
    halves.hold(c, 40)
    halves.hold(d, 60)

    assert (70, [], []) == (halves.held, a.dropped, b.dropped)
    assert (["pushed out"], []) == (c.dropped, d.dropped)


def test_halves_have_room_for_two_of_the_largest() -> None:
    """Else nobody could send a packet of a size that is allowed."""
    assert MOST_HALVES == HalfPackets(Counters(), 1_000).most
    assert 2 * MOST_HALVES == HalfPackets(Counters(), MOST_HALVES).most


def hello(**fields: Any) -> bytes:
    """A Hello on the wire."""
    right: dict[str, Any] = {"version": 2, "token": b"t" * 16, "edge": "e", "incarnation": 300}
    return encode_frame(link_pb2.LinkFrame(hello=link_pb2.Hello(**{**right, **fields})))


HEAD = HelloHead(token=b"t" * 16, edge="e", incarnation=300)


def test_head_of_a_short_hello() -> None:
    """It is judged when it is whole."""
    data = hello(zone="z")
    assert [None] * len(data) == [head_of(data[:size]) for size in range(len(data))]
    assert HEAD == head_of(data)


def test_head_of_a_long_hello() -> None:
    """It is judged when a small part of it is there."""
    data = hello(zone="z" * 90, filters=[f"some/filter/{n}" for n in range(10_000)])
    assert head_of(data[: LARGEST_HEAD - 1]) is None
    for size in (LARGEST_HEAD, LARGEST_HEAD + 1, len(data)):
        assert HEAD == head_of(data[:size])


@pytest.mark.parametrize(
    "data",
    [
        b"\x30",
        b"\x00\xff\xff\xff\xff\x7f",
        b"\x00\xff\xff\xff\x7f" + b"\xff" * LARGEST_HEAD,
        b"\x00\x05\xff\xff\xff\xff\xff",
        b"\x00\xff\xff\x7f\x0a" + b"\xff" * LARGEST_HEAD,
    ],
)
def test_bytes_that_begin_no_link(data: bytes) -> None:
    """They are refused before they are whole."""
    with pytest.raises(LinkError):
        head_of(data)


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\xff\xff\x7f" + b"\x00" * LARGEST_HEAD,
        hello(token=b"t" * 10_000)[:LARGEST_HEAD],
        hello(token=b"", edge="e" * 10_000)[:LARGEST_HEAD],
        encode_frame(link_pb2.LinkFrame(heartbeat=link_pb2.Heartbeat())),
    ],
)
def test_head_without_a_token(data: bytes) -> None:
    """It is refused, or has none that anybody was given."""
    with contextlib.suppress(LinkError):
        head = head_of(data)
        assert head is not None and len(head.token) != len(HEAD.token)


class _Transport:
    """Of a connection that can only be dropped."""

    def setTcpNoDelay(self, enabled: bool) -> None: ...

    def abortConnection(self) -> None: ...


def test_nothing_of_a_connection_that_was_refused_stays() -> None:
    """Each of very many had left its bytes for the collector, which comes late."""
    bench = Bench()
    bench.links._flush_queue = cast(Any, SimpleNamespace(end=lambda: None))
    gc.collect()
    gc.disable()
    try:
        connection = bench.links.buildProtocol(None)
        assert connection is not None
        connection.makeConnection(cast(Any, _Transport()))
        connection.dataReceived(bytes(range(1, 256)) * 256)
        connection.connectionLost()
        gone = weakref.ref(connection)
        del connection

        assert bench.counters.get("link.refused") == 1
        assert gone() is None
    finally:
        gc.enable()
