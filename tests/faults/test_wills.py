"""The rule of wills: what is due must come, what is not must not."""

from __future__ import annotations

import itertools

import attrs
import pytest

from .events import (
    Calm,
    Connected,
    Connecting,
    Delivered,
    Disconnected,
    Down,
    Event,
    Faulted,
    Ruined,
    Subscribed,
    SubscribeSent,
)
from .history import check
from .wills import GRACE

TOPIC, PUBLISHER = "a/will-pub", "will-of-pub"
FILTERS = ((TOPIC, 2),)


class Story:
    """A subscriber, connection 1 at node `b`, and a client with wills at node `a`."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._packet_ids = itertools.count(1)
        about = {"client": "sub", "connection": 1}
        self.add(Connecting, **about, node="b")
        self.add(Connected, **about, code=0, session_present=False)
        self.add(SubscribeSent, **about, filters=FILTERS)
        self.add(Subscribed, **about, filters=FILTERS)
        self.add(Calm)

    def add(self, kind: type[Event], /, **fields: object) -> Story:
        self.events.append(kind(at=10.0 * len(self.events), **fields))
        return self

    def connect(self, connection: int, *, present: bool = False) -> Story:
        about = {"client": "pub", "connection": connection}
        self.add(Connecting, **about, node="a", will=TOPIC, will_qos=2)
        return self.add(Connected, **about, code=0, session_present=present)

    def end(self, connection: int, why: str = "left: abort") -> Story:
        return self.add(Disconnected, client="pub", connection=connection, why=why)

    def will(self, connection: int) -> Story:
        about = {"client": "sub", "connection": 1, "packet_id": next(self._packet_ids)}
        origin = {"publisher": PUBLISHER, "number": connection}
        return self.add(Delivered, **about, **origin, topic=TOPIC, qos=2)

    def fault(self, what: str) -> Story:
        return self.add(Faulted, what=f"  1.00 {what}")

    def down(self, node: str) -> Story:
        return self.add(Down, node=node)

    def broken(self) -> list[str]:
        return [violation.rule for violation in check(self.events)]


def test_will_of_connection_that_was_lost_comes() -> None:
    """Before the calm, and once."""
    story = Story().fault("roam pub b abort").connect(2).end(2)

    assert [] == story.will(2).add(Calm).broken()
    assert ["duplicate"] == story.will(2).broken()


def test_will_that_does_not_come_is_missed() -> None:
    """In the calm after the connection's end."""
    assert ["will"] == Story().fault("roam pub b abort").connect(2).end(2).add(Calm).broken()


@pytest.mark.parametrize("is_ended_first", [True, False])
def test_will_at_node_that_died_is_not_due(is_ended_first: bool) -> None:
    """Its client may be back before it; the will may come all the same."""
    story = Story().connect(2).fault("kill a")
    if is_ended_first:
        story.end(2).down("a")
    else:
        story.down("a").end(2)

    assert [] == story.add(Calm).will(2).broken()


def test_node_is_dead_until_its_process_has_started() -> None:
    """A step that takes long ends it only after the time at which it was to be started."""
    story = Story().fault("start a").connect(2).fault("broken-join a a 0.02").end(2).down("a")

    assert [] == story.add(Calm).broken()


@pytest.mark.parametrize("fault", ["retire a", "broken-join c a 0.01", "restore a", "kill a"])
def test_will_at_node_that_lives_on_is_due(fault: str) -> None:
    """Whatever was tried with it, and whatever has ended it before."""
    assert ["will"] == Story().connect(2).fault(fault).end(2).add(Calm).broken()
    assert ["will"] == Story().fault(fault).down("a").connect(2).end(2).add(Calm).broken()


@pytest.mark.parametrize("is_ended_first", [True, False])
def test_will_is_not_due_where_it_finds_no_room(is_ended_first: bool) -> None:
    """On a disk that was full while the connection was there."""
    story = Story().connect(2)
    if is_ended_first:
        story.end(2).fault("fill a")
    else:
        story.fault("fill a").end(2)

    assert [] == story.add(Calm).broken()

    story = Story().fault("fill a").fault("start a").connect(2).end(2)

    assert [] == story.add(Calm).broken()

    story = Story().fault("fill a").fault("free a").connect(2).end(2)

    assert ["will"] == story.add(Calm).broken()


def test_will_at_another_node_is_due() -> None:
    """Whatever dies elsewhere."""
    assert ["will"] == Story().connect(2).fault("kill b").down("b").end(2).add(Calm).broken()


def test_no_will_is_due_when_a_node_is_lost() -> None:
    """With what it had."""
    ruined = {"node": "c", "zones": ("c",), "kept": ("",), "nodes": ("c",)}
    story = Story().connect(2).fault("roam pub b abort").end(2).add(Ruined, **ruined)

    assert [] == story.connect(3, present=True).end(3).add(Calm).broken()


VOID = {"node": "root", "zones": ("",), "kept": ("a",), "nodes": ("root",), "is_void": True}


def test_will_on_its_way_to_a_root_that_is_lost_may_come_twice() -> None:
    """As what clients publish: the empty root took it for its child, or did not answer."""
    story = Story().connect(2).fault("void root").add(Ruined, **VOID).end(2)
    assert [] == story.will(2).will(2).add(Calm).broken()
    assert ["duplicate"] == story.will(2).broken()

    story = Story().connect(2).fault("void root").end(2).add(Ruined, **VOID)
    assert [] == story.will(2).will(2).add(Calm).broken()

    story = Story().connect(2).fault("kill c").end(2).will(2).add(Calm)
    assert ["duplicate"] == story.add(Ruined, **VOID).will(2).broken()


def test_will_of_open_connection_is_early() -> None:
    """Whichever nodes die or get another time meanwhile; one that is just ending is not."""
    story = Story().connect(2).fault("kill c").fault("clock a 100").will(2)

    assert ["will"] == story.add(Calm).broken()

    story.events.pop()
    came = story.events[-1].at
    story.end(2, "lost")
    story.events[-1] = attrs.evolve(story.events[-1], at=came + GRACE / 2)
    assert [] == story.add(Calm).broken()


@pytest.mark.parametrize(
    "faults",
    [["isolate c d"], ["freeze a", "thaw a"], ["lose 0.2", "lose"], ["stall pub"]],
)
def test_will_of_node_that_was_hidden_may_come(faults: list[str]) -> None:
    """Nobody can tell such a node from a dead one; and a client that does not read sees no end."""
    story = Story().connect(2)
    for fault in faults:
        story.fault(fault)

    assert [] == story.will(2).add(Calm).broken()


@pytest.mark.parametrize(
    ("begin", "end"),
    [("isolate c d", "mend-isolate c d"), ("freeze a", "thaw a"), ("lose 0.2", "lose")],
)
def test_will_of_later_connection_is_early_again(begin: str, end: str) -> None:
    """What was hidden before has a will of its own."""
    story = Story().fault(begin).connect(2).end(2).will(2)

    assert [] == story.connect(3, present=True).will(3).add(Calm).broken()

    story = Story().fault(begin).fault(end).connect(2)

    assert ["will"] == story.will(2).add(Calm).broken()


def test_no_will_comes_after_disconnect_in_the_calm() -> None:
    """In a fault the DISCONNECT may be lost."""
    assert ["will"] == Story().connect(2).end(2, "left: close").will(2).broken()
    assert [] == Story().fault("kill c").connect(2).end(2, "left: close").will(2).broken()
