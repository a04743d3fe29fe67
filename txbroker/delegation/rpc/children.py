"""SHELL: the nodes that have joined here, and the check for two living nodes of one name."""

from __future__ import annotations

import asyncio

import grpc.aio

from txbroker.delegation.node_grant import NodeGrant
from txbroker.delegation.timeouts import ALIVE_EVERY
from txbroker.directory.members import Members
from txbroker.directory.rpc.directory_convert import members_to_wire
from txbroker.rpc.channels import CALL_TIMEOUT, Channels
from txbroker.v1 import control_pb2
from txbroker.v1.control_pb2 import JoinReply

SIGN_OF_LIFE = 2.5 * ALIVE_EVERY
"""Seconds within which a living child has sent a message."""


NEWS = JoinReply()
"""Entry of a child's outbox: the member list has news."""


class Child:
    """
    A node that has joined here, with the outbox of its stream.

    `told` is the last change of the member list that the child knows. `is_complete`: the child
    knows that the list was complete. News of members are not queued: the stream computes them when
    the child can receive them.

    `life` names the process and data folder of the stream; each message of the child sets `signs`.
    """

    def __init__(self, announce: control_pb2.Announce, epoch: int) -> None:
        self.node = announce.node
        self.zone = announce.zone if announce.owns_zone else None
        self.epoch = epoch
        self.grpc = announce.grpc
        self.life = (announce.identity, announce.life)
        self.signs = asyncio.Event()
        self.told = 0
        self.is_complete = False
        self._has_news = False
        self.outbox: asyncio.Queue[JoinReply | None] = asyncio.Queue(maxsize=1_000)

    def send(self, reply: JoinReply | None) -> None:
        """
        Queue a reply to the child; None ends its stream. A child with a full outbox is cut off.
        """
        while self.outbox.full():
            self.outbox.get_nowait()
            reply = None
        self.outbox.put_nowait(reply)

    def wake(self) -> None:
        """Queue the mark `NEWS`: the member list may have news."""
        if not self._has_news and not self.outbox.full():
            self._has_news = True
            self.outbox.put_nowait(NEWS)

    def members(self, members: Members) -> JoinReply | None:
        """
        Return members that the child does not know, or the first of many; None if it knows all.
        """
        self._has_news = False
        news, told = members.news_since(self.told, self)
        is_last = members.is_told(told)
        is_complete = members.is_joined and is_last
        is_news = bool(news) or is_complete != self.is_complete
        self.told, self.is_complete = told, is_complete
        if not is_last:
            self.wake()
        return JoinReply(members=members_to_wire(news, complete=is_complete)) if is_news else None

    async def shows_life(self) -> bool:
        """
        True if the child soon sends a message on its stream, as a living child does each second.
        """
        self.signs.clear()
        try:
            await asyncio.wait_for(self.signs.wait(), SIGN_OF_LIFE)
        except TimeoutError:
            return False
        return True


async def other_life(
    announce: control_pb2.Announce, before: Child | None, members: Members, channels: Channels
) -> str | None:
    """
    Return the address of another living process with the announcer's name; None if none is found.

    The other process may have joined here (`before`) or in another branch. The announcer's own
    predecessor is dead: the announcer has its address now.
    """
    life = (announce.identity, announce.life)
    if not announce.life:
        return None  # an older node does not report its life
    is_elsewhere = before is not None and before.grpc != announce.grpc and before.life != life
    if before is not None and is_elsewhere and await before.shows_life():
        return before.grpc
    known = members.get(announce.node)
    if known is None or known.grpc == announce.grpc:
        return None
    try:
        stub = channels.stub(known.grpc, announce.node)
        reply = await stub.Status(control_pb2.StatusRequest(), timeout=CALL_TIMEOUT)
    except grpc.aio.AioRpcError:
        return None
    is_other = reply.node == announce.node and (reply.who.identity, reply.who.life) != life
    return known.grpc if is_other else None


def who_to_wire(node_grant: NodeGrant) -> control_pb2.Who:
    """Return this node's name, zone, identity and life."""
    return control_pb2.Who(
        node=node_grant.node,
        owns_zone=node_grant.zone is not None,
        zone=node_grant.zone or "",
        identity=node_grant.identity,
        life=node_grant.life,
    )
