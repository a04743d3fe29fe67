"""
The tree of zones as its nodes tell it: every node is asked itself, all at the same time.

A node that answers tells its children; for one that does not, its parent's word of the cuts below
it stands, because grandchildren may well be alive. An address is asked once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence

import attrs

from txbroker.cli.node_calls import CALL_TIMEOUT, Channels, NoAnswer, answer
from txbroker.model.topics import is_within
from txbroker.model.zone_cut import ZoneCut
from txbroker.rpc.link_convert import cut_from_wire
from txbroker.v1 import control_pb2
from txbroker.v1.control_pb2 import StatusReply, StatusRequest


@attrs.frozen(kw_only=True)
class Branch:
    """
    A delegation that an operator took from a node, and that is not settled; `is_kept`: the node has
    what it took alone, None: it does not answer.
    """

    zone: str
    epoch: int
    node: str
    grpc: str
    is_kept: bool | None


@attrs.frozen(kw_only=True)
class HeldJournal:
    """
    What a session at the node `edge` holds back of a zone's journal: bytes, and for how long, in
    seconds. `client_id` is empty where the node has named none; `silent`: seconds since the owner
    has heard of the node.
    """

    edge: str
    client_id: str
    zone: str
    bytes: int
    age: float
    silent: float


@attrs.frozen(kw_only=True)
class BoundedTable:
    """One that grows with names from outside; `most` 0: other limits bound it."""

    name: str
    entries: int
    most: int


@attrs.frozen(kw_only=True)
class ZoneRow:
    """
    One zone and its node; a pure edge has neither zone nor epoch.

    `alive`: the node answers and serves the zone. `answers`: it answers at all. `pending`: filters
    that nodes of the tree wait to place in this zone. Rates are messages a second. `losses`:
    how many messages were dropped, by client id, for the sessions of the node that lost most.
    `reclaimed`: what was taken from nodes below this one. `held_size`: bytes of the node's journals
    that sessions keep, `held` by which of them, the most first.
    """

    zone: str | None
    node: str
    grpc: str
    epoch: int | None
    alive: bool
    answers: bool
    pending: int = 0
    clients: int = 0
    rate_in: float = 0.0
    rate_out: float = 0.0
    parent: str | None
    counters: dict[str, int] = attrs.field(factory=dict)
    losses: dict[str, int] = attrs.field(factory=dict)
    reclaimed: tuple[Branch, ...] = ()
    held_size: int = 0
    held: tuple[HeldJournal, ...] = ()
    tables: tuple[BoundedTable, ...] = ()


class TreeWalk:
    """One look at the tree below a node."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels
        self._asked: dict[str, asyncio.Task[StatusReply | None]] = {}
        self._rows: dict[tuple[bool, str], ZoneRow] = {}
        self._pending: dict[str, Counter[str]] = {}
        self._reclaimed: dict[tuple[bool, str], list[ZoneCut]] = {}

    async def below(self, address: str) -> list[ZoneRow]:
        """The node at `address` and all below it, in order of the tree; raises `NoAnswer`."""
        top = await self._status(address)
        parent = top.lineage[-1].node if top.lineage else None
        own = cut_from_wire(top.zone)
        if top.owns_zone:
            self._note_zone(own, top, parent)
        else:
            self._note_edge(own, top, parent)
        await self._visit_children(top)
        pending = sum(self._pending.values(), Counter[str]())
        await asyncio.gather(*(self._note_branches(key) for key in list(self._reclaimed)))
        rows = [attrs.evolve(row, pending=pending[row.zone or ""]) for row in self._zones()]
        return rows + [row for row in self._rows.values() if row.zone is None]

    # internal

    def _zones(self) -> list[ZoneRow]:
        zones = [row for row in self._rows.values() if row.zone is not None]
        return sorted(zones, key=lambda row: row.zone.split("/") if row.zone else [])

    async def _visit_children(self, reply: StatusReply) -> None:
        visits = []
        for child in reply.children:
            cut = cut_from_wire(child.zone)
            if child.owns_zone:
                below = [cut_from_wire(inner) for inner in child.below]
                visits.append(self._visit_zone(cut, below, reply.node))
            else:
                visits.append(self._visit_edge(cut, reply.node))
        await asyncio.gather(*visits)

    async def _visit_zone(self, cut: ZoneCut, below: Sequence[ZoneCut], parent: str) -> None:
        if (True, cut.apex) in self._rows:
            return
        for known in (cut, *below):
            self._ask(known.grpc)
        reply = await self._reply_of(cut)
        row = self._note_zone(cut, reply, parent)
        if row.alive and reply is not None:
            await self._visit_children(reply)
            return
        direct = [c for c in below if not any(c != d and is_within(c.apex, d.apex) for d in below)]
        await asyncio.gather(
            *(self._visit_zone(c, _inside(below, c.apex), cut.node) for c in direct)
        )

    async def _visit_edge(self, cut: ZoneCut, parent: str) -> None:
        self._note_edge(cut, await self._reply_of(cut), parent)

    def _note_zone(self, cut: ZoneCut, reply: StatusReply | None, parent: str | None) -> ZoneRow:
        serves = (
            reply is not None and reply.owns_zone and reply.serving and reply.zone.apex == cut.apex
        )
        epoch = reply.zone.epoch if reply is not None and serves else cut.epoch
        row = self._row(cut, reply, parent, zone=cut.apex, epoch=epoch, alive=serves)
        self._rows[True, cut.apex] = row
        if reply is not None and serves and reply.reclaimed:
            self._reclaimed[True, cut.apex] = [cut_from_wire(one) for one in reply.reclaimed]
        return row

    async def _note_branches(self, key: tuple[bool, str]) -> None:
        cuts = self._reclaimed[key]
        replies = await asyncio.gather(*(self._reply_of(cut) for cut in cuts))
        branches = tuple(
            Branch(
                zone=cut.apex,
                epoch=cut.epoch,
                node=cut.node,
                grpc=cut.grpc,
                is_kept=None if reply is None else reply.divergent == cut.epoch,
            )
            for cut, reply in zip(cuts, replies, strict=True)
        )
        self._rows[key] = attrs.evolve(self._rows[key], reclaimed=branches)

    def _note_edge(self, cut: ZoneCut, reply: StatusReply | None, parent: str | None) -> None:
        alive = reply is not None
        row = self._row(cut, reply, parent, zone=None, epoch=None, alive=alive)
        self._rows[False, cut.node] = row

    def _row(
        self,
        cut: ZoneCut,
        reply: StatusReply | None,
        parent: str | None,
        *,
        zone: str | None,
        epoch: int | None,
        alive: bool,
    ) -> ZoneRow:
        row = ZoneRow(
            zone=zone,
            node=cut.node,
            grpc=cut.grpc,
            epoch=epoch,
            alive=alive,
            answers=reply is not None,
            parent=parent,
        )
        if reply is None:
            return row
        self._pending[reply.node] = Counter({p.zone: p.filters for p in reply.pending})
        return attrs.evolve(
            row,
            clients=reply.clients,
            rate_in=reply.rate_in,
            rate_out=reply.rate_out,
            counters=dict(sorted(reply.counters.items())),
            losses={loss.client_id: loss.dropped for loss in reply.losses},
            held_size=reply.held_size,
            held=tuple(_held(one) for one in reply.held),
            tables=tuple(_table(one) for one in reply.tables),
        )

    async def _reply_of(self, cut: ZoneCut) -> StatusReply | None:
        """What the node of this cut says; None when it, or anybody but it, answers there."""
        reply = await self._ask(cut.grpc)
        return reply if reply is not None and reply.node == cut.node else None

    def _ask(self, address: str) -> asyncio.Task[StatusReply | None]:
        task = self._asked.get(address)
        if task is None:
            task = self._asked[address] = asyncio.ensure_future(self._status_or_none(address))
        return task

    async def _status_or_none(self, address: str) -> StatusReply | None:
        try:
            return await self._status(address)
        except NoAnswer:
            return None

    async def _status(self, address: str) -> StatusReply:
        call = self._channels.stub(address).Status(StatusRequest(), timeout=CALL_TIMEOUT)
        return await answer(address, call)


def _inside(cuts: Iterable[ZoneCut], apex: str) -> list[ZoneCut]:
    """The cuts strictly below an apex."""
    return [cut for cut in cuts if cut.apex != apex and is_within(cut.apex, apex)]


def _held(one: control_pb2.Held) -> HeldJournal:
    return HeldJournal(
        edge=one.edge,
        client_id=one.client_id,
        zone=one.zone,
        bytes=one.size,
        age=one.age,
        silent=one.silent,
    )


def _table(one: control_pb2.TableSize) -> BoundedTable:
    return BoundedTable(name=one.name, entries=one.entries, most=one.most)
