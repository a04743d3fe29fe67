"""A client in thousands of groups, or a publish for all of them, stalls nobody: slices."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest

from tests.edge.groups.site import NotedGroups, Way
from tests.support import wire5
from tests.support.edge_parts import edge_parts
from tests.support.pair import Alarms
from tests.support.recorders import SinkRecorder, WatcherRecorder
from txbroker.core import Router
from txbroker.directory.effects import AwaitDurable
from txbroker.edge.groups import group_coordinators
from txbroker.edge.groups.edge_connections import STALE
from txbroker.edge.groups.group_coordinator import MOST_IN_CROWD, GroupCoordinator
from txbroker.edge.groups.group_coordinators import AT_ONCE, GroupCoordinators, GroupNodes
from txbroker.edge.routing.group_report import GroupReport
from txbroker.edge.sessions.connect_procedure import ConnectProcedure, OpenedSession
from txbroker.edge.sessions.connect_runner import ConnectRunner
from txbroker.edge.sessions.session_connect import ConnectRefused
from txbroker.edge.sessions.shared_subscriptions import SharedSubscriptions
from txbroker.model.counters import Counters
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.session.window import SessionLimits
from txbroker.mqtt.wire.packets import Connect
from txbroker.runtime.slices import LONGEST, Slices

GROUPS = [f"$share/g{number}/t" for number in range(100)]
FILTERS = [(text, 0) for text in GROUPS]


class Ticking:
    """Time that passes with each look at it: a quarter of a turn's work."""

    def __init__(self) -> None:
        self._time = 0.0

    def __call__(self) -> float:
        self._time += LONGEST / 4
        return self._time


class Coordinators:
    """What an edge reports, for each group."""

    edge_name = "edge"

    def __init__(self) -> None:
        self.reports: list[tuple[str, GroupReport]] = []

    def report_group(self, group: str, report: GroupReport) -> None:
        self.reports.append((group, report))

    def take(self) -> list[tuple[str, GroupReport]]:
        """What came since the last call."""
        taken, self.reports = self.reports, []
        return taken


class Shared(NotedGroups):
    """The shared subscriptions of an edge, with their zone's owner and their store."""

    def __init__(self) -> None:
        super().__init__()
        self.coordinators = Coordinators()
        self.route = Way()
        self.route.port = cast(Any, self.coordinators)
        self.is_due = False
        self.slices = Slices(Ticking(), self._again)
        self.tested = SharedSubscriptions(
            edge_parts(Alarms(), self, again=self._again),
            zones=cast(Any, self),
            wake=lambda _: None,
            session_store=cast(Any, self),
            slices=self.slices,
            wait=1.0,
        )

    def first(self, prefix: str) -> Way:
        """The route of all groups."""
        return self.route

    def when_durable(self, action: Callable[[], None]) -> None:
        action()

    def member(self, name: str) -> Session:
        """A connected client."""
        watcher = cast(Any, WatcherRecorder())
        session = Session(name, clean=True, limits=SessionLimits(), watcher=watcher)
        session.sender.attach(SinkRecorder())
        return session

    def subscribe(self, session: Session) -> None:
        """Make it a member of all groups."""
        self.tested.subscribe(session, FILTERS, 0, lambda: None, lambda _: None)

    def turn(self) -> int:
        """Do the work of one turn; return how many reports that brought."""
        before = len(self.coordinators.reports)
        self.is_due = False
        self.slices.work()
        self.tested.work()
        return len(self.coordinators.reports) - before

    def settle(self) -> list[tuple[str, GroupReport]]:
        """All that is due; each turn brings a few reports."""
        while self.is_due:
            assert self.turn() < 10
        return self.coordinators.take()

    def _again(self) -> None:
        self.is_due = True


def leave(shared: Shared, session: Session, *, is_moved: bool = False) -> None:
    """The client's connection breaks, and its session ends here with it."""
    shared.tested.reclaim(session)
    session.detach()
    shared.tested.follow(session)
    shared.tested.end(session, is_moved=is_moved)
    session.close()


def test_reports_on_many_groups_take_many_turns() -> None:
    """The SUBSCRIBE packets of one client kept a node from all others for seconds."""
    shared = Shared()
    shared.subscribe(shared.member("a"))
    assert [text for text, _ in shared.settle()] == GROUPS


@pytest.mark.parametrize("is_moved", [False, True])
def test_a_member_of_many_groups_leaves_in_many_turns(is_moved: bool) -> None:
    """Groups whose only member goes on elsewhere are reported as durable."""
    shared = Shared()
    session = shared.member("a")
    shared.subscribe(session)
    shared.settle()
    leave(shared, session, is_moved=is_moved)
    assert len(shared.coordinators.reports) < 10
    last = dict(shared.settle())
    assert sorted(last) == sorted(GROUPS)
    assert all(report.is_over for report in last.values())
    assert {report.is_durable for report in last.values()} == {is_moved}
    assert shared.tested.groups == len(GROUPS)
    for text, report in last.items():
        shared.tested.on_report_confirmed(cast(Any, shared.route), text, report.request)
    assert shared.tested.groups == 0


