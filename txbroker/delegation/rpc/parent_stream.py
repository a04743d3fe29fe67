"""SHELL: the child's end of a join stream after the grant: signs of life, and news both ways."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from txbroker.delegation.join_child import check_lineage
from txbroker.delegation.node_grant import NodeGrant
from txbroker.delegation.timeouts import ALIVE_EVERY, LONGEST_PAUSE, SILENCE
from txbroker.directory.members import Members
from txbroker.directory.rpc.directory_convert import members_from_wire, members_to_wire
from txbroker.model.errors import PeerError
from txbroker.model.zone_cut import ZoneCut
from txbroker.rpc.link_convert import cut_from_wire, cut_to_wire
from txbroker.rpc.streams import STREAM_ERRORS, read, write
from txbroker.runtime.flush_queue import FlushQueue
from txbroker.runtime.structured_log import get_logger
from txbroker.v1 import control_pb2
from txbroker.v1.control_pb2 import JoinRequest

log = get_logger()

CUT_PAUSE = 0.0001
"""
Seconds between two reports of the cuts below, per cut: the parent reads every cut of a report.
"""


class ParentStream:
    """
    The streams of a child to its parent, one after the other.

    `move` saves another parent, which the present one names. `is_ending`: the stream shall end.
    """

    def __init__(
        self,
        *,
        node_grant: NodeGrant,
        members: Members,
        flush_queue: FlushQueue,
        move: Callable[[ZoneCut], Awaitable[None]],
        on_lineage: Callable[[], None],
    ) -> None:
        self.is_ending = False
        self._node_grant = node_grant
        self._members = members
        self._flush_queue = flush_queue
        self._move = move
        self._on_lineage = on_lineage
        self._news = asyncio.Event()
        self._told_below: tuple[ZoneCut, ...] = ()
        node_grant.when_changed(self._news.set)
        members.when_changed(self._news.set)

    def end(self) -> None:
        """End the stream soon, even if a request is under way."""
        self.is_ending = True
        self._news.set()

    async def run(self, call: Any, told: tuple[ZoneCut, ...]) -> str:
        """
        Send signs of life and receive news; return the reason of the end: moved, lost, ended.

        `told` are the cuts below as the child has announced them.
        """
        self._told_below = told
        talker = asyncio.ensure_future(self._talk_to_the_end(call))
        try:
            while True:
                try:
                    reply = await read(call, SILENCE)
                except PeerError:
                    raise
                except STREAM_ERRORS:
                    return "lost"
                if reply is None:
                    return "lost"
                match reply.WhichOneof("kind"):
                    case "lineage":
                        lineage = [cut_from_wire(cut) for cut in reply.lineage.lineage]
                        check_lineage(self._node_grant, lineage)
                        self._node_grant.set_lineage(lineage)
                        self._on_lineage()
                        self._flush_queue.end()
                    case "members":
                        self._learn(reply.members, call)
                        self._flush_queue.end()
                    case "moved":
                        await self._move(cut_from_wire(reply.moved.parent))
                        return "moved"
                if talker.done():
                    return "ended" if self.is_ending else "lost"
        finally:
            talker.cancel()

    # internal

    def _learn(self, told: control_pb2.Members, call: Any) -> None:
        members = members_from_wire(told)
        mine = self._members.get(self._members.name)
        if mine is not None and any(
            member.removed and member.name == mine.name and member.version > mine.version
            for member in members
        ):
            log.warning("member.rejoined", reason="it was forgotten, and joins anew")
        if told.complete:
            self._members.merge_list(members, call)
        else:
            self._members.merge(members, call)

    async def _talk_to_the_end(self, call: Any) -> None:
        try:
            await self._talk(call)
        except STREAM_ERRORS:
            pass  # the reader of the stream sees its end, too

    async def _talk(self, call: Any) -> None:
        told_members = 0
        now = asyncio.get_running_loop().time
        wait, due = ALIVE_EVERY, now()
        while not self.is_ending:
            try:
                await asyncio.wait_for(self._news.wait(), wait)
                self._news.clear()
            except TimeoutError:
                pass
            while not self._members.is_told(told_members):
                news, told_members = self._members.news_since(told_members, call)
                if news:
                    members = members_to_wire(news, complete=False)
                    await write(call, JoinRequest(members=members), SILENCE)
            below = self._node_grant.table.below()
            wait = ALIVE_EVERY
            if below == self._told_below:
                await write(call, JoinRequest(alive=control_pb2.Alive()), SILENCE)
            elif now() < due:
                wait = due - now()
            else:
                due = now() + min(len(below) * CUT_PAUSE, LONGEST_PAUSE)
                self._told_below = below
                wire = [cut_to_wire(cut) for cut in below]
                told = control_pb2.Below(below=wire, epoch=self._node_grant.epoch)
                await write(call, JoinRequest(below=told), SILENCE)
