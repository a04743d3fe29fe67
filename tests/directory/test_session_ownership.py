"""Sessions that move: who has one after each step, and after each crash."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from tests.support.checking import checking
from tests.support.keeping import MemoryTable
from txbroker.directory.directory_ports import PendingPublishes
from txbroker.directory.entry import pack
from txbroker.directory.requests import (
    Busy,
    Left,
    MovedTo,
    NotHeld,
    NotReleased,
    Release,
    Released,
    Reply,
    Take,
    Taken,
)
from txbroker.directory.session_ownership import (
    FREEZE_LIMIT,
    LEFT_LIMIT,
    PATIENCE,
    OwnedSession,
    OwnershipTables,
    SessionOwnership,
)
from txbroker.directory.tombstone import Tombstone, tombstones_from, tombstones_record
from txbroker.model.machine_time import MachineTime

checked = checking(SessionOwnership)


class Host:
    """Sessions by client id, and what was done to them."""

    def __init__(self) -> None:
        self.sessions: dict[str, bytes] = {}
        self.events: list[Any] = []
        self.is_busy = False
        self.zones: tuple[str, ...] = ()
        self.is_asking = False
        self.awaited: dict[tuple[str, str], tuple[str, ...]] = {}

    def may_keep(self, client_id: str, beside: int) -> bool:
        return True

    def is_kept(self, client_id: str) -> bool:
        return client_id in self.sessions

    def close(self, client_id: str) -> None:
        self.events.append("close")

    def is_quiet(self, client_id: str) -> bool:
        return not self.is_busy

    def freeze(self, client_id: str) -> bytes | None:
        self.events.append("freeze")
        return self.sessions.get(client_id)

    def thaw(self, client_id: str) -> None:
        self.events.append("thaw")

    def adopt(self, client_id: str, state: bytes, incarnation: int, away: float = 0.0) -> None:
        self.events.append(("adopt", incarnation))
        self.sessions[client_id] = self.sessions.get(client_id, b"") + state

    def release(self, client_id: str, token: bytes) -> None:
        self.events.append("release")
        self.sessions.pop(client_id, None)

    def discard(self, client_id: str, *, is_moved: bool) -> None:
        self.events.append("discard")
        self.sessions.pop(client_id, None)

    def pending_publishes(self, client_id: str) -> PendingPublishes:
        return PendingPublishes(zones=self.zones)

    def await_remains(self, client_id: str, node: str, pending_publishes: PendingPublishes) -> None:
        self.events.append((node, pending_publishes.zones))
        self.awaited[client_id, node] = pending_publishes.zones

    def forget_remains(self, client_id: str) -> None:
        for key in [key for key in self.awaited if key[0] == client_id]:
            del self.awaited[key]


class Node:
    """One node through its lives; `tokens` are 1, 2, ..."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.host = Host()
        self.tables = [MemoryTable() for _ in range(3)]
        self.tokens = 0
        self.restart()

    def restart(self) -> None:
        held, gone, arriving = self.tables
        self.holdings = SessionOwnership(
            self.name,
            tables=OwnershipTables(held=held, gone=gone, arriving=arriving),
            host=self.host,  # type: ignore[arg-type]
            make_token=self.make_token,
        )
        self.holdings.start()

    def make_token(self) -> bytes:
        self.tokens += 1
        return b"%s%d" % (self.name.encode(), self.tokens)

    def begin(self, state: bytes = b"state", incarnation: int = 1) -> None:
        self.host.sessions["x"] = state
        self.holdings.store("x", OwnedSession(incarnation=incarnation))

    def take(self, by: str, now: float = 0.0, **fields: Any) -> Reply:
        return self.holdings.freeze(by, Take(client_id="x", incarnation=1, **fields), now)

    def taken(self, by: str, now: float = 0.0, **fields: Any) -> Taken:
        reply = self.take(by, now, **fields)
        assert isinstance(reply, Taken)
        return reply

    def release(self, by: str, taken: Taken) -> bool:
        reply = self.holdings.release(by, Release(client_id="x", token=taken.token))
        assert isinstance(reply, Released | NotReleased)
        return isinstance(reply, Released)

    @property
    def has_it(self) -> bool:
        return "x" in self.holdings.held


