"""
A zone is cut, and its earlier owner is gone before it has answered all that was on its way to it.

What is published to the zone meanwhile waits: for the answers, and where there are none for now,
behind what went to the outbox instead (protocol rules 13 and 22).
"""

from __future__ import annotations

import pytest

from tests.support.edge_bench import Client, EdgeBench
from tests.support.recorders import OwnerRecorder, cut
from txbroker.delegation.zone_snapshot import MarkKey
from txbroker.edge.sessions.edge import ATTEMPTS

SENT: MarkKey = ("edge", 1, "", 1)
"""The stream of the publishes that the earlier owner has not answered."""


class Bench(EdgeBench):
    """An edge of a root whose child `a` takes over, and of the child."""

    def __init__(self) -> None:
        super().__init__()
        self.root = self.online("")
        self.client = Client(self, "c")
        self.child: OwnerRecorder

    def cut(self, above: str, apex: str) -> OwnerRecorder:
        """The owner's stream says that the zone is cut, and the child is connected."""
        self.edge.cuts.on_cut(self.route(above), cut(apex))
        self.know(apex)
        return self.online(apex)

    def give_up(self, apex: str) -> None:
        """The owner does not answer any more."""
        self.lose(apex)
        for _ in range(ATTEMPTS):
            self.edge.on_failed(self.route(apex))

    def published(self, apex: str) -> list[str]:
        """What its owner has got since the last call, live and from outboxes."""
        return [e[-1] for e in self.take() if e[0] == apex and e[1] in ("publish", "drained")]


def answer(port: OwnerRecorder, mark: int) -> None:
    """The owner tells how far it has taken the stream."""
    keys, answered = port.asked.pop(0)
    answered({key: mark if key == SENT else 0 for key in keys})


@pytest.fixture
def bench() -> Bench:
    """`a` was cut while two publishes to it were on their way; two more wait for their answers."""
    bench = Bench()
    bench.client.publish("a/x", "1")
    bench.client.publish("a/x", "2")
    bench.child = bench.cut("", "a")
    bench.client.publish("a/x", "3")
    bench.client.publish("a/x", "4")
    assert bench.published("a") == []
    return bench


def test_what_waits_goes_behind_what_was_in_doubt(bench: Bench) -> None:
    """The child knows what the earlier owner had taken; the rest comes first."""
    bench.give_up("")
    before = bench.published("a")
    bench.settle()
    answer(bench.child, 1)
    bench.settle()
    drained = bench.published("a")
    bench.client.publish("a/x", "5")
    bench.child.streams[0].user.on_accepted(2)
    bench.settle()

    assert ([], ["2"], ["3", "4", "5"]) == (before, drained, bench.published("a"))


def test_what_was_taken_is_not_sent_again(bench: Bench) -> None:
    """Nothing is left in doubt: what waits goes at once."""
    bench.give_up("")
    bench.settle()
    answer(bench.child, 2)
    bench.settle()

    assert bench.published("a") == ["3", "4"]


def test_traffic_to_the_earlier_owner_keeps_nobody_waiting(bench: Bench) -> None:
    """It stays away, and more and more waits for it: that is not the child's concern."""
    bench.give_up("")
    bench.settle()
    answer(bench.child, 0)
    bench.settle()
    bench.client.publish("beside", "b1")
    bench.child.streams[0].user.on_accepted(2)
    bench.work()

    assert bench.published("a") == ["1", "2", "3", "4"]


def test_hold_passes_on_to_a_cut_below() -> None:
    """What the child waits for holds its own child, too, as far as it is of that one's topics."""
    bench = Bench()
    bench.client.publish("a/b/x", "1")
    bench.cut("", "a")
    bench.client.publish("a/b/x", "2")
    bench.client.publish("a/y", "3")
    bench.cut("a", "a/b")
    before = bench.published("a/b")
    bench.edge.publisher.on_accepted(bench.route(""), 1)

    assert ([], ["2"]) == (before, bench.published("a/b"))


def test_zone_that_comes_back_brings_its_outbox_before_what_follows() -> None:
    """Also where something waits for credit already, and nobody looked at the outbox then."""
    bench = Bench()
    bench.cut("", "a")
    bench.give_up("a")
    bench.client.publish("a/x", "1")
    bench.settle()
    bench.root.credit = False
    bench.client.publish("b", "2")
    bench.edge.cuts.on_zone_end(bench.route("a"), is_whole=True)
    bench.client.publish("a/x", "3")
    bench.root.credit = True
    bench.edge.publisher.flush(bench.route(""))
    before = bench.published("")
    bench.settle()
    answer(bench.root, 0)
    bench.settle()
    drained = bench.published("")
    bench.root.streams[0].user.on_accepted(1)
    bench.settle()

    assert ([], ["1"], ["2", "3"]) == (before, drained, bench.published(""))
