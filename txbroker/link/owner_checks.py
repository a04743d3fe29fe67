"""
Checks an owner's frames on a link against earlier frames, and against what the edge asked and sent.

The other node may be faulty or lie. A frame ends the link if it answers no request, comes out of
place, or concerns another zone.
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
"""Kinds of frames that an owner may send only when the edge has caught up."""

MARKS_TOLD = 100
"""The most low-water marks that wait for their answer."""

Answered = Callable[[dict[MarkKey, int]], None]


class OwnerChecks:
    """
    The checks of one connection.

    `epoch`: the epoch of the Welcome. `was_online`: Online was processed in its turn.
    """

    def __init__(self, route: Route, zones: ResolverCache) -> None:
        self.epoch = 0
        self.was_online = False
        self._route = route
        self._zones = zones
        self._last_sent: dict[int, int] = {}  # sequences in opened streams
        self._asked: dict[int, Answered] = {}
        self._marks_told: deque[tuple[int, Callable[[], None]]] = deque(maxlen=MARKS_TOLD)
        self._low_water_told = 0  # the last request

    # requests and publishes to the owner

    def record_asked(self, request: int, answered: Answered) -> None:
        """Note a request for marks."""
        self._asked[request] = answered

    def record_low_water(self, request: int, kept: Callable[[], None]) -> None:
        """Note a request with low-water marks; `kept` runs when the owner has stored them."""
        self._marks_told.append((request, kept))
        self._low_water_told = request

    def record_sent(self, stream: int, sequence: int) -> None:
        """Note the last sent sequence of an opened stream; 0: none sent yet."""
        self._last_sent[stream] = max(self._last_sent.get(stream, 0), sequence)

    def last_sent(self, stream: int) -> int:
        """Return the last sent sequence of an opened stream; -1 if no such stream exists."""
        return self._last_sent.get(stream, -1)

    # frames of the owner

    def check_frame(self, frame: LinkFrame, *, is_live: bool) -> None:
        """
        Check a frame's numbers and its place in the stream.

        Batches and Taken are checked where they are read. `is_live`: Online has arrived. Raises
        `LinkError`, and `PeerError` for a dishonest frame.
        """
        kind = frame.WhichOneof("kind")
        if kind != "heartbeat":
            check(frame)
        # Welcome may wait for the disk, with heartbeats before it.
        if not self.epoch and kind not in ("welcome", "heartbeat"):
            raise LinkError("the first frame from an owner is Welcome")
        if kind in _BEHIND_ONLINE and not is_live:
            raise LinkError(f"an owner says {kind} behind its Online")

    def welcome(self, welcome: link_pb2.Welcome) -> None:
        """Check the link's only Welcome; raises `LinkError`."""
        if self.epoch:
            raise LinkError("a link has one Welcome")
        check_version(welcome.version)
        if welcome.zone != self._route.apex or not welcome.epoch:
            raise LinkError(f"the owner serves zone {welcome.zone!r}, not {self._route.apex!r}")
        check_near("epoch", welcome.epoch, self._route.epoch)
        self.epoch = welcome.epoch

    def online(self) -> None:
        """Check the link's only Online, which ends the catch-up; raises `LinkError`."""
        if self.was_online:
            raise LinkError("a link has one Online")
        self.was_online = True

    def on_low_water_stored(self, request: int) -> None:
        """
        Run the actions of low-water marks up to this request; raises `LinkError` for an unsent one.
        """
        if request > self._low_water_told:
            raise LinkError("an owner keeps marks that it was told")
        while self._marks_told and self._marks_told[0][0] <= request:
            self._marks_told.popleft()[1]()

    def on_marks(self, marks: link_pb2.Marks) -> None:
        """Run the action of a request for marks; raises `LinkError` for an unknown request."""
        answered = self._asked.pop(marks.request, None)
        if answered is None:
            raise LinkError("an owner tells marks once when it is asked")
        answered({key_from_mark(mark): mark.sequence for mark in marks.marks})

    def cut_below(self, wire: types_pb2.Cut) -> ZoneCut:
        """Return a checked cut: it must lie strictly deeper than the owner's zone (rule 14)."""
        cut = cut_from_wire(wire)
        check_cut(cut)
        self.check_below(cut.apex, cut.epoch)
        return cut

    def check_below(self, apex: str, epoch: int) -> None:
        """Check the apex and epoch of a cut in the same way."""
        if apex == self._route.apex or not is_within(apex, self._route.apex):
            raise LinkError(f"zone {self._route.apex!r} has no cut at {apex[:100]!r}")
        below = self._zones.get(apex)
        check_near("epoch of a cut", epoch, 0 if below is None else below.epoch)
