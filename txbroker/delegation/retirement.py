"""
The retirement of a node (`txbroker retire`): of its roles besides a zone, and of a pure edge.

Theory of operation. All roles end before the zone goes back, so that deleting the node's data loses
nothing. Until then the node may still stay: moved sessions and publishes are safe at their new
places. The steps of `leave`:

1. Clients are disconnected, and new clients are turned away: to the heir, if they speak MQTT 5.0.
2. All publishes and wills of the node reach their owners, as long as some advance.
3. The kept sessions move to the heir, one by one.

A pure edge has no zone to give back. `leave_tree` asks the parent for its name, moves all roles to
the parent, and leaves the members. Then the parent records durably that the node is no member.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Protocol

import attrs

from txbroker.delegation.hand_back_child import RetireError
from txbroker.delegation.procedure import (
    AskParentStatus,
    AwaitCondition,
    AwaitStored,
    LeaveMembers,
    MoveSessions,
    ParentStatus,
    Procedure,
    report,
)
from txbroker.delegation.timeouts import DRAIN_PATIENCE


@attrs.frozen(kw_only=True)
class UnfinishedWork:
    """Messages that wait here, by zone, and wills that are not published yet."""

    messages: dict[str, int]
    wills: int

    @property
    def is_none(self) -> bool:
        """True if nothing waits here."""
        return not self.messages and not self.wills

    def describe(self) -> str:
        """Return one line for the operator."""
        if not self.messages:
            return f"{self.wills} wills of earlier connections are not published yet; try again"
        zone, count = next(iter(self.messages.items()))
        others = len(self.messages) - 1
        more = f", and others for {others} more zones" if others else ""
        return (
            f"{count} messages for zone {zone!r} wait here{more}; they go when its node can be"
            " reached (`txbroker tree`)"
        )


class LeavingNode(Protocol):
    """The shell of the node that retires."""

    @property
    def sessions(self) -> int:
        """Return the number of kept sessions."""

    def turn_clients_away(self, elsewhere: str) -> None:
        """Disconnect all clients, and accept none; they may go `elsewhere`, unless ""."""

    def unfinished(self) -> UnfinishedWork:
        """Return what other nodes do not have yet."""

    def is_member(self, node: str) -> bool:
        """True if this node knows the node as a member."""

    def resign(self) -> None:
        """Remove this node from the members: other nodes no longer rely on it."""

    def undo(self) -> None:
        """Undo the departure: the node accepts clients again and is a member."""


class Retirement:
    """The retirements of one node."""

    def __init__(self, node: LeavingNode) -> None:
        self._node = node

    def leave(self, heir: str, elsewhere: str | None = None) -> Procedure[None]:
        """
        Close client connections, await all their publishes, and move their sessions to `heir`.

        `elsewhere`: where clients of the heir connect; None: ask it. Raises `RetireError` if a
        publish or a session remains here.
        """
        yield from report("retire.started", heir=heir, sessions=self._node.sessions)
        if elsewhere is None:
            elsewhere = yield from self._ask_where_clients_go(heir)
        self._node.turn_clients_away(elsewhere)
        yield from self._await_publishes()
        yield AwaitStored(seconds=None)
        left: str = yield MoveSessions(heir=heir)
        if left:
            raise RetireError(f"{left}; see `txbroker sessions`")
        yield AwaitStored(seconds=None)

    def leave_tree(self, node: str, parent: str, children: Collection[str]) -> Procedure[None]:
        """
        Move all state that other nodes need, and leave the members; raises `RetireError`.

        `children` are the nodes that have joined this pure edge, which is `node`.
        """
        if children:
            raise RetireError(
                f"node {min(children)!r} has joined here; give it another `parent` first"
            )
        is_done = False
        try:
            status = yield from self._ask_heir(node, parent)
            yield from self.leave(status.node, status.mqtt)
            self._node.resign()
            yield AwaitStored(seconds=None)
            reason: str = yield LeaveMembers(node=node)
            if reason:
                raise RetireError(reason)
            is_done = True
        except ConnectionError as error:
            raise RetireError(f"parent {parent} cannot be reached: {error}") from error
        finally:
            if not is_done:
                self._node.undo()
        yield from report("edge.retired", heir=status.node)

    # internal

    def _ask_heir(self, node: str, parent: str) -> Procedure[ParentStatus]:
        status: ParentStatus = yield AskParentStatus()
        if not self._node.is_member(status.node):
            raise RetireError(f"node {node!r} has not joined its parent yet")
        if status.is_earlier:
            raise RetireError(
                f"parent {parent} runs an earlier txbroker, which lets no node without"
                " a zone go; upgrade it first"
            )
        return status

    def _ask_where_clients_go(self, heir: str) -> Procedure[str]:
        """Return where clients of the heir connect, which clients are told; "": unknown."""
        try:
            status: ParentStatus = yield AskParentStatus()
        except ConnectionError:
            return ""
        return status.mqtt if status.node == heir else ""

    def _await_publishes(self) -> Procedure[None]:
        """
        Await all unfinished publishes and wills; raises `RetireError` if none advances for a while.
        """
        before = UnfinishedWork(messages={}, wills=0)
        while not (left := self._node.unfinished()).is_none:
            if left == before:
                raise RetireError(left.describe())
            before = left
            yield AwaitCondition(
                condition=partial(self._has_advanced, before), seconds=DRAIN_PATIENCE
            )

    def _has_advanced(self, before: UnfinishedWork) -> bool:
        return self._node.unfinished() != before
