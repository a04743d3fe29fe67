"""The outboxes of an edge: which drains they get, and how long they are filled."""

from __future__ import annotations

from unittest import mock

from tests.support.clock import Clock
from tests.support.edge_parts import edge_parts
from tests.support.keeping import CommitRecorder
from tests.support.outboxes import MemoryOutboxes
from tests.support.recorders import ReporterRecorder, cut
from txbroker.core import Router
from txbroker.delegation.zone_snapshot import MarkKey
from txbroker.edge.routing.outbox_manager import OutboxManager
from txbroker.edge.routing.publication import Publication
from txbroker.edge.routing.resolver_cache import ResolverCache
from txbroker.edge.routing.route import Route
from txbroker.mqtt.wire.message import Message

KEY: MarkKey = ("edge", 1, "", 1)


class Bench:
    """The outboxes of an edge that knows these zones, and no owner."""

    def __init__(self, *apexes: str) -> None:
        commit = CommitRecorder()
        self.zones = ResolverCache(Router(lambda: None))
        self.outboxes = OutboxManager(
            edge_parts(Clock(), ReporterRecorder()),
            self.zones,
            MemoryOutboxes(commit),
            save_then=commit.keeper(Clock()).save_then,
            limit=1 << 20,
        )
        self.outboxes.wire(mock.Mock())
        for apex in apexes:
            self.zones.add(cut(apex)).learn_cuts({})

    def route(self, apex: str) -> Route:
        route = self.zones.get(apex)
        assert route is not None
        return route

    def store(self, apex: str, topic: str, sequence: int = 0) -> None:
        """With a `sequence` it is in doubt at the owner of the apex."""
        publication = Publication(Message(topic, b"1", 1))
        origin = (KEY, sequence) if sequence else None
        assert self.outboxes.store(self.route(apex), publication, origin)
        self.outboxes.check()

    @property
    def drains(self) -> list[list[str]]:
        """The apexes of the drains of each outbox."""
        return [[drain.apex for drain in outbox.drains] for outbox in self.outboxes.outboxes]


def test_publishes_in_doubt_for_one_other_owner_share_a_drain() -> None:
    """Two would read the same entries, and send each twice."""
    bench = Bench("", "a", "b")

    for sequence, topic in enumerate(("x", "a/x", "a/y", "b/x", "a/x"), 1):
        bench.store("", topic, sequence)

    assert [["", "a", "b"]] == bench.drains


def test_outbox_of_a_zone_that_is_not_the_same_is_filled_no_more() -> None:
    """What a client publishes later is in a later one, which may go to another owner."""
    bench = Bench("")
    bench.store("", "a/x")

    bench.zones.add(cut("a"))
    bench.outboxes.check()
    bench.store("", "x")

    assert [[""], [""]] == bench.drains


def test_outbox_with_doubts_of_another_owner_ends_with_them() -> None:
    """Entries for this owner would prolong it, and the other one could not have its own."""
    bench = Bench("", "a")
    bench.store("", "a/x", 1)

    bench.outboxes.end_doubts(bench.route(""))
    bench.outboxes.check()
    bench.store("", "x")

    assert [["", "a"], [""]] == bench.drains