def move(source: Node, target: Node, now: float = 0.0) -> None:
    taken = source.taken(target.name, now)
    target.holdings.store_copy("x", source.name, taken)
    assert source.release(target.name, taken)
    target.holdings.adopt("x")


@pytest.fixture
def a() -> Node:
    node = Node("a")
    node.begin()
    return node


def test_a_session_moves(a: Node) -> None:
    """Copy, durable there, tombstone here, open there; the incarnation grows."""
    b = Node("b")
    a.host.zones = ("home",)
    taken = a.taken("b")
    assert (taken.incarnation, taken.state) == (2, b"state")
    assert ["close", "freeze"] == a.host.events
    b.holdings.store_copy("x", "a", taken)
    assert a.has_it and not b.has_it
    assert a.release("b", taken)
    assert not a.has_it and not a.host.sessions
    b.holdings.adopt("x")

    assert b.holdings.held["x"].incarnation == 2
    assert b.host.sessions == {"x": b"state"}
    assert [("adopt", 2), ("a", ("home",))] == b.host.events
    assert not b.holdings.arriving
    assert a.take("c") == MovedTo(node="b", incarnation=2)


def test_nobody_has_it() -> None:
    """Neither here nor gone; or the session itself is not there."""
    a = Node("a")
    assert a.take("b") == NotHeld()
    a.holdings.store("x", OwnedSession(incarnation=3))

    assert a.take("b") == NotHeld(incarnation=3)
    assert not a.has_it


def test_only_with_the_token_of_the_last_copy(a: Node) -> None:
    """And only the node that got it."""
    first, second = a.taken("b"), a.taken("b")

    assert not a.release("b", first)
    assert not a.release("c", second)
    assert a.release("b", second)


def test_the_same_answer_again(a: Node) -> None:
    """The first one may have been lost; a restart changes nothing."""
    taken = a.taken("b")
    for _ in range(2):
        assert a.release("b", taken)
        a.restart()
    assert not a.has_it


def test_a_crash_before_the_tombstone_leaves_it_here(a: Node) -> None:
    """The copy is worth nothing then."""
    taken = a.taken("b")
    a.restart()

    assert a.has_it
    assert not a.release("b", taken)


def test_a_copy_outlives_a_crash_of_the_taker(a: Node) -> None:
    """It asks again, and opens it."""
    b = Node("b")
    taken = a.taken("b")
    b.holdings.store_copy("x", "a", taken)
    b.restart()
    assert not b.has_it
    assert a.release("b", taken)
    b.restart()
    b.holdings.adopt("x")
    b.restart()

    assert b.has_it and not b.holdings.arriving


def test_a_void_copy_is_forgotten(a: Node) -> None:
    """For good."""
    b = Node("b")
    b.holdings.store_copy("x", "a", a.taken("b"))
    b.holdings.refuse("x")
    b.restart()

    assert not b.holdings.arriving


def test_who_does_not_come_for_it_loses_it(a: Node) -> None:
    """Another one gets it after a while, and the session goes on here in the end."""
    taken = a.taken("b", 0.0)
    assert a.take("c", PATIENCE - 0.1) == Busy()
    a.taken("c", PATIENCE)
    assert not a.release("b", taken)
    a.holdings.expire(PATIENCE + FREEZE_LIMIT - 0.1)
    assert a.holdings.frozen
    a.holdings.expire(PATIENCE + FREEZE_LIMIT)

    assert "thaw" in a.host.events
    assert a.has_it and not a.holdings.frozen


def test_the_client_that_is_here_again_takes_it_back(a: Node) -> None:
    """Its copies are void."""
    taken = a.taken("b")
    a.holdings.thaw("x")

    assert not a.release("b", taken)


def test_it_waits_until_all_can_be_said(a: Node) -> None:
    """The connection is closed by then, so that it comes to an end."""
    a.host.is_busy = True

    assert a.take("b") == Busy()
    assert ["close"] == a.host.events


