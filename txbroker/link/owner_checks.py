"""
What the owner of a zone may say on a link, by what it has said and what it was asked and sent.

Another node is at the other end: it may be faulty, or lie. What is no answer to anything, has no
place yet, or is of another zone ends the link.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from txbroker.delegation.peer_checks import check, check_cut, check_near
from txbroker.delegation.zone_snapshot import MarkKey
from txbroker.edge.routing.resolver_cache import ResolverCache
from txbroker.edge.routing.route import Route
from txbroker.link.frames import LinkError, check_version
from txbroker.model.topics import is_within
from txbroker.model.zone_cut import ZoneCut
from txbroker.rpc.link_convert import cut_from_wire, key_from_mark
from txbroker.v1 import link_pb2, types_pb2
from txbroker.v1.link_pb2 import LinkFrame

_BEHIND_ONLINE = ("answer", "cut", "reached", "claimed")
"""Kinds of frames that an owner begins to say when an edge has caught up."""

MARKS_TOLD = 100
"""Low-water marks whose answers are waited for."""

Answered = Callable[[dict[MarkKey, int]], None]


class OwnerChecks:
    """One connection's. `epoch`: what the Welcome said; `was_online`: Online has had its turn."""

    def __init__(self, route: Route, zones: ResolverCache) -> None:
        self.epoch = 0
        self.was_online = False
        self._route = route
        self._zones = zones
        self._last_sent: dict[int, int] = {}  # sequences in opened streams
        self._asked: dict[int, Answered] = {}
        self._marks_told: deque[tuple[int, Callable[[], None]]] = deque(maxlen=MARKS_TOLD)
        self._low_water_told = 0  # the last request

    # what it is asked and sent

    def note_asked(self, request: int, answered: Answered) -> None:
        """It is asked for marks."""
        self._asked[request] = answered

    def note_low_water(self, request: int, kept: Callable[[], None]) -> None:
        """It is told low-water marks; `kept` runs when it has them."""
        self._marks_told.append((request, kept))
        self._low_water_told = request

    def note_sent(self, stream: int, sequence: int) -> None:
        """It was sent this in a stream that was opened; 0: nothing yet."""
        self._last_sent[stream] = max(self._last_sent.get(stream, 0), sequence)

    def last_sent(self, stream: int) -> int:
        """The last sequence in an opened stream; -1: there is no such stream."""
        return self._last_sent.get(stream, -1)

    # what it says

    def check_frame(self, frame: LinkFrame, *, is_live: bool) -> None:
        """
        Check the numbers of a frame and its place; `is_live`: Online has come. Raises `LinkError`,
        and `PeerError` for what no honest node says.
        """
        kind = frame.WhichOneof("kind")
        if kind not in ("batch", "heartbeat"):
            check(frame)
        # Welcome may have to wait for the disk.
        if not self.epoch and kind not in ("welcome", "heartbeat"):
            raise LinkError("the first frame from an owner is Welcome")
        if kind in _BEHIND_ONLINE and not is_live:
            raise LinkError(f"an owner says {kind} behind its Online")

    def welcome(self, welcome: link_pb2.Welcome) -> None:
        """It begins."""
        if self.epoch:
            raise LinkError("a link has one Welcome")
        check_version(welcome.version)
        if welcome.zone != self._route.apex or not welcome.epoch:
            raise LinkError(f"the owner serves zone {welcome.zone!r}, not {self._route.apex!r}")
        check_near("epoch", welcome.epoch, self._route.epoch)
        self.epoch = welcome.epoch

    def online(self) -> None:
        """What the edge had missed has come."""
        if self.was_online:
            raise LinkError("a link has one Online")
        self.was_online = True

    def check_sent(self, sequence: int, last: int) -> None:
        """It answers publishes up to this one, and `last` is the last that it was sent."""
        if sequence > last:
            raise LinkError("an owner answers what it was sent")

    def on_kept(self, request: int) -> None:
        """The low-water marks up to this request are kept there."""
        if request > self._low_water_told:
            raise LinkError("an owner keeps marks that it was told")
        while self._marks_told and self._marks_told[0][0] <= request:
            self._marks_told.popleft()[1]()

    def on_marks(self, marks: link_pb2.Marks) -> None:
        """It answers which publishes it has taken."""
        answered = self._asked.pop(marks.request, None)
        if answered is None:
            raise LinkError("an owner tells marks once when it is asked")
        answered({key_from_mark(mark): mark.sequence for mark in marks.marks})

    def cut_below(self, wire: types_pb2.Cut) -> ZoneCut:
        """A cut, which leads strictly deeper than the zone that tells of it (rule 14)."""
        cut = cut_from_wire(wire)
        check_cut(cut)
        self.check_below(cut.apex, cut.epoch)
        return cut

    def check_below(self, apex: str, epoch: int) -> None:
        """The same of a cut by its apex and epoch."""
        if apex == self._route.apex or not is_within(apex, self._route.apex):
            raise LinkError(f"zone {self._route.apex!r} has no cut at {apex[:100]!r}")
        below = self._zones.get(apex)
        check_near("epoch of a cut", epoch, 0 if below is None else below.epoch)
