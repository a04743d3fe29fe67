"""
In the end each client id has at most one session: the last one.

Random histories of one client id: it begins, moves, is discarded and taken over at any nodes, in
any order, at any pace; messages are lost, delayed and doubled, nodes die and come back.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from tests.directory.test_model import holders
from tests.support.site import Connection, Node, Site
from txbroker.directory import discard_table
from txbroker.directory.requests import Discard, Discarded, Kept
from txbroker.directory.session_ownership import OwnedSession

NAMES = ("a", "b", "c", "d", "e")

node = st.integers(0, 4)
pause = st.sampled_from([0.0, 0.001, 0.01, 0.03, 0.05, 0.1, 0.3, 1.0, 4.0])
actions = st.one_of(
    st.tuples(st.just("kept"), node),
    st.tuples(st.just("kept"), node),
    st.tuples(st.just("clean"), node),
    st.tuples(st.just("clean"), node),
    st.tuples(st.just("answered")),
    st.tuples(st.just("answered")),
    st.tuples(st.just("drop")),
    st.tuples(st.just("wait"), pause),
    st.tuples(st.just("wait"), pause),
    st.tuples(st.just("kill"), node, st.integers(0, 3)),
    st.tuples(st.just("start"), node),
    st.tuples(st.just("cut"), node, node, st.booleans()),
    st.tuples(st.just("isolate"), node),
    st.tuples(st.just("heal")),
)

MILLISECOND = 0.001
WHOLE = 60.0
"""Seconds in which all is as it should be when the network is whole."""


class Story:
    """One client, whose connections begin one after the other."""

    def __init__(self, count: int, seed: int) -> None:
        self.site = Site(NAMES[:count], seed, roaming_wait=1.0)
        self.site.doubled = 0.1
        self.nodes: list[Node] = list(self.site.nodes.values())
        self.connection: Connection | None = None

    def run(self, steps: list[tuple[Any, ...]]) -> None:
        self.site.start(len(self.nodes))
        self.site.run(2.0)
        for name, *arguments in steps:
            note(f"{self.site.now:.3f} {name} {arguments}")
            getattr(self, name)(*arguments)
        self.drop()
        self.heal()
        for one in self.nodes:
            if not one.is_up:
                one.start()

    def pick(self, number: int) -> Node:
        return self.nodes[number % len(self.nodes)]

    def kept(self, number: int) -> None:
        if self.pick(number).is_up:
            self.leave()
            self.connection = self.pick(number).connect("x")

    def clean(self, number: int) -> None:
        if self.pick(number).is_up:
            self.leave()
            self.connection = self.pick(number).connect("x", clean=True)

    def answered(self) -> None:
        """The client waits for its CONNACK, or for the end of its connection."""
        connection = self.connection
        if connection is not None and connection.node.is_up:
            self.site.run_until(lambda: connection.is_answered, 10.0)

    def leave(self) -> None:
        """A client connects once in a millisecond: nodes apart cannot tell which of two is last."""
        self.drop()
        self.wait(2 * MILLISECOND)

    def drop(self) -> None:
        if self.connection is not None:
            self.connection.lost(is_will_due=False)

    def wait(self, seconds: float) -> None:
        self.site.run(seconds)

    def kill(self, number: int, survivors: int) -> None:
        one = self.pick(number)
        if one.is_up:
            one.kill(survivors)
            if self.connection is not None and self.connection.node is one:
                self.connection.is_open = False

    def start(self, number: int) -> None:
        if not self.pick(number).is_up:
            self.pick(number).start()

    def cut(self, one: int, other: int, one_way: bool) -> None:
        self.site.cut(self.pick(one).name, self.pick(other).name, one_way=one_way)

    def isolate(self, number: int) -> None:
        self.site.isolate(self.pick(number).name)

    def heal(self) -> None:
        self.site.heal()


def left_at_1(count: int, seed: int) -> Story:
    """A kept session at node 1, whose client has left."""
    story = Story(count, seed)
    story.run([])
    story.site.run(5.0)
    story.kept(1)
    story.answered()
    story.drop()
    return story


def check(story: Story) -> None:
    """When the network has been whole for a while."""
    story.site.run(WHOLE)
    last, held = story.connection, holders(story.site, "x")
    assert len(held) <= 1, held
    if last is None or last.present is None:
        return
    if not last.clean:
        assert held, "the session that was promised last is gone"
    else:
        assert not held, "a session that was discarded stays"
    for one in story.nodes:
        assert one.host.kept.keys() <= {"x"} if held == [one.name] else not one.host.kept


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 5), st.integers(0, 2**32), st.lists(actions, max_size=30))
def test_last_one_stays_and_no_other(count: int, seed: int, steps: list[Any]) -> None:
    """Within a minute."""
    story = Story(count, seed)
    story.run(steps)
    check(story)


@pytest.mark.parametrize("gap", [0.0, 0.02, 0.05, 0.1, 0.3])
@pytest.mark.parametrize("seed", range(12))
def test_discard_elsewhere_at_once(seed: int, gap: float) -> None:
    """It is done before CONNACK, after a move as well, and the old connection is closed."""
    story = Story(3 if seed % 2 else 5, seed)
    story.run([])
    story.site.run(5.0)
    for number in range(1 + seed % 3):
        story.kept(number)
        story.answered()
        story.wait(gap)
    before = story.connection
    if seed % 4:
        story.drop()
    story.connection = None
    story.clean(3)
    story.answered()

    assert story.connection is not None and story.connection.present is False
    assert [] == holders(story.site, "x")
    assert before is not None and not before.is_open
    story.drop()
    check(story)


@pytest.mark.parametrize("gap", [0.0, 0.02, 0.05, 0.1, 0.3])
@pytest.mark.parametrize("seed", range(12))
def test_connection_elsewhere_is_closed_before_connack(seed: int, gap: float) -> None:
    """Of clean sessions, too, and of many in a row."""
    story = Story(3 if seed % 2 else 5, seed)
    story.run([])
    story.site.run(5.0)
    earlier: list[Connection] = []
    for number in (0, 1, 2, 0, 2, 1):
        story.connection = None
        story.clean(number)
        story.answered()
        assert story.connection is not None and story.connection.present is False
        assert not any(one.is_open for one in earlier)
        earlier.append(story.connection)
        story.wait(gap)


def test_discard_that_cannot_be_asked_for_is_done_later() -> None:
    """CONNACK comes after `roaming_wait`; a session that began since stays."""
    for is_newer in (False, True):
        story = left_at_1(5, 3)
        story.wait(1.0)
        story.isolate(2)
        story.wait(3.0)
        began = story.site.now
        story.clean(2)
        story.answered()
        assert story.connection is not None and story.connection.present is False
        assert 0.9 <= story.site.now - began <= 2.2, "the wait, and an answer that does not come"
        story.drop()
        if is_newer:
            story.kept(3)
            story.answered()
            story.drop()
        story.heal()
        check(story)


def test_what_is_to_be_discarded_outlives_a_crash() -> None:
    """As far as it was known which incarnation it was."""
    story = left_at_1(3, 5)
    story.wait(2.0)
    story.kill(1, 3)
    story.clean(2)
    story.answered()
    story.drop()
    assert story.nodes[2].directory.clearings.is_due("x")
    story.kill(2, 3)
    story.start(2)
    story.wait(1.0)
    story.start(1)
    story.site.run(WHOLE)

    assert [] == holders(story.site, "x")


def parted() -> Story:
    """A session at node 1, which is cut off, and known by now to be."""
    story = left_at_1(5, 3)
    story.wait(1.0)
    story.isolate(1)
    story.wait(3.0)
    return story


def test_discard_by_a_node_that_died_since_ends_what_was_used_before_it() -> None:
    """However often the session was used where nobody heard of it: how old the discard is lasts."""
    story = parted()
    story.nodes[1].directory.ownership.store("x", OwnedSession(incarnation=9))
    story.kept(1)
    story.answered()
    story.drop()
    story.wait(1.0)
    story.clean(2)
    story.answered()
    story.drop()
    story.kill(2, 3)
    story.start(2)
    story.heal()
    check(story)


def test_discard_outlives_what_keepers_know_of_the_holder() -> None:
    """For them the clean session counts above the kept one, and both are nowhere when it ends."""
    story = parted()
    story.clean(2)
    story.answered()
    story.drop()
    story.wait(30.0)
    assert story.nodes[2].directory.clearings.is_due("x")
    story.kill(2, 3)
    story.start(2)
    story.wait(30.0)
    assert story.nodes[2].directory.clearings.is_due("x")
    story.heal()
    check(story)


def test_second_clean_session_forgets_no_holder_of_the_first() -> None:
    """The keepers name nobody then, so the second one finds nothing: the first knew the holder."""
    story = parted()
    for _ in range(2):
        story.clean(2)
        story.answered()
        story.drop()
        story.wait(30.0)
    assert story.nodes[2].directory.clearings.is_due("x")
    story.heal()
    check(story)


def test_discards_beyond_the_limit_push_out_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which ids clients say is theirs to choose."""
    monkeypatch.setattr(discard_table, "LIMIT", 2)
    story = left_at_1(5, 3)
    for client_id in ("y", "z"):
        story.connection = story.nodes[1].connect(client_id)
        story.answered()
        story.drop()
    story.wait(1.0)
    story.isolate(1)
    story.wait(3.0)
    node = story.nodes[2]
    for client_id in ("x", "y", "z"):
        story.connection = node.connect(client_id, clean=True)
        story.answered()
        story.drop()

    assert [False, True, True] == [node.directory.clearings.is_due(c) for c in ("x", "y", "z")]
    assert 2 == len(node.directory.clearings)


