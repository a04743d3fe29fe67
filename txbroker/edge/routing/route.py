"""
A zone as this edge sees it: where its owner is, and how far the edge has followed the zone's
stream.

The connection to the owner has the states of `RouteState`. The table there says which event leads
to which state, and `_move` alone takes that step. A route has three other parts, each in its own
object. `queue` has the publishes to the owner, `interest` the filters that the owner is to serve.
`claims` has the subtrees that this edge claims there. The route itself has what the resolver told,
and the position in the stream of deliveries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from txbroker.core import Sender
from txbroker.edge.routing.cut_map import CutChanges, CutMap
from txbroker.edge.routing.owner_interest import OwnerInterest
from txbroker.edge.routing.owner_port import OwnerPort
from txbroker.edge.routing.publication import UNAGED, Item, Publication, unfold
from txbroker.edge.routing.publish_queue import PublishQueue, WaitingBytes
from txbroker.edge.routing.route_state import (
    CONNECTED,
    SERVED_HERE,
    RouteEvent,
    RouteState,
    after,
)
from txbroker.edge.routing.zone_claims import StreamPosition, ZoneClaims
from txbroker.model.invariant import holds
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.model.zone_cut import ZoneCut

_LOCAL = RouteState.LOCAL
"""A constant for the publish path: a lookup in the enum costs a call of Python."""


class Route:
    """
    The way to the zone `apex`; its `cut` says where, None while nobody told.

    Invariant: a route has a port in the states of `CONNECTED`. Only then something is sent.
    """

    def __init__(
        self, apex: str, cut: ZoneCut | None, backlog: WaitingBytes, changes: CutChanges[Route]
    ) -> None:
        self.apex = apex
        self.queue = PublishQueue(apex, backlog)
        self.interest = OwnerInterest()
        self.claims = ZoneClaims()
        self._changes = changes
        # from the resolver
        self._cut = cut
        self._cuts: CutMap | None = None
        self._fresh_until = 0.0
        self._is_asked = False
        # the connection
        self._state = RouteState.IDLE
        self._port: OwnerPort | None = None
        self._failures = 0
        self._unreachable_since: float | None = None
        # the stream of deliveries
        self._position: StreamPosition | None = None
        self._began: StreamPosition | None = None
        self._part = JournalId(apex, 0)
        self._predecessor: tuple[int, LogPosition | None] = (0, None)
        self._over = -1
        # what the owner has to hear, or has
        self._has_news = False
        self._has_marks = False

    def check(self) -> None:
        """State what the route's parts keep of the rules; after the end of a turn."""
        is_one = (self._state in CONNECTED) == (self._port is not None)
        holds(self, 2, "a route is online with a port", is_one, self.apex, self._state)
        is_own = self._cut is None or self._cut.apex == self.apex
        holds(self, 14, "a route leads to its zone", is_own, self.apex, self._cut)
        self.queue.check(is_linked=self._port is not None)
        self.claims.check()

    # the connection

    def _move(self, event: RouteEvent) -> None:
        """Take the step that the table has for the event."""
        self._state = after(self._state, event, self.apex)

    @property
    def state(self) -> RouteState:
        """The state of the connection to the owner."""
        return self._state

    @property
    def port(self) -> OwnerPort | None:
        """The owner while it is connected."""
        return self._port

    @property
    def is_local(self) -> bool:
        """True if this node serves the zone."""
        return self._state in SERVED_HERE

    @property
    def is_ending(self) -> bool:
        """True if the owner is still connected, and another one has announced the part's end."""
        return self._state is RouteState.ENDING

    @property
    def is_away(self) -> bool:
        """True if the owner counts as unreachable."""
        return self._state is RouteState.UNREACHABLE

    @property
    def unreachable_since(self) -> float | None:
        """When the owner began to count as unreachable; None if it does not."""
        return self._unreachable_since

    @property
    def is_needed(self) -> bool:
        """True if a publish, filter, mark or drain needs a connection to the owner."""
        queue = self.queue
        is_wanted = queue.waiting or queue.doubts or self._has_marks or not self.interest.is_empty
        return bool(is_wanted) or queue.is_draining

    @property
    def is_dialable(self) -> bool:
        """True if a link to another node is needed, and its address known."""
        return self._cut is not None and not self.is_local and self.is_needed

    def dial(self) -> None:
        """Note that an attempt to connect begins."""
        self._move(RouteEvent.DIAL)

    def rest(self) -> None:
        """Note that no more attempts follow."""
        self._move(RouteEvent.REST)

    @property
    def failures(self) -> int:
        """Attempts and questions that failed in a row."""
        return self._failures

    def count_failure(self) -> int:
        """Count a failed attempt or question; return how many failed in a row."""
        self._failures += 1
        return self._failures

    def fail(self, now: float | None = None) -> bool:
        """
        Note that the owner cannot be reached, at `now` if that is news for operators.

        Returns True if the moment was noted.
        """
        self._move(RouteEvent.FAIL)
        if now is None or self._unreachable_since is not None:
            return False
        self._unreachable_since = now
        return True

    def connect(self, port: OwnerPort, position: StreamPosition) -> bool:
        """
        Note that the owner is connected, and all deliveries up to the position have come.

        Returns True if the owner had counted as unreachable.
        """
        self._move(RouteEvent.CONNECT)
        self._port = port
        self._position = position
        self._failures = 0
        was_unreachable, self._unreachable_since = self._unreachable_since is not None, None
        return was_unreachable

    def lose(self) -> None:
        """Note that the connection broke."""
        self._move(RouteEvent.LOSE)
        self._port = None

    def serve(self) -> None:
        """Note that this node serves the zone from now on."""
        self._move(RouteEvent.SERVE)

    def leave(self) -> None:
        """Note that the zone has gone to another owner, or to none."""
        self._move(RouteEvent.LEAVE)
        self._port = None

    # publishes

    @property
    def is_clear(self) -> bool:
        """True if a QoS 0 publish has nothing to wait for, and its deliveries are live."""
        return self.queue.is_clear and not self.claims.read

    def sender(self) -> Sender | None:
        """
        Return the link on which QoS 0 may be sent to the owner now, without further steps; or None.
        """
        port = self._port
        return port.sender() if port is not None and self.queue.is_clear else None

    def send(self, item: Item, *, passes: bool = False) -> bool:
        """
        Send an item if the owner is connected, and takes more now; True if it was sent.

        `passes`: True if the item goes before those of other clients that wait.
        """
        port = self._port
        if port is None or not (port.passes(item.size) if passes else port.has_credit()):
            return False
        if item.qos and self._state is not _LOCAL:
            self.queue.note_sent(item)
        if isinstance(item, Publication):
            port.publish(item)
        else:
            port.publish_run(item)
        return True

    def send_waiting(self, now: float) -> None:
        """Send waiting publishes as far as credit allows; none may pass a publish in doubt."""
        queue = self.queue
        while queue.is_ready and self._port is not None and self._port.has_credit():
            item = queue.next_waiting()
            if isinstance(item, Publication):
                item.age(now)
            elif item.came is not None and now - item.came >= UNAGED:
                queue.wait_first(unfold((item,)))
                continue
            self.send(item)

    # from the resolver

    @property
    def cut(self) -> ZoneCut | None:
        """The cut of the zone: the node that serves it, as far as anybody told."""
        return self._cut

    @property
    def epoch(self) -> int:
        """Epoch of the delegation that this route trusts; 0: none known."""
        return self._cut.epoch if self._cut is not None else 0

    def learn_cut(self, cut: ZoneCut | None) -> None:
        """Replace the cut, unless it is of an older epoch; None forgets it."""
        if cut is None or self._cut is None or cut.epoch >= self._cut.epoch:
            self._cut = cut

    @property
    def cuts(self) -> CutMap | None:
        """All cuts of the zone; None while no owner or resolver has listed them."""
        return self._cuts

    def learn_cuts(self, cuts: Mapping[str, ZoneCut]) -> CutMap:
        """Replace all cuts of the zone."""
        if self._cuts is not None:
            self._cuts.replace(cuts)
            return self._cuts
        # While cuts are unknown this route stands for all zones below: filters have to move.
        self._changes.mark_changed(self.apex)
        self._cuts = CutMap(cuts, self._changes)
        return self._cuts

    @property
    def is_asked(self) -> bool:
        """True if a question about the cuts is on its way, or waits for its next attempt."""
        return self._is_asked

    def begin_question(self) -> ZoneCut | None:
        """Return where to ask for the cuts; None if it is unknown, or nobody need be asked."""
        if self._is_asked or self.is_local or self._cut is None:
            return None
        self._is_asked = True
        return self._cut

    def end_question(self, *, is_answered: bool = False) -> None:
        """Note that the question was answered, or will not be."""
        self._is_asked = False
        if is_answered:
            self._failures = 0

    def is_stale(self, now: float) -> bool:
        """True if no stream keeps the cuts fresh, and their time to live is over."""
        is_passive = self._cuts is not None and self._port is None and not self._is_asked
        return is_passive and self._fresh_until < now

    def freshen(self, until: float) -> None:
        """Use the cuts up to this moment without a question."""
        self._fresh_until = until

    # the stream of deliveries

    @property
    def position(self) -> StreamPosition | None:
        """
        The place up to which this edge has followed the stream; None if it does not follow it.
        """
        return self._position

    @property
    def began(self) -> StreamPosition | None:
        """The position with which the present connection began."""
        return self._began

    @property
    def part(self) -> JournalId:
        """The part of the zone's journal that its stream delivers."""
        epoch = self.epoch if self._position is None else self._position.epoch
        if self._part.epoch != epoch:
            self._part = JournalId(self.apex, epoch)
        return self._part

    @property
    def is_over(self) -> bool:
        """
        True if the part that is followed has ended, and sessions read its rest from the journal.
        """
        return self._over >= self.part.epoch

    def begin_part(self, epoch: int) -> None:
        """Follow the epoch's part from its beginning."""
        self._position = StreamPosition(epoch=epoch, offset=0)
        if self._port is None:
            self._began = self._position  # a link may have said Hello before

    def meet(self, epoch: int, predecessor: LogPosition | None) -> None:
        """Note the owner's epoch, and the place after which that epoch's part begins."""
        self._began = self._position
        self._predecessor = (epoch, predecessor)

    def reach(self, offset: int) -> None:
        """Advance the stream position: all our deliveries up to this offset have arrived."""
        position = self._position
        if position is not None and offset > position.offset:
            self._position = StreamPosition(epoch=position.epoch, offset=offset)

    def skip_to(self, offset: int) -> None:
        """
        Advance the stream position: no delivery up to this offset is due, but for what waits.

        What waits for the claim of the zone itself comes later. A client that leaves before that
        would miss it.
        """
        if self.apex not in self.claims.claiming:
            self.reach(offset)

    def forget_position(self) -> None:
        """Follow the stream no more: no session needs the records behind the position."""
        self._position = None

    def end_part(self, epoch: int) -> None:
        """Note that another owner announced the end of the epoch's part."""
        self._over = epoch
        if self._port is not None:
            self._move(RouteEvent.END)

    def start_offset(self, part: JournalId) -> int | None:
        """
        Return the offset of `part` behind which it has no topics of this zone; None if unknown.
        """
        epoch, place = self._predecessor
        if place is None or epoch != self.epoch or place.part != part:
            return None
        return place.offset

    # claims, as the stream meets them

    def claim(self, apex: str, *, is_read: bool = False) -> None:
        """
        Claim the apex: all deliveries of its earlier owner to this edge have arrived.

        `is_read`: every session reads the deliveries that waited for the claim from the journal.
        """
        self.note_news()
        self.claims.claim(apex, is_read=is_read)

    def processed(self, apex: str) -> StreamPosition | None:
        """
        Return the position up to which deliveries of a claimed apex are processed.

        While deliveries that waited for the claim still come, this is behind `position`. Live
        deliveries may have gone far ahead before the claim.
        """
        return self.claims.claiming.get(apex, self._position)

    def is_read(self, topic: str, offset: int) -> bool:
        """
        True if a delivery that waited for a claim has to be ignored.

        Sessions that were here read it from the journal; newer ones began behind it.
        """
        position = self._position
        is_behind = position is not None and 0 < offset <= position.offset
        return is_behind and self.claims.covers_read(topic)

    def since(self, topic_filter: str) -> int:
        """
        Return the offset up to which the present part has no record that is owed for the filter.
        """
        return self.claims.since(topic_filter, self.part.epoch)

    # what the owner has to hear, or has

    @property
    def has_news(self) -> bool:
        """True if the owner has to hear of claims or filters, even if the filters are the same."""
        return self._has_news

    def note_news(self) -> None:
        """Note that the owner has to hear of claims or filters."""
        self._has_news = True
        self._changes.add_route(self)

    def tell_news(self) -> tuple[Sequence[str], Sequence[str]]:
        """Return the filters and the claims for the owner, which hears of them now."""
        self._has_news = False
        return sorted(self.interest.filters), sorted(self.claims.sayable)

    def need_marks(self, *, is_needed: bool) -> None:
        """Note whether the owner may have journals that sessions here need."""
        self._has_marks = is_needed
