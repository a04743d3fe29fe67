"""What a coordinator makes of reports, and an edge of messages that are lent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast
from unittest.mock import patch

import pytest

from tests.edge.groups.site import GROUP, PART, EdgeNode, Link, World
from txbroker.edge.groups import edge_connections, group_coordinators
from txbroker.edge.groups.group_coordinator import MOST_REPORTED
from txbroker.edge.routing.group_report import GroupReport
from txbroker.edge.sessions.connect_runner import ConnectRunner
from txbroker.edge.sessions.shared_subscriptions import REPEAT
from txbroker.model.log_position import LogPosition
from txbroker.runtime.slices import LONGEST


def carry(world: World) -> None:
    """All that is on its way arrives, and is durable."""
    for _ in range(10):
        for edge in world.edges:
            edge.work()
            edge.commit()
        for link in world.links:
            while link.up or link.down:
                world.carry(link)
        world.pump()
        world.commit()


def joined(world: World, number: int, *names: str) -> EdgeNode:
    """An edge with members, which the coordinator knows."""
    edge = world.edges[number]
    edge.join()
    for name in names:
        edge.connect(name)
    carry(world)
    return edge


def pass_seconds(world: World, seconds: int) -> None:
    """Each with all that then arrives."""
    for _ in range(seconds):
        world.alarms.advance(1.0)
        world.beat()
        carry(world)


def waiting(edge: EdgeNode, name: str) -> list[bytes]:
    """What a client has, and has not answered."""
    edge.step(name, answers=False)
    return [payload for _, payload in edge.members[name].due]


def test_an_edge_that_comes_back_without_members_is_forgotten() -> None:
    """They left while its link was down: the group would last for ever."""
    world = World(1)
    joined(world, 1, "b1")
    with patch.object(world.edges[2], "note_group", lambda text: False):  # no room for one more
        edge = joined(world, 2, "c1")
    edge.cut()
    edge.disconnect("c1")
    edge.work()
    edge.join()
    carry(world)
    assert "c" in world.coordinators._groups[GROUP].edges
    world.alarms.advance(edge_connections.STALE)
    assert "c" not in world.coordinators._groups[GROUP].edges


def test_of_a_group_that_ended_nothing_is_remembered() -> None:
    """Its session was never to be had: names of groups that came once would stay for ever."""
    world = World(1)
    world.is_elsewhere = True
    edge = joined(world, 2, "c1")
    (group,) = world.coordinators._groups.values()
    assert world.coordinators._told == {GROUP}
    edge.disconnect("c1")
    carry(world)
    world.coordinators.beat()
    world.coordinators._on_refused(group, "too late")
    assert (world.coordinators._groups, world.coordinators._told) == ({}, set())


def test_a_session_outlives_an_edge_that_leaves_before_the_others_are_back() -> None:
    """The coordinator starts again, and a member that is away begins at another edge at once."""
    world = World(1)
    edge, other = joined(world, 0, "a1"), joined(world, 1, "b2")
    other.disconnect("b2")
    carry(world)
    for one in (edge, other):
        one.cut()
    world.start()
    world.publish(1)
    joined(world, 1)
    other._end(other.sessions["b2"])
    carry(world)
    assert not world.coordinators.groups
    joined(world, 0)
    assert waiting(edge, "a1") == [b"1/0"]


@pytest.mark.parametrize("is_up", [False, True])
def test_a_session_outlives_all_members_but_one_whose_node_is_away(is_up: bool) -> None:
    """
    The coordinator starts again, and the node comes back after a long time.

    `is_up`: the node is back, and its first report is on its way.
    """
    world = World(1)
    edge, other = joined(world, 0, "a1"), joined(world, 1, "b2")
    for one in (edge, other):
        one.cut()
    world.start()
    world.publish(1)
    joined(world, 1)
    pass_seconds(world, group_coordinators.GRACE)
    if is_up:
        edge.join()
    other._end(other.sessions["b2"])
    carry(world)
    assert world.sessions[GROUP].expiry is None
    joined(world, 0)
    assert waiting(edge, "a1") == [b"1/0"]


def test_a_session_ends_with_its_last_member_once_all_nodes_have_reported() -> None:
    world = World(1)
    edge, other = joined(world, 0, "a1"), joined(world, 1, "b2")
    for one in (edge, other):
        one.cut()
    world.start()
    for place in (1, 0):
        joined(world, place)
    world.publish(1)
    world.alarms.advance(group_coordinators.GRACE)
    for one, name in ((other, "b2"), (edge, "a1")):
        one._end(one.sessions[name])
        carry(world)
    assert world.excused == {b"1/0"}  # deleted


@pytest.mark.parametrize("is_removed", [False, True])
def test_an_idle_group_outlives_its_durable_member_for_a_while(is_removed: bool) -> None:
    """The edge of the member was removed: the session stayed until `session_limits.age`."""
    world = World(1)
    edge, other = joined(world, 0, "a1"), joined(world, 2, "c1")
    for one in (other, edge):
        one.cut()
    assert world.sessions[GROUP].expiry is None
    if is_removed:
        world.removed.add(edge.name)
    pass_seconds(world, int(edge_connections.STALE) + 1)
    assert set(world.coordinators._groups[GROUP].edges) == ({"c"} if is_removed else {"a", "c"})
    assert world.sessions[GROUP].expiry == (group_coordinators.GRACE if is_removed else None)


def test_a_session_waits_for_its_only_member_between_two_edges() -> None:
    """The edge that it leaves reports first."""
    world = World(1)
    edge, other = joined(world, 0, "a1"), joined(world, 2)
    world.alarms.advance(group_coordinators.GRACE)  # all edges are known
    edge.disconnect("a1")
    world.publish(1)
    carry(world)
    edge._end(edge.sessions["a1"], is_moved=True)
    carry(world)
    other.members["a1"] = edge.members.pop("a1")
    other.connect("a1")
    carry(world)
    other.step("a1", answers=True)
    carry(world)
    assert world.processed == {b"1/0": 1}


def test_a_break_before_the_first_report_forgets_no_edge() -> None:
    """It has what it has, and reports that on its next connection."""
    world = World(1)
    edge = joined(world, 2, "c1")
    edge.cut()
    edge.join()
    edge.cut()
    world.alarms.advance(edge_connections.STALE)
    assert "c" in world.coordinators._groups[GROUP].edges


def test_a_connection_that_goes_on_is_first_noted_as_broken() -> None:
    """A zone of this node may end and open again: the break would end what was reported since."""
    world = World(1, is_late=True)
    edge = joined(world, 2, "c1")
    link = edge.route.port
    world.slices.charge(LONGEST)
    world.coordinators.lose(cast(Any, link))
    group = world.coordinators._groups[GROUP]
    assert group.has_members
    report = GroupReport(members=1, limit=1, is_first=True)
    world.coordinators.report(cast(Any, link), GROUP, report)
    carry(world)
    assert group.has_members


def test_an_edge_that_reports_before_the_break_is_noted_stays() -> None:
    """Its earlier connection had broken in the same turn."""
    world = World(1, is_late=True)
    edge = joined(world, 2, "c1")
    edge.cut()
    edge.join()
    edge.work()
    link = cast(Link, edge.route.port)
    while link.up:
        world.carry(link)
    group = world.coordinators._groups[GROUP]
    port = group.edges["c"].port
    carry(world)
    world.alarms.advance(edge_connections.STALE)
    assert port is group.edges["c"].port is link


def test_returned_messages_keep_their_order() -> None:
    world = World(1)
    edge = joined(world, 1, "b1")
    for _ in range(3):
        world.publish(1)
    carry(world)
    other = joined(world, 2, "c1")
    edge.disconnect("b1")
    carry(world)
    assert waiting(other, "c1") == [b"1/0", b"1/1", b"1/2"]


def test_messages_of_a_broken_link_keep_their_order() -> None:
    world = World(1)
    edge = joined(world, 1, "b1")
    for _ in range(3):
        world.publish(1)
    carry(world)
    other = joined(world, 2, "c1")
    edge.cut()
    carry(world)
    assert waiting(other, "c1") == [b"1/0", b"1/1", b"1/2"]


@pytest.mark.parametrize("is_first", [True, False])
def test_messages_of_a_removed_edge_are_lent_again(is_first: bool) -> None:
    """QoS 2, too: an operator knows that the node with the member is no more."""
    world = World(1)
    edge = joined(world, 2, "c1")
    for _ in range(3):
        world.publish(2)
    carry(world)
    if not is_first:
        edge.cut()
        carry(world)
    other = joined(world, 1, "b1")
    edge.cut()
    pass_seconds(world, 5)
    assert not waiting(other, "b1")
    world.removed.add("c")
    pass_seconds(world, 1)
    assert waiting(other, "b1") == [b"2/0", b"2/1", b"2/2"]


def test_a_removed_edge_that_lives_keeps_what_it_has() -> None:
    """
    The node that the operator asked cannot reach it. Or it is dead, and its connection breaks
    later.
    """
    world = World(1)
    edge = joined(world, 2, "c1")
    world.publish(2)
    carry(world)
    world.removed.add("c")
    other = joined(world, 1, "b1")
    pass_seconds(world, 2)
    assert waiting(edge, "c1") == [b"2/0"] and not waiting(other, "b1")
    other.disconnect("b1")
    carry(world)
    world.publish(2)
    carry(world)
    assert waiting(edge, "c1") == [b"2/0", b"2/1"]
    other.connect("b1")
    carry(world)
    edge.cut()
    pass_seconds(world, 1)
    assert waiting(other, "b1") == [b"2/0", b"2/1"]


def in_runs(seed: int) -> World:
    """A world in which the coordinator gets its messages in runs of four."""
    world = World(seed)
    cast(Any, world.random).randrange = lambda _: 4
    return world


def test_messages_that_come_back_go_before_runs_that_wait() -> None:
    """The journal is read again for them, and others have room meanwhile."""
    world = in_runs(1)
    edge, other = joined(world, 1, "b1"), joined(world, 2, "c1")
    for _ in range(12):
        world.publish(1)
    carry(world)
    had = waiting(edge, "b1")
    assert len(had) == 4
    edge.disconnect("b1")
    for _ in range(4):
        other.step("c1", answers=True)
    for one in (edge, other):
        one.work()
    for link in world.links:
        while link.up:
            world.coordinators.report(link, GROUP, link.up.popleft())
    carry(world)
    assert waiting(other, "c1") == had


def test_members_that_report_elsewhere_keep_what_they_have() -> None:
    """The group moves: a message of QoS 2 is with its member all the time."""
    world = World(1)
    edge = joined(world, 2, "c1")
    world.publish(2)
    carry(world)
    other = joined(world, 1, "b1")
    assert edge.route.port is not None
    moved = GroupReport(is_over=True, is_moved=True)
    world.coordinators.report(edge.route.port, GROUP, moved)
    carry(world)
    assert waiting(edge, "c1") == [b"2/0"] and not waiting(other, "b1")


@pytest.mark.parametrize(("is_run", "qos"), [(False, 2), (True, 1)])
def test_members_keep_what_they_have_while_the_session_is_elsewhere(is_run: bool, qos: int) -> None:
    world = in_runs(1) if is_run else World(1)
    edge = joined(world, 2, "c1")
    world.publish(qos)
    carry(world)
    other = joined(world, 1, "b1")
    world.coordinators._groups[GROUP].edges["c"].turns += 1  # the other one's turn
    world.take_away()
    for _ in range(5):
        world.alarms.advance(1.0)
        world.beat()
        carry(world)
    assert waiting(edge, "c1") == [b"%d/0" % qos] and not waiting(other, "b1")


def test_a_link_breaks_before_the_session_is_there() -> None:
    """What its edge held at QoS 1 goes to another one."""
    world = World(1)
    edge = joined(world, 2, "c1")
    world.publish(1)
    carry(world)
    world.is_elsewhere = True
    world.crash()
    edge.cut()
    world.is_elsewhere = False
    other = joined(world, 1, "b1")
    world.beat()
    carry(world)
    assert waiting(other, "b1") == [b"1/0"]


def test_what_an_edge_that_comes_back_late_has_waits_no_more() -> None:
    """It was to be lent to others as soon as these had room: QoS 2 would be processed twice."""
    world = World(1)
    late = joined(world, 2, "c1")
    for _ in range(4):
        world.publish(2)
    carry(world)
    other = joined(world, 1, "b1")
    for _ in range(4):
        world.publish(2)
    carry(world)
    assert (len(waiting(late, "c1")), len(waiting(other, "b1"))) == (4, 4)
    late.cut()
    other.cut()
    world.stored_edges = frozenset()  # as an earlier version stored it
    world.start()
    other.join()
    pass_seconds(world, 5)
    group = world.coordinators._groups[GROUP]
    assert group._waiting.count == 4
    late.join()
    carry(world)
    assert group._waiting.count == 0
    for _ in range(8):
        other.step("b1", answers=True)
    carry(world)
    assert not waiting(other, "b1")
    world.settle()
    assert set(world.processed.values()) == {1}


def test_a_session_that_comes_when_the_members_are_gone_has_no_client() -> None:
    """Otherwise its directory entry says for ever that the client is connected here."""
    world = World(1)
    missed: list[Any] = []
    resumed: list[Callable[[], None]] = []
    slow = cast(Any, world)
    slow.runner = ConnectRunner(slow, resumed.append, slow)
    slow.is_slow = True
    slow.miss = missed.append
    edge = joined(world, 2, "c1")
    edge.disconnect("c1")
    carry(world)
    session = world.sessions[GROUP]
    (resume,) = resumed
    resume()
    assert missed == [session]
    assert not world.coordinators._groups


def test_a_message_that_was_lent_to_earlier_members_is_ignored() -> None:
    """They left while it was on its way, and the coordinator lends it to others."""
    world = World(1)
    edge = joined(world, 2, "c1")
    world.publish(2)
    for _ in range(3):
        world.pump()
        world.commit()
    edge.disconnect("c1")
    edge.connect("c1")
    edge.work()
    link = edge.route.port
    assert link is not None and link.down
    while link.down:
        link.down.popleft()()
    assert not waiting(edge, "c1")


def test_what_the_last_member_had_is_reported_until_it_is_durable() -> None:
    """A message of QoS 2 that it processed goes to nobody else."""
    world = World(1)
    joined(world, 1, "b1")
    edge = joined(world, 2, "c1")
    world.edges[1].disconnect("b1")
    carry(world)
    world.publish(2)
    carry(world)
    edge.step("c1", answers=True)
    edge.cut()
    edge.disconnect("c1")
    world.edges[1].connect("b1")
    carry(world)
    edge.join()
    carry(world)
    world.alarms.advance(edge_connections.STALE)
    carry(world)
    world.edges[1].step("b1", answers=True)
    assert world.processed == {b"2/0": 1}
    assert not edge.shared.groups


def test_a_message_too_large_for_the_members_is_discarded() -> None:
    """Returned, it would come back in the next turn, again and again."""
    world = World(1)
    edge = joined(world, 2, "c1")
    sink = edge.members["c1"].sink
    assert sink is not None
    sink.packet_writer.max_packet = 5
    world.publish(1)
    carry(world)
    assert not world.sessions[GROUP].durable_sender.queued
    assert world.is_done() and not world.processed
    assert ("too large", 1) in edge.watcher.events


def test_a_group_beyond_the_bound_is_taken_when_there_is_room() -> None:
    world = World(1)
    with patch.object(group_coordinators, "GROUPS", 0):
        joined(world, 2, "c1")
    before = world.coordinators.groups
    assert world.counters.get("group.over_limit") > 0
    for _ in range(REPEAT):
        world.beat()
    carry(world)
    assert (before, world.coordinators.groups) == (0, 1)


def test_a_node_that_lies_fills_no_table() -> None:
    """It reports more than a group can have, while the session cannot be had."""
    world = World(1)
    world.is_elsewhere = True
    link = Link(world, world.edges[0])
    places = [LogPosition(PART, offset) for offset in range(2 * MOST_REPORTED)]
    report = GroupReport(members=1, is_first=True, held=tuple(places), request=1)
    world.coordinators.report(link, GROUP, report)
    later = [LogPosition(PART, offset) for offset in range(10**6, 10**6 + 2 * MOST_REPORTED)]
    for request in (2, 3):
        report = GroupReport(members=1, done=tuple(later), request=request)
        world.coordinators.report(link, GROUP, report)
    group = world.coordinators._groups[GROUP]
    assert len(group._held) <= MOST_REPORTED and len(group._answered) <= MOST_REPORTED
    assert len(group._confirms) == 1


def lent_to_away() -> tuple[World, EdgeNode, EdgeNode]:
    """A member has a QoS 2 message, its node is away, and the coordinator starts again."""
    world = World(1)
    away = joined(world, 2, "c1")
    world.publish(2)
    carry(world)
    assert [b"2/0"] == waiting(away, "c1")
    away.cut()
    world.start()
    return world, away, joined(world, 1, "b1")


def test_a_message_in_doubt_waits_for_the_node_that_may_have_it() -> None:
    """However long that takes; it was lent again after three seconds."""
    world, away, other = lent_to_away()
    pass_seconds(world, 100)
    away.join()
    pass_seconds(world, 10)
    assert ([], [b"2/0"]) == (waiting(other, "b1"), waiting(away, "c1"))
    world.settle()
    assert {b"2/0": 1} == world.processed


def test_a_message_in_doubt_does_not_wait_for_a_node_that_was_removed() -> None:
    world, away, other = lent_to_away()
    pass_seconds(world, 100)
    assert [] == waiting(other, "b1")
    world.removed.add(away.name)
    pass_seconds(world, 10)
    assert [b"2/0"] == waiting(other, "b1")


def test_a_message_in_doubt_does_not_wait_for_a_node_that_connects_and_says_nothing() -> None:
    """It has lost its disk, or had no room to note the group."""
    world, away, other = lent_to_away()
    away.stored_groups.clear()
    away.crash()
    away.join()
    pass_seconds(world, 10)
    assert [b"2/0"] == waiting(other, "b1")


@pytest.mark.parametrize("is_restarted", [False, True])
def test_an_edge_that_starts_again_says_that_it_has_nothing(is_restarted: bool) -> None:
    """
    No client of it comes back: its QoS 2 messages waited for ever.

    `is_restarted`: the coordinator starts again, too.
    """
    world = World(1)
    edge = joined(world, 2, "c1")
    world.publish(2)
    carry(world)
    edge.crash()
    other = joined(world, 1, "b1")
    if is_restarted:
        other.cut()
        world.start()
        other.join()
    pass_seconds(world, 10)
    assert [] == waiting(other, "b1")
    edge.join()
    pass_seconds(world, 10)
    assert [b"2/0"] == waiting(other, "b1")
    assert not edge.noted_groups