def test_copy_on_its_way_is_not_opened_behind_a_clean_session() -> None:
    """Its holder gave it up, and told nobody: nor when the node that has it dies meanwhile."""
    for is_killed in (False, True):
        story = left_at_1(3, 3)
        story.wait(1.0)
        story.kept(2)
        taker = story.nodes[2].directory
        story.site.run_until(lambda: "x" in taker.ownership.arriving)  # noqa: B023
        story.site.run_until(lambda: story.nodes[1].directory.ownership.tombstone("x") is not None)  # noqa: B023
        story.isolate(1)
        story.wait(1.0)
        assert story.connection is not None and not story.connection.present
        story.clean(2)
        story.answered()
        assert story.connection.present is False
        story.drop()
        if is_killed:
            story.kill(2, 3)
            story.start(2)
        story.heal()
        check(story)


def test_session_that_its_client_used_since_is_kept() -> None:
    """Long ago as well, when nobody remembers when the client connected."""
    story = parted()
    began = story.site.now
    story.kept(1)
    story.answered()
    story.wait(1.0)
    story.drop()
    story.wait(100.0)
    holder = story.nodes[1].directory
    through = holder.ownership.held["x"].incarnation
    for clean, reply in ((began - 1.0, Kept), (began + 2.0, Discarded)):
        age = int((story.site.now - clean) * 1000)
        request = Discard(client_id="x", incarnation=through, through=through, age=age)
        assert isinstance(holder.clearings.answers.discard("c", request), reply)


def test_nobody_is_asked_by_a_node_that_is_alone() -> None:
    """CONNACK in the turn of CONNECT."""
    story = Story(1, 1)
    story.run([])
    story.kept(0)
    story.answered()
    calls = len(story.site.calls)
    story.clean(0)

    assert not story.nodes[0].directory.clearings.is_needed("x")
    assert calls == len(story.site.calls)
    story.answered()
    assert [] == holders(story.site, "x")
