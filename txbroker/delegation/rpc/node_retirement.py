"""
SHELL: what a node that is retired has beside its zone: clients, outboxes, sessions, its membership.

All of it is done with before the zone goes back, so that nothing is missing when the node's data is
deleted. Until then the node may stay: whatever has gone by then is safe where it is.
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
"""Seconds between two looks at what is on its way."""


class RetireError(Exception):
    """The zone cannot be given back; one line why. Nothing that anybody relies on has changed."""


class NodeRetirement:
    """The end of a node's other roles; `heir` is the node that gets its sessions."""

    def __init__(
        self,
        *,
        standing: NodeGrant,
        members: Members,
        mqtt: MqttService,
        edge: Edge,
        directory: Directory,
        shell: DirectoryService,
        committer: Committer,
    ) -> None:
        self._standing = standing
        self._members = members
        self._mqtt = mqtt
        self._edge = edge
        self._directory = directory
        self._shell = shell
        self._committer = committer

    async def clear(self, heir: str) -> None:
        """
        Close the clients' connections, see all that they published off, give their sessions away.

        Raises `RetireError` where something stays here.
        """
        log.info("retire.leaving", heir=heir, sessions=len(self._directory.holdings.held))
        self._mqtt.leave()
        await self._see_publishes_off()
        await self._committer.drain()
        left = await self._give_sessions_away(heir)
        if left:
            raise RetireError(f"{left}; see `txbroker sessions`")
        await self._committer.drain()

    def resign(self) -> None:
        """The node is no member of the tree any more: nobody counts on it."""
        self._members.remove(self._members.name)

    async def settle(self) -> None:
        """Return when all that was changed so far is durable."""
        await self._committer.drain()

    def stay(self) -> None:
        """The node does not go after all."""
        self._mqtt.is_leaving = False
        self._members.announce(self._standing.grpc)

    async def _give_sessions_away(self, heir: str) -> str:
        outcome: list[str] = []
        ended = asyncio.Event()

        def finish(left: str) -> None:
            outcome.append(left)
            ended.set()

        self._shell.run(self._directory.leave(heir, lambda: self._mqtt.is_leaving), finish)
        await ended.wait()
        return outcome[0]

    async def _see_publishes_off(self) -> None:
        """Raises `RetireError` where nothing of it moves for a while."""
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
