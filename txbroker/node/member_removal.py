"""
SHELL: removes a member that is lost for good, at an operator's command.

The removal is durable at this node before the answer. Then it spreads as all news of members do,
and reaches a node that is away when that node returns. A removed member that returns joins anew
(protocol rule 36).
"""

from __future__ import annotations

import asyncio

import grpc.aio

from txbroker.delegation.node_grant import NodeGrant
from txbroker.delegation.rpc.join_server import JoinServer
from txbroker.directory.member_admission import MemberAdmission
from txbroker.directory.members import Member, Members
from txbroker.directory.rpc.directory_calls import Commit
from txbroker.model.zone_cut import ZoneCut
from txbroker.rpc.channels import CALL_TIMEOUT, Channels
from txbroker.runtime.structured_log import get_logger
from txbroker.v1 import control_pb2

log = get_logger()


class ForgetError(Exception):
    """The member cannot be removed; the message is one line with the reason."""


class MemberRemoval:
    """Removes members by command."""

    def __init__(
        self,
        *,
        node_grant: NodeGrant,
        members: Members,
        admission: MemberAdmission,
        parent: JoinServer,
        channels: Channels,
        commit: Commit,
    ) -> None:
        self._node_grant = node_grant
        self._members = members
        self._admission = admission
        self._parent = parent
        self._channels = channels
        self._commit = commit

    async def forget(self, name: str, *, leaves: bool) -> tuple[ZoneCut, ...]:
        """
        Remove the member; return the zones still delegated to it, as far as this node knows.

        `leaves`: True if the node itself asks. The node then still answers, and may have asked
        before. A member that has not answered this node is removed, too, since the others count
        it. Raises `ForgetError`.
        """
        member = self._admission.find(name)
        if name == self._members.name:
            is_root = self._node_grant.zone == ""
            remedy = _ends(self._node_grant.grpc, is_root)
            raise ForgetError(f"this is node {name!r} itself; {remedy}")
        if member is None and not leaves:
            raise ForgetError(f"no member is called {name!r}; {self._names()}")
        if member is not None:
            if not leaves:
                await self._check_lost(member)
            self._admission.remove(name)
            log.warning("member.forgotten", peer=name, leaves=leaves)
        await self._safe()
        return self._zones(name)

    # internal

    async def _check_lost(self, member: Member) -> None:
        is_alive, is_root = self._parent.is_alive(member.name), False
        if not is_alive:
            try:
                reply = await self._channels.stub(member.grpc).Status(
                    control_pb2.StatusRequest(), timeout=CALL_TIMEOUT
                )
            except grpc.aio.AioRpcError:
                return
            is_alive = reply.node == member.name
            is_root = reply.owns_zone and not reply.zone.apex
        if is_alive:
            remedy = _ends(member.grpc, is_root)
            raise ForgetError(f"node {member.name!r} at {member.grpc} answers; {remedy}")

    def _names(self) -> str:
        names = sorted(member.name for member in self._members.all if not member.removed)
        more = f" and {len(names) - 20} more" if len(names) > 20 else ""
        return f"there are {', '.join(names[:20])}{more}"

    def _zones(self, name: str) -> tuple[ZoneCut, ...]:
        return tuple(cut for cut in self._node_grant.table.below() if cut.node == name)

    async def _safe(self) -> None:
        done = asyncio.Event()
        self._commit.when_durable(done.set)
        await done.wait()


def _ends(grpc: str, is_root: bool) -> str:
    """Return the way to remove a live node; `retire` refuses the root, which has no parent."""
    if is_root:
        return "it has the root zone, which no other node can take: stop it instead"
    return f"let it go with: txbroker retire {grpc} (or stop it first)"
