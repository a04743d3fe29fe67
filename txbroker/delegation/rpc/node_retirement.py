"""
SHELL: the roles of a retiring node besides its zone: clients, outboxes, sessions, membership.

All of them end before the zone goes back, so that deleting the node's data loses nothing. Until
then the node may still stay: moved sessions and publishes are safe at their new places.
"""

from __future__ import annotations

import asyncio

from txbroker.delegation.rpc.timeouts import DRAIN_PATIENCE
from txbroker.delegation.state.node_grant import NodeGrant
from txbroker.directory.directory import Directory
from txbroker.directory.members import Members
from txbroker.directory.rpc.directory_service import DirectoryService
from txbroker.edge.sessions.edge import Edge
from txbroker.mqtt.transport.service import MqttService
from txbroker.runtime.structured_log import get_logger
from txbroker.storage.committer import Committer

log = get_logger()

LOOK_EVERY = 0.05
"""Seconds between two checks for unfinished publishes."""


class RetireError(Exception):
    """The zone cannot be given back; one line with the reason. No promise to others is broken."""


class NodeRetirement:
    """The end of a node's roles besides its zone."""

    def __init__(
        self,
        *,
        node_grant: NodeGrant,
        members: Members,
        mqtt: MqttService,
        edge: Edge,
        directory: Directory,
        shell: DirectoryService,
        committer: Committer,
    ) -> None:
        self._node_grant = node_grant
        self._members = members
        self._mqtt = mqtt
        self._edge = edge
        self._directory = directory
        self._shell = shell
        self._committer = committer

    async def clear(self, heir: str) -> None:
        """
        Close client connections, await all their publishes, and move their sessions to `heir`.

        Raises `RetireError` if a publish or a session remains here.
        """
        log.info("retire.started", heir=heir, sessions=len(self._directory.ownership.held))
        self._mqtt.close_all()
        await self._see_publishes_off()
        await self._committer.drain()
        left = await self._move_sessions(heir)
        if left:
            raise RetireError(f"{left}; see `txbroker sessions`")
        await self._committer.drain()

    def resign(self) -> None:
        """Remove this node from the members: other nodes no longer rely on it."""
        self._members.remove(self._members.name)

    async def await_durable(self) -> None:
        """Return when all changes so far are durable."""
        await self._committer.drain()

    def undo(self) -> None:
        """Undo the departure: the node accepts clients again and is a member."""
        self._mqtt.is_leaving = False
        self._members.announce(self._node_grant.grpc)

    async def _move_sessions(self, heir: str) -> str:
        outcome: list[str] = []
        ended = asyncio.Event()

        def finish(left: str) -> None:
            outcome.append(left)
            ended.set()

        self._shell.run(self._directory.evacuate(heir, lambda: self._mqtt.is_leaving), finish)
        await ended.wait()
        return outcome[0]

    async def _see_publishes_off(self) -> None:
        """
        Await all unfinished publishes and wills; raises `RetireError` if none advances for a while.
        """
        loop = asyncio.get_running_loop()
        before, since = None, loop.time()
        while True:
            left = self._edge.unpublished()
            wills = self._directory.own_wills.count
            if not left and not wills:
                return
            if (left, wills) != before:
                before, since = (left, wills), loop.time()
            if loop.time() - since >= DRAIN_PATIENCE:
                raise RetireError(_describe(left, wills))
            await asyncio.sleep(LOOK_EVERY)


def _describe(left: dict[str, int], wills: int) -> str:
    if not left:
        return f"{wills} wills of earlier connections are not published yet; try again"
    zone, count = next(iter(left.items()))
    more = f", and others for {len(left) - 1} more zones" if len(left) > 1 else ""
    return (
        f"{count} messages for zone {zone!r} wait here{more}; they go when its node can be reached"
        " (`txbroker tree`)"
    )
