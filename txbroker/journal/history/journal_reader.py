"""
SHELL: journals read for sessions that are behind: this node's own, and others' by `Read`.

Both give the same: the durable QoS 1/2 records of a part in a range of offsets. A part is asked for
where its zone is served now; who has served it before may have it, too.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from itertools import pairwise

import attrs
import grpc
import grpc.aio

from txbroker.authority.authority import Authority
from txbroker.core import StoredRecords
from txbroker.data.data_directory import DataDirectory
from txbroker.delegation.peer_checks import check_cut, check_passages, check_records
from txbroker.delegation.state.lost_root import root_to_wire
from txbroker.delegation.state.node_grant import NodeGrant
from txbroker.edge.routing.resolver_cache import ResolverCache
from txbroker.edge.sessions.journal_read_cache import SPAN, ReadFailure
from txbroker.journal.store.record_format import to_batch
from txbroker.journal.zone_journal import JournalChunk, Records
from txbroker.model.epoch_transition import END
from txbroker.model.errors import PeerError, StoreError
from txbroker.model.log_position import JournalId
from txbroker.model.topics import is_within
from txbroker.model.zone_cut import ZoneCut
from txbroker.rpc.channels import Channels
from txbroker.rpc.link_convert import cut_from_wire, cut_to_wire
from txbroker.rpc.streams import describe
from txbroker.rpc.zone_convert import passages_from_wire, passages_to_wire
from txbroker.runtime.aio import Tasks
from txbroker.runtime.structured_log import get_logger
from txbroker.v1 import control_pb2

log = get_logger()

Done = Callable[[JournalChunk | ReadFailure], None]

READ_TIMEOUT = 30.0
"""Seconds that a reply may take: it can be one message as large as there are any."""

MOST_ASKED = 300
"""Nodes that are asked for one part: more than a topic has levels."""

PARTS_REMEMBERED = 1_000
"""Parts of which is logged once that they cannot be read, and not each time."""


class JournalReader:
    """The `Reader` of a node's sessions, and what it answers to other nodes."""

    def __init__(
        self,
        *,
        disk: DataDirectory,
        authority: Authority | None,
        standing: NodeGrant,
        channels: Channels,
        tasks: Tasks,
    ) -> None:
        self._disk = disk
        self._authority = authority
        self._standing = standing
        self._table = standing.table
        self._channels = channels
        self._tasks = tasks
        self._zones: ResolverCache | None = None
        self._told: OrderedDict[JournalId, str] = OrderedDict()

    def wire(self, zones: ResolverCache) -> None:
        """Who serves which zone."""
        self._zones = zones

    # from the sessions' backlog (Reader)

    def read(self, part: JournalId, after: int, through: int, done: Done) -> None:
        """The QoS 1/2 records above `after` up to `through`, as far as they are durable."""
        found = self.local(part, after, through)
        if found is not None:
            done(found)
            return
        self._tasks.start(self._ask(part, after, through, done))

    # from the servicer

    def local(self, part: JournalId, after: int, through: int) -> JournalChunk | None:
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
            bound = kept.log.written
        through = max(min(through, bound), after)
        found = self._disk.read(kept, after, through, SPAN, bound=bound)
        # The fence of a part that ended may lie behind its last record.
        looked = END if is_closed and found.through >= found.last else found.through
        met = tuple(p for p in self._table.passages() if p.is_met(part, after, looked))
        if is_closed or met:
            found = attrs.evolve(found, is_closed=is_closed, passages=met)
        return found

    def answer(self, request: control_pb2.ReadRequest) -> control_pb2.ReadReply:
        """What another node asks for."""
        part = JournalId(request.zone, request.epoch)
        found = self.local(part, request.after, request.through)
        if found is None:
            below = self._table.lookup(part.zone)
            return control_pb2.ReadReply(
                kept=False,
                cut_off=self._is_cut_off(part),
                elsewhere=below is not None,
                below=None if below is None else cut_to_wire(below),
                idle=self._authority is not None and not self._authority.serving,
                unheard=self._is_unheard(part),
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

    async def _ask(self, part: JournalId, after: int, through: int, done: Done) -> None:
        """The zone's own node first, then those above: a part stays where its zone went back to."""
        request = control_pb2.ReadRequest(
            zone=part.zone,
            epoch=part.epoch,
            after=after,
            through=through,
            root=root_to_wire(self._standing.root),
        )
        assert self._zones is not None
        search = _Search(part, is_owner_known=self._zones.get(part.zone) is not None)
        search.is_cut_off = self._is_cut_off(part)
        search.is_unheard = self._is_unheard(part)
        search.is_placed = _is_of(part, self._table.lookup(part.zone))
        search.is_open = not self._is_known(part.zone)
        for cut in self._owners(part.zone):
            search.add(cut)
        while search.to_ask:
            cut = search.to_ask.popleft()
            stub = self._channels.stub(cut.grpc, cut.node)
            try:
                reply = await stub.Read(request, timeout=READ_TIMEOUT)
            except grpc.aio.AioRpcError as error:
                search.is_open, search.reason = True, f"{cut.grpc}: {describe(error)}"
                continue
            try:
                if reply.kept:
                    chunk = _chunk(request, reply, self._zones.epoch_of)
                    self._say_found(part)
                    done(chunk)
                    return
                search.note(reply, cut)
            except PeerError as error:
                # Whoever waits for it must get an answer all the same, and ask again.
                search.is_open, search.reason = True, f"{cut.grpc}: {error}"
        if search.verdict is ReadFailure.UNREACHABLE:
            self._say("journal.unreachable", part, search.reason)
        else:
            self._say("journal.missing", part, search.verdict.value)
        done(search.verdict)

    def _say(self, event: str, part: JournalId, reason: str) -> None:
        # Asked for again twice a second, where it is cut off each ten seconds, and for ever if its
        # node is gone; whoever waits for it gets nothing behind it meanwhile.
        if self._told.get(part) == reason:
            return
        self._told[part] = reason
        if len(self._told) > PARTS_REMEMBERED:
            self._told.popitem(last=False)
        log.warning(event, zone=part.zone, epoch=part.epoch, reason=reason)

    def _say_found(self, part: JournalId) -> None:
        if self._told.pop(part, None) is not None:
            log.info("journal.found", zone=part.zone, epoch=part.epoch)

    def _is_cut_off(self, part: JournalId) -> bool:
        """Whether the part is with a node from which its zone was reclaimed here."""
        return any(
            is_within(part.zone, cut.apex) and (part.zone != cut.apex or part.epoch <= cut.epoch)
            for cut in self._table.reclaimed()
        )

    def _is_unheard(self, part: JournalId) -> bool:
        """
        True if the part is of a delegation below that this node does not know, as its disk is new
        or an older copy: the zone's node may be away, and the part is gone only if that says so.
        """
        own = None if self._authority is None else self._authority.apex
        is_below = own is not None and part.zone != own and is_within(part.zone, own)
        return is_below and self._table.epoch_of(part.zone) < part.epoch

    def _is_known(self, zone: str) -> bool:
        """Whether it is known who serves the zone, or that it is nobody's any more."""
        assert self._zones is not None
        route = self._zones.get(zone)
        if route is not None:
            return route.is_local or route.cut is not None
        above = self._zones.enclosing(zone)
        return above.cuts is not None and self._is_known(above.apex)

    def _owners(self, zone: str) -> Iterator[ZoneCut]:
        """The nodes of the zone and of those above it, as far as they are known."""
        assert self._zones is not None
        route = self._zones.get(zone)
        while True:
            if route is not None and route.cut is not None and not route.is_local:
                yield route.cut
            if not zone:
                return
            route = self._zones.enclosing(zone)
            zone = route.apex


def _is_of(part: JournalId, cut: ZoneCut | None) -> bool:
    """True if the node of the cut took the part's records, and serves the zone at that epoch."""
    return cut is not None and (cut.apex, cut.epoch) == part


def check_read(asked: control_pb2.ReadRequest, reply: control_pb2.ReadReply) -> None:
    """Refuse an answer about other offsets than those that were asked for; raises `PeerError`."""
    offsets = reply.offsets
    if offsets and not asked.after < offsets[0] <= offsets[-1] <= asked.through:
        raise PeerError("records that nobody has asked for")
    if reply.through < asked.after or any(b <= a for a, b in pairwise(offsets)):
        raise PeerError("records out of their order")


class _Search:
    """
    A part that is looked for, and the answers so far.

    `is_cut_off`: a node has reclaimed it; `is_placed`: a node above knows who has it, as nobody has
    taken it from there; `is_open`: a node that may keep it has not answered; `is_unheard`: a node
    above has never heard of it; `is_vouched`: one that would know says no.
    """

    def __init__(self, part: JournalId, *, is_owner_known: bool) -> None:
        self._part = part
        self._is_owner_known = is_owner_known
        self._known: set[str] = set()
        self.to_ask: deque[ZoneCut] = deque()
        self.is_cut_off = False
        self.is_placed = False
        self.is_open = False
        self.is_unheard = False
        self.is_vouched = False
        self.reason = "nobody is known to serve the zone"

    @property
    def verdict(self) -> ReadFailure:
        """
        Whether the part may yet be found. A part that was cut off is looked for again, whatever
        others say; a node further up knows less of it, and may never know more. That the zone above
        was reclaimed cuts off no part of a node that is silent and still has its own zone.
        """
        if self.is_cut_off and not (self.is_placed and self.is_open):
            return ReadFailure.CUT_OFF
        if self.is_open:
            return ReadFailure.UNREACHABLE
        return ReadFailure.CUT_OFF if self.is_unheard and not self.is_vouched else ReadFailure.GONE

    def add(self, cut: ZoneCut) -> None:
        """Ask this node, once."""
        if cut.grpc not in self._known and len(self._known) < MOST_ASKED:
            self._known.add(cut.grpc)
            self.to_ask.append(cut)

    def note(self, reply: control_pb2.ReadReply, cut: ZoneCut) -> None:
        """The node does not keep the part."""
        if reply.unheard:
            self.is_unheard = True
        elif not (reply.elsewhere or reply.idle):
            self.is_vouched = True
        below = cut_from_wire(reply.below) if reply.HasField("below") else None
        self.is_placed = self.is_placed or _is_of(self._part, below)
        if reply.cut_off:
            self.is_cut_off = True
        elif reply.elsewhere and not self._is_owner_known:
            if below is not None and is_within(self._part.zone, below.apex):
                check_cut(below)
                self.add(below)
            else:
                self.is_open, self.reason = True, f"{cut.grpc}: a node below has the zone"
        elif reply.idle:
            self.is_open, self.reason = True, f"{cut.grpc}: the node serves no zone now"


def _chunk(
    asked: control_pb2.ReadRequest, reply: control_pb2.ReadReply, known: Callable[[str], int]
) -> JournalChunk:
    """
    The records of an answer; raises `PeerError` for one that no honest node gives. `known`: the
    epochs of zones.
    """
    check_read(asked, reply)
    stored = StoredRecords()
    if reply.offsets:
        try:
            stored.add(*to_batch(reply.offsets, reply.packets))
        except (ValueError, OverflowError, StoreError) as error:
            raise PeerError(f"records that cannot be read: {error}") from error
    check_records(asked.zone, stored)
    passages = passages_from_wire(reply.passages)
    check_passages(asked.zone, passages, known)
    return JournalChunk(
        records=Records(stored),
        through=reply.through,
        first=reply.first,
        last=reply.last,
        rest=reply.rest,
        is_closed=reply.closed,
        passages=passages,
    )
