"""
What the groups of a node note as connections of edges begin and break.

An edge may have members of thousands of groups. All groups in one turn would stall the node's
clients. So each group notes the break of a connection in a step of the slices. A group may lend to
the broken connection until then, and lends the same to others by that step.

A connection within the process may begin again after its break. The groups note the break before
its next report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final

from txbroker.edge.groups.group_coordinator import GroupCoordinator, GroupEdge
from txbroker.edge.groups.member_port import MemberPort
from txbroker.model.timers import Timers
from txbroker.runtime.slices import Slices

STALE: Final = 5.0
"""Seconds after which an edge that came back without members has none."""


class EdgeConnections:
    """
    The connections of edges with members of `groups`, which has each group by its filter.

    `release` lets the session of a group without connected members go. `drop` lets a group forget
    an edge.
    """

    def __init__(
        self,
        groups: Mapping[str, GroupCoordinator],
        *,
        slices: Slices,
        timers: Timers,
        release: Callable[[GroupCoordinator], None],
        drop: Callable[[GroupCoordinator, GroupEdge], None],
    ) -> None:
        self._groups = groups
        self._slices = slices
        self._timers = timers
        self._release = release
        self._drop = drop
        self._reported: dict[MemberPort, set[GroupCoordinator]] = {}  # on connections that are new
        self._broken: dict[MemberPort, object] = {}  # owners of the steps that groups have left

    def begin(self, port: MemberPort) -> None:
        """Note that an edge has connected: its first reports are due."""
        self._reported[port] = set()
        self._timers.call_later(STALE, partial(self._end_wait, port))

    def finish(self, port: MemberPort) -> None:
        """Let all groups note the break of a connection that goes on."""
        steps = self._broken.get(port)
        if steps is not None:
            self._slices.finish(steps)

    def note_first(self, port: MemberPort, group: GroupCoordinator) -> None:
        """Note that the group gets its first report on a connection."""
        reported = self._reported.get(port)
        if reported is not None:
            reported.add(group)

    def lose(self, port: MemberPort) -> None:
        """Note that an edge's connection broke, before or after its next one begins."""
        self._reported.pop(port, None)
        if port not in self._broken:
            steps = self._broken[port] = object()
            self._slices.start(steps, self._lose_all(port))

    # internal

    def _lose_all(self, port: MemberPort) -> Iterator[None]:
        try:
            for group in self._present():
                group.lose(port)
                if not group.has_members:
                    self._release(group)
                yield
        finally:
            self._broken.pop(port, None)

    def _end_wait(self, port: MemberPort) -> None:
        if port in self._reported:
            self._slices.start(object(), self._drop_stale(port))

    def _drop_stale(self, port: MemberPort) -> Iterator[None]:
        """Drop the edge from groups of which its present connection has no report."""
        for group in self._present():
            reported = self._reported.get(port)
            if reported is None:
                return  # the connection broke
            known = group.edges.get(port.edge_name)
            if group not in reported:
                group.stop_awaiting(port.edge_name.__eq__)
                if known is not None:
                    self._drop(group, known)
            yield
        self._reported.pop(port, None)

    def _present(self) -> Iterator[GroupCoordinator]:
        """Return the present groups; those that end before their step are left out."""
        for group in list(self._groups.values()):
            if self._groups.get(group.text) is group:
                yield group