def test_a_member_that_comes_meanwhile_finds_new_groups() -> None:
    """What came after the last member left must not wait for it."""
    shared = Shared()
    first = shared.member("a")
    shared.subscribe(first)
    shared.settle()
    leave(shared, first)
    shared.subscribe(shared.member("b"))
    found = shared.settle()
    for text in GROUPS:
        reports = [report for group, report in found if group == text]
        assert reports[0].is_over
        assert reports[-1].is_first
        assert reports[-1].members == 1


def test_a_client_that_comes_back_meanwhile_stays_a_member() -> None:
    """The turns in which it leaves its groups come after that."""
    shared = Shared()
    session = shared.member("a")
    shared.subscribe(session)
    shared.settle()
    shared.tested.reclaim(session)
    session.detach()
    shared.tested.follow(session)
    session.sender.attach(SinkRecorder())
    shared.tested.follow(session)
    last = dict(shared.settle())
    assert {report.members for report in last.values()} == {1}
    assert all(len(group._ring) == 1 for group in shared.tested._groups.values())


def test_the_seconds_work_of_an_edge_is_done_in_slices() -> None:
    shared = Shared()
    shared.subscribe(shared.member("a"))
    shared.settle()
    looked = []
    locate = shared.tested._locate
    with patch.object(
        shared.tested, "_locate", lambda group: (looked.append(group), locate(group))
    ):
        shared.tested.beat()
        assert 0 < len(looked) < 10
        shared.settle()
    assert len(looked) == len(GROUPS)


class Owner:
    """
    The coordinators of a node, whose groups have no sessions; `sent` are the flushed groups.

    `asked` has what refuses the sessions that are looked up, by group.
    """

    edge_name = "edge"

    def __init__(self) -> None:
        self.alarms = Alarms()
        self.sent: list[str] = []
        self.events: list[str] = []
        self.asked: dict[str, Callable[[], None]] = {}
        self.looks_up = ""
        self.runner = ConnectRunner(cast(Any, None), self._wait, cast(Any, None))
        self.sessions: dict[str, Session] = {}
        self.counters = Counters()
        self.dirty: list[Any] = []
        self.is_due = False
        self.slices = Slices(Ticking(), self._again)
        self.tested = GroupCoordinators(
            edge=cast(
                Any,
                SimpleNamespace(
                    counters=self.counters,
                    router=Router(lambda: None),
                    slices=self.slices,
                    clients=SimpleNamespace(sessions=self.sessions, delete=lambda _: None),
                ),
            ),
            connects=cast(Any, self),
            timers=self.alarms,
            reporter=cast(Any, self),
            mark_dirty=lambda one: self.dirty.append(one),
            nodes=GroupNodes(
                is_leaving=lambda: False,
                is_removed=lambda _: False,
                has_absent_edge=lambda: False,
            ),
        )
        self.groups = [self.tested._make(text) for text in GROUPS]

    def turn(self) -> int:
        """Do the work of one turn; return how many groups were flushed."""
        before, self.is_due = len(self.sent), False
        dirty, self.dirty = self.dirty, []
        for one in dict.fromkeys(dirty):
            one.flush()
        self.slices.work()
        return len(self.sent) - before

    def settle(self) -> None:
        """All that is due, a few groups in each turn."""
        while self.is_due or self.dirty:
            assert self.turn() < 10

    def report(self, text: str) -> None:
        """The first member of a group subscribes."""
        self.tested.report(cast(Any, self), text, GroupReport(members=1, limit=1, is_first=True))

    def connect(
        self, packet: Connect, client: object
    ) -> ConnectProcedure[OpenedSession | ConnectRefused]:
        """Look for the session of a group."""
        self.looks_up = packet.client_id
        yield AwaitDurable()
        return ConnectRefused("no")

    def refuse(self, text: str) -> None:
        """The session of a group cannot be had."""
        self.asked.pop(text)()

    def _wait(self, resume: Callable[[], None]) -> None:
        self.asked[self.looks_up] = resume

    def event(self, name: str, **fields: object) -> None:
        self.events.append(name)

    def _again(self) -> None:
        self.is_due = True


def test_sessions_of_many_groups_are_looked_up_in_line() -> None:
    """The look-ups of 9,000 groups kept CONNECTs waiting for seconds, and other nodes' clients."""
    owner = Owner()
    for text in GROUPS:
        owner.report(text)
    owner.settle()
    assert list(owner.asked) == GROUPS[:AT_ONCE]
    looked = []
    while owner.asked:
        text = next(iter(owner.asked))
        looked.append(text)
        owner.refuse(text)
        owner.settle()
        assert len(owner.asked) <= AT_ONCE
    assert looked == GROUPS


