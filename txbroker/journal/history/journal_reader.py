"""
SHELL: reads journals for sessions that are behind: this node's own, and other nodes' by `Read`.

Both sources return the durable QoS 1/2 records of a part in a range of offsets. A request for a
part goes to the zone's present owner first; an earlier owner may have the part too.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator

import attrs
import grpc
import grpc.aio

from txbroker.authority.authority import Authority
from txbroker.data.data_directory import DataDirectory
from txbroker.delegation.node_grant import NodeGrant
from txbroker.delegation.peer_checks import (
    check_cut,
)
from txbroker.delegation.state.lost_root import root_to_wire
from txbroker.edge.routing.resolver_cache import ResolverCache
from txbroker.edge.sessions.interests import Interests
from txbroker.edge.sessions.journal_read_cache import SPAN, ReadFailure
from txbroker.journal.history.read_answers import chunk_of, reply_of
from txbroker.journal.zone_journal import JournalChunk
from txbroker.model.epoch_transition import END
from txbroker.model.errors import PeerError
from txbroker.model.log_position import JournalId
from txbroker.model.topics import is_within
from txbroker.model.zone_cut import ZoneCut
from txbroker.rpc.channels import Channels
from txbroker.rpc.link_convert import cut_from_wire, cut_to_wire
from txbroker.rpc.streams import describe
from txbroker.runtime.aio import Tasks
from txbroker.runtime.structured_log import get_logger
from txbroker.v1 import control_pb2

log = get_logger()

Done = Callable[[JournalChunk | ReadFailure], None]

READ_TIMEOUT = 30.0
"""Seconds that a reply may take: one reply may carry a message of the largest size."""

MOST_ASKED = 300
"""The most nodes that one search asks: more than a topic has levels."""

PARTS_REMEMBERED = 1_000
"""The most parts whose unreadability is logged once and not at each attempt."""


class JournalReader:
    """The `ChunkReader` of a node's sessions, and the answers to other nodes."""

    def __init__(
        self,
        *,
        data_directory: DataDirectory,
        authority: Authority | None,
        node_grant: NodeGrant,
        channels: Channels,
        tasks: Tasks,
        now: Callable[[], float],
    ) -> None:
        self._now = now
        self._data_directory = data_directory
        self._authority = authority
        self._node_grant = node_grant
        self._table = node_grant.table
        self._channels = channels
        self._tasks = tasks
        self._zones: ResolverCache | None = None
        self._interests: Interests | None = None
        self._told: OrderedDict[JournalId, str] = OrderedDict()

    def wire(self, zones: ResolverCache, interests: Interests) -> None:
        """Connect the resolver cache, which names each zone's owner, and the edge's interests."""
        self._zones = zones
        self._interests = interests

    # from the sessions' catch-up (`ChunkReader`)

    def read(self, part: JournalId, after: int, through: int, done: Done) -> None:
        """
        Read the durable QoS 1/2 records above `after` up to `through`, here or at another node.
        """
        found = self.local(part, after, through)
        if found is not None:
            done(found)
            return
        self._tasks.start(self._ask(part, after, through, done))

    # from the control service

    def local(self, part: JournalId, after: int, through: int) -> JournalChunk | None:
        """Return the records if this node has the part; None if not."""
        kept = self._data_directory.journals.get(part)
        if kept is None:
            return None
        authority = self._authority
        is_own = authority is not None and part.zone == authority.apex
        if authority is not None and is_own and part.epoch == authority.epoch:
            bound = authority.delivered
            is_closed = not authority.serving
        else:
            # The own zone's part may continue once the zone is open.
            is_closed = authority is None or not is_own or part.epoch < authority.epoch
            bound = kept.log.written
        through = max(min(through, bound), after)
        found = self._data_directory.read(kept, after, through, SPAN, bound=bound)
        # The fence of an ended part may lie behind its last record.
        looked = END if is_closed and found.through >= found.last else found.through
        met = tuple(p for p in self._table.passages() if p.is_met(part, after, looked))
        if is_closed or met:
            found = attrs.evolve(found, is_closed=is_closed, passages=met)
        return found

    def answer(self, request: control_pb2.ReadRequest) -> control_pb2.ReadReply:
        """Answer another node's request."""
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
        return reply_of(found, request)

    # internal

    async def _ask(self, part: JournalId, after: int, through: int, done: Done) -> None:
        """
        Ask the zone's own node first, then the nodes above: a part stays where its zone went back
        to.
        """
        assert self._zones is not None and self._interests is not None
        request = control_pb2.ReadRequest(
            zone=part.zone,
            epoch=part.epoch,
            after=after,
            through=through,
            root=root_to_wire(self._node_grant.root),
            reads_properties=True,
            publishers=self._interests.wants_publishers,
        )
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
                    chunk = chunk_of(request, reply, self._zones.epoch_of, self._now)
                    self._log_found(part)
                    done(chunk)
                    return
                search.record(reply, cut)
            except PeerError as error:
                # The waiting session must get an answer all the same, and then asks again.
                search.is_open, search.reason = True, f"{cut.grpc}: {error}"
        if search.verdict is ReadFailure.UNREACHABLE:
            self._log_part("journal.unreachable", part, search.reason)
        else:
            self._log_part("journal.missing", part, search.verdict.value)
        done(search.verdict)

    def _log_part(self, event: str, part: JournalId, reason: str) -> None:
        # Sessions ask again twice a second, or every ten seconds for a cut-off part. Sessions ask
        # for ever if the part's node is gone. Such a session gets no record behind the part. So the
        # log has each reason once.
        if self._told.get(part) == reason:
            return
        self._told[part] = reason
        if len(self._told) > PARTS_REMEMBERED:
            self._told.popitem(last=False)
        log.warning(event, zone=part.zone, epoch=part.epoch, reason=reason)

    def _log_found(self, part: JournalId) -> None:
        if self._told.pop(part, None) is not None:
            log.info("journal.reachable", zone=part.zone, epoch=part.epoch)

    def _is_cut_off(self, part: JournalId) -> bool:
        """True if the part is at a node from which this node reclaimed the zone."""
        return any(
            is_within(part.zone, cut.apex) and (part.zone != cut.apex or part.epoch <= cut.epoch)
            for cut in self._table.reclaimed()
        )

    def _is_unheard(self, part: JournalId) -> bool:
        """
        True if the part is of a delegation below that this node does not know.

        This node's disk is new or an older copy. The zone's node may be away, and only that node
        can say that the part is gone.
        """
        own = None if self._authority is None else self._authority.apex
        is_below = own is not None and part.zone != own and is_within(part.zone, own)
        return is_below and self._table.epoch_of(part.zone) < part.epoch

    def _is_known(self, zone: str) -> bool:
        """True if the zone's owner is known, or the zone is known to have ended."""
        assert self._zones is not None
        route = self._zones.get(zone)
        if route is not None:
            return route.is_local or route.cut is not None
        above = self._zones.enclosing(zone)
        return above.cuts is not None and self._is_known(above.apex)

    def _owners(self, zone: str) -> Iterator[ZoneCut]:
        """Yield the known owners of the zone and of the zones above."""
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
    """True if the cut's node accepted the part's records and serves the zone at that epoch."""
    return cut is not None and (cut.apex, cut.epoch) == part


class _Search:
    """
    A search for a part, with the answers so far.

    - `is_cut_off`: a node has reclaimed the part's zone.
    - `is_placed`: a node above knows the part's owner, and no node has reclaimed the zone from it.
    - `is_open`: a node that may have the part has not answered.
    - `is_unheard`: a node above has never heard of the part.
    - `is_vouched`: a node that would know the part denies it.
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
        Return whether the part may still be found.

        A cut-off part is searched again, whatever other nodes answer. A node further up knows less,
        and may never know more. A reclaim of the zone above cuts off no part of a silent node that
        still has its own zone.
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

    def record(self, reply: control_pb2.ReadReply, cut: ZoneCut) -> None:
        """Record the answer of a node that does not have the part."""
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
