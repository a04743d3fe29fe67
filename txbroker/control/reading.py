"""
SHELL: journals read for sessions that are behind: this node's own, and others' by `Read`.

Both give the same: the durable QoS 1/2 records of a part in a range of offsets. A part is asked for
where its zone is served now; who has served it before may have it, too.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import grpc
import grpc.aio

from txbroker.aio import Tasks
from txbroker.authority.authority import Authority
from txbroker.authority.journal import Chunk, Records
from txbroker.control.channels import Channels
from txbroker.control.convert import passages_from_wire, passages_to_wire
from txbroker.core import StoredRecords
from txbroker.delegation.passage import FOREVER
from txbroker.edge.chunks import SPAN, Missing
from txbroker.edge.zonemap import ZoneMap
from txbroker.place import PartKey
from txbroker.standing import Standing
from txbroker.store.disk import Disk
from txbroker.store.records import to_batch
from txbroker.topics import is_within
from txbroker.v1 import control_pb2

Done = Callable[[Chunk | Missing], None]

READ_TIMEOUT = 30.0
"""Seconds that a reply may take: it can be one message as large as there are any."""


class JournalReader:
    """The `Reader` of a node's sessions, and what it answers to other nodes."""

    def __init__(
        self,
        *,
        disk: Disk,
        authority: Authority | None,
        standing: Standing,
        channels: Channels,
        tasks: Tasks,
    ) -> None:
        self._disk = disk
        self._authority = authority
        self._table = standing.table
        self._channels = channels
        self._tasks = tasks
        self._zones: ZoneMap | None = None

    def wire(self, zones: ZoneMap) -> None:
        """Who serves which zone."""
        self._zones = zones

    # from the sessions' backlog (Reader)

    def read(self, part: PartKey, after: int, through: int, done: Done) -> None:
        """The QoS 1/2 records above `after` up to `through`, as far as they are durable."""
        found = self.local(part, after, through)
        if found is not None:
            done(found)
            return
        self._tasks.start(self._ask(part, after, through, done))

    # from the servicer

    def local(self, part: PartKey, after: int, through: int) -> Chunk | None:
        """The records, where this node keeps the part; None where it does not."""
        kept = self._disk.journals.get(part)
        if kept is None:
            return None
        authority = self._authority
        is_own = authority is not None and part.zone == authority.apex
        if authority is not None and is_own and part.epoch == authority.epoch:
            bound = authority.delivered
            is_closed = not authority.serving
        else:
            # The own zone's part may go on when the zone is open.
            is_closed = authority is None or not is_own or part.epoch < authority.epoch
            bound = FOREVER
        through = max(min(through, bound), after)
        found = self._disk.read(kept, after, through, SPAN, bound=bound)
        # The fence of a part that ended may lie behind its last record.
        looked = FOREVER - 1 if is_closed and found.through >= found.last else found.through
        met = tuple(p for p in self._table.passages() if p.is_met(part, after, looked))
        if is_closed or met:
            found = attrs.evolve(found, is_closed=is_closed, passages=met)
        return found

    def answer(self, request: control_pb2.ReadRequest) -> control_pb2.ReadReply:
        """What another node asks for."""
        part = PartKey(request.zone, request.epoch)
        found = self.local(part, request.after, request.through)
        if found is None:
            return control_pb2.ReadReply(
                kept=False,
                cut_off=self._is_cut_off(part),
                elsewhere=self._table.lookup(part.zone) is not None,
            )
        return control_pb2.ReadReply(
            kept=True,
            through=found.through,
            first=found.first,
            offsets=found.records.stored.offsets(),
            packets=found.records.stored.packets(),
            last=found.last,
            rest=found.rest,
            closed=found.is_closed,
            passages=passages_to_wire(found.passages),
        )

    # internal

    async def _ask(self, part: PartKey, after: int, through: int, done: Done) -> None:
        """The zone's own node first, then those above: a part stays where its zone went back to."""
        request = control_pb2.ReadRequest(
            zone=part.zone, epoch=part.epoch, after=after, through=through
        )
        assert self._zones is not None
        is_owner_known = self._zones.get(part.zone) is not None
        found: Chunk | Missing = Missing.GONE if self._is_known(part.zone) else Missing.UNREACHABLE
        if self._is_cut_off(part):
            found = Missing.CUT_OFF
        for address in self._addresses(part.zone):
            try:
                reply = await self._channels.stub(address).Read(request, timeout=READ_TIMEOUT)
            except grpc.aio.AioRpcError:
                found = Missing.UNREACHABLE
                continue
            if reply.kept:
                found = _chunk(reply)
                break
            if reply.cut_off:
                found = Missing.CUT_OFF
            elif reply.elsewhere and not is_owner_known:
                found = Missing.UNREACHABLE  # who serves it is not known here yet
        done(found)

    def _is_cut_off(self, part: PartKey) -> bool:
        """Whether the part is with a node from which its zone was reclaimed here."""
        return any(
            is_within(part.zone, cut.apex) and (part.zone != cut.apex or part.epoch <= cut.epoch)
            for cut in self._table.reclaimed()
        )

    def _is_known(self, zone: str) -> bool:
        """Whether it is known who serves the zone, or that it is nobody's any more."""
        assert self._zones is not None
        route = self._zones.get(zone)
        if route is not None:
            return route.is_local or route.cut is not None
        above = self._zones.enclosing(zone)
        return above.cuts is not None and self._is_known(above.apex)

    def _addresses(self, zone: str) -> list[str]:
        assert self._zones is not None
        addresses = []
        route = self._zones.get(zone)
        while True:
            if route is not None and route.cut is not None and not route.is_local:
                addresses.append(route.cut.grpc)
            if not zone:
                return addresses
            route = self._zones.enclosing(zone)
            zone = route.apex


def _chunk(reply: control_pb2.ReadReply) -> Chunk:
    stored = StoredRecords()
    if reply.offsets:
        stored.add(*to_batch(reply.offsets, reply.packets))
    return Chunk(
        records=Records(stored),
        through=reply.through,
        first=reply.first,
        last=reply.last,
        rest=reply.rest,
        is_closed=reply.closed,
        passages=passages_from_wire(reply.passages),
    )
