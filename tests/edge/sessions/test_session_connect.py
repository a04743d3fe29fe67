"""
Crash and message loss between any two steps of a CONNECT whose session is at another node.

Whatever happens at whichever step: one node has the session, nothing acknowledged is lost, and what
a clean session has ended does not come back.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from tests.support.site import Connection, Node, Site
from txbroker.mqtt.wire.packets import Will

NAMES = ("a", "b", "c")
HEALED = 12.0
"""Seconds in which a site heals: a CONNECT waits 3 s for nodes that are away."""

WILL = Will(topic="w", payload=b"gone", qos=1, retain=False)


class Play:
    """A kept session at `a`, a CONNECT at `b`, and a fault at the step `at` of the node `b`."""

    def __init__(self, fault: Callable[[Play], object], at: int, *, clean: bool) -> None:
        self.site = Site(NAMES, 1)
        self.site.start(len(NAMES))
        self.site.run(2.0)
        first = self.connect("a")
        self.acked = False
        first.add("kept", self._ack)
        self.site.run_until(lambda: self.acked)
        first.lost(is_will_due=False)
        self.site.run(0.5)
        self.steps: list[str] = []
        self._at, self._fault = at, fault
        self.struck = ""
        self.site.strike = self._strike
        self.site.watch = self._check_holders
        will = WILL if clean else None
        self.connection = self.site.nodes["b"].connect("x", clean=clean, will=will)
        self.site.run(4.0)
        self.site.strike = lambda node, step: None

    def connect(self, name: str) -> Connection:
        """A client that is answered."""
        connection = self.site.nodes[name].connect("x")
        self.site.run_until(lambda: connection.is_answered)
        assert connection.refused is None
        return connection

    def heal(self) -> None:
        """All nodes are up and hear one another."""
        self.site.heal()
        for node in self.site.nodes.values():
            if not node.is_up:
                node.start()
        self.site.run(HEALED)

    def _ack(self) -> None:
        self.acked = True

    def _check_holders(self) -> None:
        names = [n.name for n in self.site.nodes.values() if b"x" in n.store.now.get("held", {})]
        assert len(names) <= 1, names

    def _strike(self, node: Node, step: str) -> None:
        if node.name != "b":
            return
        self.steps.append(step)
        if len(self.steps) == self._at:
            self.struck = step
            # after the turn: the step is requested, and its result never comes, or comes late
            self.site.after(0.0, lambda: self._fault(self))


def kill(name: str, survivors: int) -> Callable[[Play], object]:
    return lambda play: play.site.nodes[name].kill(survivors)


def isolate(play: Play) -> None:
    """All messages of `b` are lost for a while, also the answers that are on their way."""
    play.site.isolate("b")
    play.site.after(1.5, play.site.heal)


FAULTS = {
    "the node dies": kill("b", 0),
    "the node dies, and has written": kill("b", 3),
    "the other node dies": kill("a", 0),
    "messages are lost": isolate,
}
EXPECTED = {
    False: {"SendRequest", "AwaitDurable"},
    True: {"SendRequest", "AwaitDurable", "Pause"},
}
"""Steps that the fault has to meet: of a kept session, and of a clean one."""


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_at_each_step(name: str, clean: bool) -> None:
    struck: set[str] = set()
    for at in itertools.count(1):
        play = Play(FAULTS[name], at, clean=clean)
        if not play.struck:
            break
        struck.add(play.struck)
        was_accepted = play.connection.present is not None
        play.connection.lost(is_will_due=False)
        play.heal()
        again = play.connect("c")
        if not clean:
            assert again.present and again.content == {"kept"}, (at, play.struck)
        elif was_accepted:
            assert again.content == set(), (at, play.struck)  # [MQTT-3.1.2-6]
    assert EXPECTED[clean] <= struck, struck


@pytest.mark.parametrize("clean", [False, True])
def test_a_client_that_leaves_at_any_step(clean: bool) -> None:
    """What was kept is there for its next CONNECT, unless a clean session has ended it."""
    for at in itertools.count(1):
        play = Play(lambda play: play.connection.lost(is_will_due=False), at, clean=clean)
        if not play.struck:
            break
        again = play.connect("c")
        if not clean:
            assert again.present and again.content == {"kept"}, (at, play.struck)


@pytest.mark.parametrize("clean", [False, True])
def test_a_client_that_connects_again_at_any_step(clean: bool) -> None:
    """The later CONNECT is accepted, the earlier one is closed [MQTT-3.1.4-2]."""
    for at in itertools.count(1):
        later: list[Connection] = []

        def again(play: Play, later: list[Connection] = later) -> None:
            later.append(play.site.nodes["b"].connect("x"))

        play = Play(again, at, clean=clean)
        if not play.struck:
            break
        (connection,) = later
        assert connection.present is not None and connection.is_open, (at, play.struck)
        assert not play.connection.is_open
        if not clean:
            assert connection.content == {"kept"}, (at, play.struck)


def test_a_session_that_no_client_was_told_of_is_not_held_without_being_there() -> None:
    """Its client left while the directory let it begin; other nodes would be sent here for ever."""
    for at in itertools.count(1):
        site = Site(NAMES, 1)
        site.start(len(NAMES))
        site.run(2.0)
        node, steps = site.nodes["b"], itertools.count(1)
        waiting: list[Connection] = []

        def strike(
            where: Node,
            step: str,
            at: int = at,
            steps: Iterator[int] = steps,
            waiting: list[Connection] = waiting,
        ) -> None:
            if where.name == "b" and next(steps) == at:
                where.site.after(0.0, lambda: waiting[0].lost(is_will_due=False))

        site.strike = strike
        waiting.append(node.connect("x"))
        site.run(4.0)
        assert set(node.directory.ownership.held) <= set(node.host.kept), at
        if waiting[0].is_open:
            break
    assert at > 2
