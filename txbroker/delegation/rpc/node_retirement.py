"""
SHELL: the roles of a retiring node besides its zone: clients, outboxes, sessions, membership.

`delegation.retirement` has the steps.
"""

from __future__ import annotations

import asyncio

from txbroker.delegation.node_grant import NodeGrant
from txbroker.delegation.retirement import Retirement, UnfinishedWork
from txbroker.directory.directory import Directory
from txbroker.directory.members import Members
from txbroker.directory.rpc.directory_service import DirectoryService
from txbroker.edge.sessions.edge import Edge
from txbroker.mqtt.transport.service import MqttService


class NodeRetirement:
    """The end of a node's roles besides its zone; `procedures` has the steps."""

    def __init__(
        self,
        *,
        node_grant: NodeGrant,
        members: Members,
        mqtt: MqttService,
        edge: Edge,
        directory: Directory,
        shell: DirectoryService,
    ) -> None:
        self.procedures = Retirement(self)
        self._node_grant = node_grant
        self._members = members
        self._mqtt = mqtt
        self._edge = edge
        self._directory = directory
        self._shell = shell

    # from the procedures

    @property
    def sessions(self) -> int:
        """Return the number of kept sessions."""
        return len(self._directory.ownership.held)

    def turn_clients_away(self, elsewhere: str) -> None:
        """Disconnect all clients, and accept none; they may go `elsewhere`, unless ""."""
        self._mqtt.close_all(elsewhere)

    def unfinished(self) -> UnfinishedWork:
        """Return what other nodes do not have yet."""
        wills = self._directory.own_wills.count
        return UnfinishedWork(messages=self._edge.unpublished(), wills=wills)

    def is_member(self, node: str) -> bool:
        """True if this node knows the node as a member."""
        return self._members.get(node) is not None

    def resign(self) -> None:
        """Remove this node from the members: other nodes no longer rely on it."""
        self._members.remove(self._members.name)

    def undo(self) -> None:
        """Undo the departure: the node accepts clients again and is a member."""
        self._mqtt.is_leaving = False
        self._members.announce(self._node_grant.grpc)

    # from the runner

    async def move_sessions(self, heir: str) -> str:
        """Move all sessions to `heir`; return "", or one line that names what cannot move."""
        ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def finish(left: str) -> None:
            if not ended.cancelled():
                ended.set_result(left)

        self._shell.run(self._directory.evacuate(heir, lambda: self._mqtt.is_leaving), finish)
        return await ended