def test_a_tombstone_outlives_a_new_session_until_its_taker_uses_the_copy(a: Node) -> None:
    """`roaming: fresh`: the taker may be away, and ask whether it was released."""
    taken = a.taken("b")
    assert a.release("b", taken)
    a.begin(b"fresh", 7)
    other = a.taken("c")
    assert a.release("c", other)
    assert a.release("b", taken)
    assert a.take("d") == MovedTo(node="c", incarnation=8)
    assert a.holdings.confirm("x", taken.token)
    assert not a.holdings.confirm("x", taken.token)
    a.holdings.forget_gone("x")
    a.restart()

    assert not a.release("b", taken)
    assert a.release("c", other)


def test_a_later_tombstone_wins_over_a_session_that_a_crash_left(a: Node) -> None:
    """What is written in one is read in one; if it were not, the tombstone counts."""
    taken = a.taken("b")
    assert a.release("b", taken)
    a.host.sessions["x"] = b"state"
    a.tables[0].put(b"x", Node("z").tables[0].values.get(b"x", _held(1)))
    a.restart()

    assert not a.has_it and not a.host.sessions


def _held(incarnation: int) -> bytes:
    node = Node("z")
    node.begin(incarnation=incarnation)
    return node.tables[0].values[b"x"]


def test_what_comes_to_a_session_is_taken_in(a: Node) -> None:
    """The greater incarnation, the sites not asked and the earlier holders of both; its CONNECT."""
    b = Node("b")
    b.begin(b"fresh,", 5)
    since = MachineTime("boot", 5)
    b.holdings.store("x", OwnedSession(incarnation=5, unasked=("far",), since=since))
    taken = a.taken("b", holds=5)
    assert taken.incarnation == 6
    b.holdings.store_copy("x", "a", taken)
    b.holdings.adopt("x")

    assert b.host.sessions == {"x": b"fresh,state"}
    owned = b.holdings.held["x"]
    assert (owned.incarnation, owned.unasked, owned.since) == (6, ("far",), since)
    assert ["a"] == [left.node for left in owned.left]


def test_earlier_holders_are_followed_until_they_are_done(a: Node) -> None:
    """By whoever has the session, over moves and restarts."""
    b, c = Node("b"), Node("c")
    a.host.zones = ("home",)
    move(a, b)
    move(b, c)
    c.restart()
    left = {left.node: left for _, left in c.holdings.earlier_holders()}
    assert {"a": ("home",), "b": ()} == {name: one.remains.zones for name, one in left.items()}
    c.holdings.on_pending_publishes("x", left["b"], PendingPublishes(), is_resolved=False)
    c.holdings.on_pending_publishes("x", left["b"], PendingPublishes(), is_resolved=True)
    c.holdings.on_pending_publishes(
        "x", left["a"], PendingPublishes(zones=("home/x",)), is_resolved=True
    )
    ((_, now),) = c.holdings.earlier_holders()
    assert now == Left(node="a", token=left["a"].token, remains=PendingPublishes(zones=("home/x",)))
    c.holdings.on_pending_publishes("x", left["a"], PendingPublishes(), is_resolved=True)
    assert [now] == [one for _, one in c.holdings.earlier_holders()]
    c.holdings.on_pending_publishes("x", now, PendingPublishes(), is_resolved=True)

    assert not list(c.holdings.earlier_holders())
    assert ("a", ()) == c.host.events[-1]


def test_session_that_leaves_waits_here_for_no_earlier_holder(a: Node) -> None:
    """The next holder hears of their end; back here, the client would wait for that for ever."""
    b, c = Node("b"), Node("c")
    a.host.zones = ("home",)
    move(a, b)
    before = dict(b.host.awaited)
    move(b, c)

    assert ({("x", "a"): ("home",)}, {}) == (before, b.host.awaited)
    assert c.host.awaited["x", "a"] == ("home",)


