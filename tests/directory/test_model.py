"""
Random histories of a site: clients hop, links are cut, nodes are killed and come back.

What must hold in each of them (protocol rules 18 and 19): a session is at one node at a time; a
client never gets less than what was acknowledged to it; after everything is healed, the session is
there, at one node, whole.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, note, settings
from hypothesis import strategies as st

from tests.support.site import Connection, Site

NAMES = ("a", "b", "c", "d", "e")

node = st.integers(0, 4)
actions = st.one_of(
    st.tuples(st.just("connect"), node),
    st.tuples(st.just("connect"), node),
    st.tuples(st.just("connect"), node),
    st.tuples(st.just("add")),
    st.tuples(st.just("drop")),
    st.tuples(st.just("kill"), node, st.integers(0, 3)),
    st.tuples(st.just("start"), node),
    st.tuples(st.just("cut"), node, node, st.booleans()),
    st.tuples(st.just("isolate"), node),
    st.tuples(st.just("heal")),
    st.tuples(st.just("wait"), st.sampled_from([0.001, 0.01, 0.03, 0.2, 1.0, 4.0, 12.0])),
)


class History:
    """One client, and what was promised to it."""

    def __init__(self, count: int, seed: int, **keys: Any) -> None:
        self.site = Site(NAMES[:count], seed, **keys)
        self.is_fresh = keys.get("is_fresh", False)
        self.is_of_two = False
        self.nodes = list(self.site.nodes.values())
        self.acked: set[str] = set()
        self.was_cleaned = False
        self.was_accepted = False
        self.pieces = 0
        self.connection: Connection | None = None
        self.answers: list[tuple[float, str, bool | None, str | None]] = []

    def run(self, steps: list[tuple[Any, ...]], late: int = 0) -> None:
        self.site.start(max(1, len(self.nodes) - late))
        self.site.run(2.0)
        for name, *arguments in steps:
            note(f"{self.site.now:.3f} {name} {arguments}")
            getattr(self, name)(*arguments)
            self.look()
        self.heal()
        for one in self.nodes:
            if not one.is_up:
                one.start()

    def pick(self, number: int) -> Any:
        return self.nodes[number % len(self.nodes)]

    # what happens

    def connect(self, number: int) -> None:
        node = self.pick(number)
        if node.is_up:
            self.drop()
            self.connection = node.connect("x")

    def clean(self, number: int) -> None:
        """Whatever was kept ends; what is not told within seconds does not end anything later."""
        node = self.pick(number)
        if node.is_up:
            self.drop()
            self.connection = node.connect("x", clean=True)
            self.acked.clear()
            self.was_cleaned = True
            self.was_accepted = False
            self.wait(0.1)
            self.drop()
            self.wait(3.0)

    def add(self) -> None:
        if self.connection is not None:
            self.pieces += 1
            piece = f"p{self.pieces}"
            self.connection.add(piece, lambda: self.acked.add(piece))

    def drop(self) -> None:
        if self.connection is not None:
            self.look()
            self.connection.lost(is_will_due=True)
            self.connection = None

    def kill(self, number: int, survivors: int) -> None:
        if self.pick(number).is_up:
            self.pick(number).kill(survivors)

    def start(self, number: int) -> None:
        if not self.pick(number).is_up:
            self.pick(number).start()

    def cut(self, one: int, other: int, one_way: bool) -> None:
        self.site.cut(self.pick(one).name, self.pick(other).name, one_way=one_way)

    def isolate(self, number: int) -> None:
        self.site.isolate(self.pick(number).name)

    def heal(self) -> None:
        self.site.heal()

    def wait(self, seconds: float) -> None:
        until = self.site.now + seconds
        while self.site.now < until:
            self.site.run(min(0.02, until - self.site.now))
            self.look()

    # what is looked at

    def look(self) -> None:
        connection = self.connection
        if connection is None or connection.clean or not connection.is_answered:
            return
        answer = (self.site.now, connection.node.name, connection.present, connection.refused)
        if connection.present is not None and (not self.answers or self.answers[-1][0] < 0):
            self.answers.append(answer)
        if connection.present is not None:
            self.check(connection)
            self.was_accepted = True
            self.acked |= connection.content

    def check(self, connection: Connection) -> None:
        """Looked at more than once, so only what it had when it was opened counts."""
        if not hasattr(connection, "checked"):
            connection.checked = True  # type: ignore[attr-defined]
            if self.is_fresh or self.was_cleaned or self.is_of_two:
                return  # what is held where nobody is heard may be older
            assert connection.present or not self.was_accepted, "an empty session was given"
            lost = self.acked - connection.content
            assert not lost, f"lost: {lost}"


def holders(site: Site, client_id: str) -> list[str]:
    """Nodes that have the session, also those that are down."""
    return [
        name
        for name, one in site.nodes.items()
        if client_id.encode() in one.store.now.get("held", {})
    ]


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 5), st.integers(0, 3), st.integers(0, 2**32), st.lists(actions, max_size=40))
def test_a_session_is_one_and_whole(count: int, late: int, seed: int, steps: list[Any]) -> None:
    """With `roaming: refuse`; some nodes join while it goes on."""
    history = History(count, seed)

    def one_holder() -> None:
        assert len(holders(history.site, "x")) <= 1, holders(history.site, "x")

    # One of two may begin a session while the other is away; it is merged when they meet.
    history.is_of_two = count == 2 or (count == 1 and late > 0)
    if not history.is_of_two:
        history.site.watch = one_holder
    history.run(steps, late)
    history.site.run(15.0)
    for number in range(count):
        history.connect(number)
        connection = history.connection
        assert connection is not None
        history.site.run_until(lambda c=connection: c.is_answered, 10.0)  # type: ignore[misc]
        assert connection.refused is None
        history.look()
    assert [connection.node.name] == holders(history.site, "x")
    assert history.acked <= connection.content