def test_look_ups_without_an_answer_delay_others_for_a_second() -> None:
    """Groups of keepers that are away kept those of others in line."""
    owner = Owner()
    for text in GROUPS:
        owner.report(text)
    owner.settle()
    owner.tested.beat()
    owner.settle()
    assert list(owner.asked) == GROUPS[: 2 * AT_ONCE]


def test_a_session_that_is_here_is_not_looked_up_in_line() -> None:
    """No other node is asked for it: groups of a node that is cut off go on."""
    owner = Owner()
    for text in GROUPS[:-1]:
        owner.report(text)
    owner.settle()
    owner.sessions[GROUPS[-1]] = cast(Any, SimpleNamespace(expiry=group_coordinators.GRACE))
    owner.report(GROUPS[-1])
    assert list(owner.asked) == [*GROUPS[:AT_ONCE], GROUPS[-1]]


def test_groups_that_ended_in_line_are_not_looked_up() -> None:
    owner = Owner()
    for text in GROUPS:
        owner.report(text)
    owner.settle()
    for text in GROUPS[AT_ONCE:]:
        owner.tested.report(cast(Any, owner), text, GroupReport(is_over=True))
    owner.settle()
    assert not owner.tested._line
    for text in GROUPS[:AT_ONCE]:
        owner.refuse(text)
    owner.settle()
    assert not owner.asked


def test_output_for_many_groups_is_sent_in_many_turns() -> None:
    """One publish for 9,000 groups took half a second, in which nobody else was served."""
    owner = Owner()
    with patch.object(GroupCoordinator, "send", lambda group: owner.sent.append(group.text)):
        for group in owner.groups:
            group.flush()
        assert owner.sent == []
        owner.settle()
    assert owner.sent == GROUPS


def test_an_error_of_one_group_loses_no_others_output() -> None:
    owner = Owner()
    failing = iter([True])

    def send(group: GroupCoordinator) -> None:
        if next(failing, False):
            raise ValueError("one")
        owner.sent.append(group.text)

    with patch.object(GroupCoordinator, "send", send):
        for group in owner.groups:
            group.flush()
        with pytest.raises(ValueError, match="one"):
            owner.turn()
        owner.settle()
    assert owner.sent == GROUPS[1:]


def test_the_seconds_work_of_an_owner_is_done_in_slices() -> None:
    owner = Owner()
    owner.tested._groups.update((group.text, group) for group in owner.groups)
    with patch.object(owner.tested, "_check", lambda group: owner.sent.append(group.text)):
        owner.tested.beat()
        assert 0 < len(owner.sent) < 10
        owner.settle()
    assert owner.sent == GROUPS


def test_the_break_of_a_connection_is_noted_in_many_turns() -> None:
    """An edge had members of 9,000 groups: their sessions left in one turn."""
    owner = Owner()
    owner.tested._groups.update((group.text, group) for group in owner.groups)
    with patch.object(GroupCoordinator, "lose", lambda group, _: owner.sent.append(group.text)):
        owner.tested.lose(cast(Any, owner))
        assert 0 < len(owner.sent) < 10
        owner.settle()
    assert owner.sent == GROUPS


def test_an_edge_leaves_many_groups_in_many_turns() -> None:
    """It came back without their members."""
    owner = Owner()
    with patch.object(group_coordinators, "AT_ONCE", 0):
        for text in GROUPS:
            owner.report(text)
        again = cast(Any, Coordinators())
        owner.tested.on_edge(again)
        owner.settle()
        assert owner.tested.groups == len(GROUPS)
        owner.alarms.advance(STALE)
        assert 0 < len(GROUPS) - owner.tested.groups < 10
        owner.settle()
    assert owner.tested.groups == 0


def test_groups_of_a_crowd_keep_little_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what 9,000 groups cannot send takes the room of all clients' output."""
    monkeypatch.setattr(group_coordinators, "CROWD", 10)
    owner = Owner()
    for group in owner.groups:
        group.packet_writer.send(bytes(MOST_IN_CROWD + 1))
        group.flush()
    shut = [group.packet_writer.is_shut for group in owner.groups]
    assert shut == [False] * 10 + [True] * 90
    assert not owner.groups[-1].packet_writer.send_qos0(b"packet")
    owner.groups[-1].packet_writer.dequeue()
    owner.settle()
    assert not any(group.packet_writer.is_shut for group in owner.groups)


def test_what_a_crowd_drops_is_counted() -> None:
    owner = Owner()
    group = owner.groups[0]
    group.packet_writer.is_shut = True
    group.packet_writer.send_qos0(b"packet")
    group._send_qos0()
    assert owner.counters.get("group.dropped.qos0") == 1
    assert group.packet_writer.dropped == 0


def test_no_group_keeps_its_last_output() -> None:
    """The reader's last run, of 80 KB, stayed with each of 9,000 groups."""
    owner = Owner()
    group = owner.groups[0]
    group._reader.open(object(), "", None, clean=False, level=5)
    group.packet_writer.send(wire5.publish("t", b"x"))
    group._send_qos0()
    assert owner.counters.get("group.dropped.qos0") == 1
    assert group._reader.qos0 is None