def test_session_that_waits_for_earlier_holders_forgets_those_beyond_the_limit(a: Node) -> None:
    """Nobody asks them any more."""
    b = Node("b")
    b.begin(incarnation=9)
    old = Left(node="old", token=b"old", remains=PendingPublishes(zones=("home",)))
    b.holdings.store("x", attrs.evolve(b.holdings.held["x"], left=(old,)))
    b.restart()
    before = dict(b.host.awaited)
    taken = a.taken("b", holds=9)
    later = tuple(attrs.evolve(old, token=b"%d" % n, node=f"n{n}") for n in range(LEFT_LIMIT))
    b.holdings.store_copy("x", "a", attrs.evolve(taken, left=later))
    b.holdings.adopt("x")

    assert before == {("x", "old"): ("home",)}
    assert b.host.awaited["x", "old"] == ()
    assert sum(map(bool, b.host.awaited.values())) == LEFT_LIMIT


def test_earlier_holder_is_needed_while_another_one_has_to_publish(a: Node) -> None:
    """That may be what the first one sent: both tell, and only then nobody asks for it any more."""
    b, c = Node("b"), Node("c")
    move(a, b)
    b.host.zones = ("home",)
    move(b, c)
    left = {left.node: left for _, left in c.holdings.earlier_holders()}
    before = {name: c.holdings.awaits_others("x", one) for name, one in left.items()}
    c.holdings.on_pending_publishes("x", left["b"], PendingPublishes(), is_resolved=False)
    after = {name: c.holdings.awaits_others("x", one) for name, one in left.items()}

    assert ({"a": True, "b": False}, {"a": False, "b": False}) == (before, after)


def test_what_an_earlier_holder_tells_of_a_session_on_its_way_is_for_the_next_one(a: Node) -> None:
    """The copy was made before; told that nobody needs it, the earlier holder would forget it."""
    b = Node("b")
    a.host.zones = ("home",)
    move(a, b)
    ((_, left),) = b.holdings.earlier_holders()
    taken = b.taken("c")
    on_its_way = list(b.holdings.earlier_holders())
    told = len(b.host.events)
    b.holdings.on_pending_publishes("x", left, PendingPublishes(), is_resolved=True)
    after = b.host.events[told:]
    b.holdings.thaw("x")

    assert ([], []) == (on_its_way, after)
    assert [("x", left)] == list(b.holdings.earlier_holders())
    assert ("a", ("home",)) == (taken.left[0].node, taken.left[0].remains.zones)


def test_so_many_earlier_holders_are_remembered() -> None:
    """The oldest is forgotten."""
    nodes = [Node(f"n{number}") for number in range(LEFT_LIMIT + 3)]
    nodes[0].begin()
    for number in range(len(nodes) - 1):
        move(nodes[number], nodes[number + 1])

    assert len(nodes[-1].holdings.held["x"].left) == LEFT_LIMIT


def test_a_tombstone_of_an_earlier_version() -> None:
    """It is as old as the first look at it."""
    record = pack([["b", b"token".hex(), 3, False]])

    (found,) = tombstones_from(record, 5)

    assert Tombstone(node="b", token=b"token", incarnation=3, since=5) == found
    assert (found,) == tombstones_from(tombstones_record((found,)), 9)


def test_a_session_of_an_earlier_version() -> None:
    """When its client connected is not known; what a later version notes is read as it was."""
    node = Node("b")
    node.tables[0].put(b"x", pack([3, ["far"], []]))
    node.host.sessions["x"] = b"state"
    node.restart()
    before = node.holdings.held["x"]
    node.holdings.store("x", attrs.evolve(before, since=MachineTime("boot", 5)))
    node.restart()

    assert OwnedSession(incarnation=3, unasked=("far",)) == before
    assert (
        OwnedSession(incarnation=3, unasked=("far",), since=MachineTime("boot", 5))
        == (node.holdings.held["x"])
    )


def test_beyond_the_limit_no_session_is_given_away(a: Node) -> None:
    """No tombstone goes for another: whoever asks is told to wait."""
    a.holdings._limit = 0
    assert isinstance(a.take("b"), Busy) and a.has_it

    a.holdings._limit = 1
    assert isinstance(a.take("b"), Taken)
