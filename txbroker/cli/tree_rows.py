"""
SHELL: the tree of zones as its nodes tell it, a row for each. asyncio.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress

import attrs

from txbroker.cli.node_calls import Channels, NoAnswer, status_of
from txbroker.delegation.resolution import start_at
from txbroker.delegation.tree_walk import TreePlace, TreeWalk
from txbroker.model.zone_cut import ZoneCut
from txbroker.rpc.link_convert import cut_from_wire
from txbroker.rpc.zone_convert import node_from_wire
from txbroker.v1 import control_pb2
from txbroker.v1.control_pb2 import StatusReply


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
    The part of a zone's journal that a session at the node `edge` holds back: bytes, and for how
    long, in seconds. `client_id` is empty where the node has named none; `silent`: seconds since
    the owner has heard of the node.
    """

    edge: str
    client_id: str
    zone: str
    bytes: int
    age: float
    silent: float


@attrs.frozen(kw_only=True)
class BoundedTable:
    """A table that grows with names from outside; `most` 0: other limits bound it."""

    name: str
    entries: int
    most: int


@attrs.frozen(kw_only=True)
class ZoneRow:
    """
    A zone and its node; a pure edge has neither zone nor epoch.

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


async def rows_below(channels: Channels, address: str) -> list[ZoneRow]:
    """The node at `address` and all below it, in order of the tree; raises `NoAnswer`."""
    walk = TreeWalk([], lambda node: (*node.below, *node.edges, *node.reclaimed))
    replies: dict[str, StatusReply] = {}

    async def accept(cut: ZoneCut, reply: StatusReply) -> None:
        replies[cut.grpc] = reply
        walk.accept_answer(cut, node_from_wire(reply, cut.grpc))
        # At once, not round by round: a frozen node would hold up those below others.
        await asyncio.gather(*map(visit, walk.next_queries()))

    async def visit(cut: ZoneCut) -> None:
        with suppress(NoAnswer):
            await accept(cut, await status_of(channels, cut.grpc))

    def reply_of(node: str) -> StatusReply | None:
        found = walk.answers.get(node)
        return None if found is None else replies[found.own.grpc]

    top = await status_of(channels, address)
    await accept(start_at(address), top)
    places = walk.places(attrs.evolve(cut_from_wire(top.zone), node=top.node))
    pending: Counter[str] = Counter()
    for reply in filter(None, map(reply_of, {place.cut.node for place in places})):
        pending.update({waiting.zone: waiting.filters for waiting in reply.pending})
    return [_row(place, pending, reply_of) for place in places]


def _row(
    place: TreePlace, pending: Mapping[str, int], reply_of: Callable[[str], StatusReply | None]
) -> ZoneRow:
    reply = reply_of(place.cut.node) or StatusReply()
    reclaimed = place.answer.reclaimed if place.answer and place.is_alive else ()
    return ZoneRow(
        zone=place.zone,
        node=place.cut.node,
        grpc=place.cut.grpc,
        epoch=None if place.zone is None else place.cut.epoch,
        alive=place.is_alive,
        answers=place.answer is not None,
        pending=0 if place.zone is None else pending.get(place.zone, 0),
        clients=reply.clients,
        rate_in=reply.rate_in,
        rate_out=reply.rate_out,
        parent=place.parent,
        counters=dict(sorted(reply.counters.items())),
        losses={loss.client_id: loss.dropped for loss in reply.losses},
        reclaimed=tuple(_branch(cut, reply_of(cut.node)) for cut in reclaimed),
        held_size=reply.held_size,
        held=tuple(_held(one) for one in reply.held),
        tables=tuple(_table(one) for one in reply.tables),
    )


def _branch(cut: ZoneCut, reply: StatusReply | None) -> Branch:
    return Branch(
        zone=cut.apex,
        epoch=cut.epoch,
        node=cut.node,
        grpc=cut.grpc,
        is_kept=None if reply is None else reply.divergent == cut.epoch,
    )


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
