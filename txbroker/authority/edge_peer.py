"""
An edge, as the authority of a zone sees it.

`EdgePort` sends to a connected edge, in one ordered stream. `EdgePeer` holds the state of an edge,
connected or not. Each subtree that an edge inherits from another owner passes three states:

- unclaimed: the edge must first process the earlier owner's deliveries. Records behind the noted
  offset wait.
- claiming: the edge has claimed the subtree, and the waiting records are on their way.
- live: the edge has processed the waiting records.

`claim` (of a connecting edge) and `claim_more` (of a connected one) move a subtree from unclaimed
to claiming; `forget_claims` ends the claim. A lost link changes no state, so the next link sends
the waiting records again. A new process of the edge begins with all open claims unclaimed.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Final, Protocol

import attrs

from txbroker.authority.retained_messages import RetainedQuery
from txbroker.core import Run, Sender
from txbroker.delegation.zone_snapshot import MarkKey
from txbroker.journal.zone_journal import Record
from txbroker.model.topics import deepest_enclosing, is_within
from txbroker.model.zone_cut import ZoneCut


class EdgePort(Protocol):
    """The ordered stream of an owner to one connected edge."""

    def deliver(self, record: Record) -> None:
        """Deliver a live message."""

    def deliver_runs(self, runs: list[Run]) -> None:
        """Deliver many live messages; `run.offset` returns each message's offset, 0 for QoS 0."""

    def sender(self) -> Sender | None:
        """
        Return the sender for immediate QoS 0; None if an earlier message must go first or wait.
        """

    def confirm_interest(self, request: int, offset: int, retained: RetainedQuery | None) -> None:
        """
        Confirm an interest: its messages count from here, or from the later position of the answer.

        The answer carries the matching retained messages if the edge asked for them.
        """

    def announce_cut(self, cut: ZoneCut) -> None:
        """Announce that another node serves this apex from here on."""

    def announce_forgotten_cut(self, cut: ZoneCut) -> None:
        """
        Announce that another node has served this apex for long: deliveries of the apex here are
        void.
        """

    def announce_end(self, apex: str, epoch: int, offset: int | None = None) -> None:
        """
        Announce the end of a delegation: of the zone itself, or of a cut.

        `offset`: the apex was reclaimed and is the zone's from this offset on, whatever the earlier
        owner reports.
        """

    def unpark(self) -> None:
        """Retry parked publishes: a fence was lifted or became a cut."""

    def close(self, reason: str) -> None:
        """Close the link: a newer link of the same edge has replaced it."""


class PublishVerdict(enum.Enum):
    """The outcome of a publish at its owner."""

    TAKEN = "taken"
    PARKED = "parked"  # the topic is being handed over; wait for `unpark`
    NOT_AUTHORITATIVE = "not authoritative"


TAKEN: Final = PublishVerdict.TAKEN
"""A constant for the publish path: a lookup in the enum costs a call of Python."""


@attrs.frozen
class OpenedLink:
    """The origin of a link: the process of its edge, and the number of the owner's token."""

    life: str
    token: int


@attrs.define(eq=False)
class EdgePeer:
    """
    An edge at the authority: its interest and, while it is connected, its port.

    - `stream`, `opened`: number and origin of the edge's last link.
    - `has_come`: True if this life of the edge has connected here.
    - `unclaimed`: apexes inherited from an earlier owner, each with an offset. Deliveries behind
      the offset wait until the edge has processed the earlier owner's deliveries (rule 13).
    - `claiming`: the same offsets after the claim, until the edge has processed the deliveries that
      waited. A link that breaks meanwhile may have carried any part of them.
    - `wants_publishers`: True if its deliveries name their publishers.
    - `given`: unclaimed apexes that the present link delivers all the same. The edge expects no
      records of them from elsewhere, and hears of the apex on this link.
    """

    edge: str
    incarnation: int
    stream: int = 0
    opened: OpenedLink | None = None
    filters: set[str] = attrs.Factory(set)
    port: EdgePort | None = None
    has_come: bool = False
    unclaimed: dict[str, int] = attrs.Factory(dict)
    claiming: dict[str, int] = attrs.Factory(dict)
    given: set[str] = attrs.Factory(set)
    wants_publishers: bool = False

    def sender(self) -> Sender | None:
        """Return the sender for immediate QoS 0."""
        if self.port is None or self.unclaimed or self.wants_publishers:
            return None
        return self.port.sender()

    def disconnect(self, reason: str) -> None:
        """Close the edge's link, if any: no more publishes and deliveries."""
        port, self.port = self.port, None
        if port is not None:
            port.close(reason)

    def is_waiting_for(self, record: Record) -> bool:
        """
        True if the record waits for a claim; a record from before the inheritance does not wait.
        """
        topic, offset = record.message.topic, record.offset
        return any(
            is_within(topic, apex) and (not offset or offset > start) and apex not in self.given
            for apex, start in self.unclaimed.items()
        )

    def open_claims(self) -> dict[str, int]:
        """Return the unclaimed and unprocessed apexes, each with its lower offset."""
        return {**self.unclaimed, **self.claiming}

    def claim(self, greeting: EdgeGreeting) -> dict[str, int]:
        """
        Apply the claims of a connecting edge; return the offsets behind which deliveries resume.

        An apex that neither side has noted is left out: its deliveries are like all others. A claim
        that the edge no longer names is done.
        """
        claims, self.given = greeting.claims, set(greeting.returned)
        self.claiming = {apex: at for apex, at in self.claiming.items() if apex in claims}
        since = {}
        for apex in {**claims, **dict.fromkeys(greeting.returned)}:
            processed, start = claims.get(apex), self.claiming.get(apex)
            is_new = processed is None and start is None
            if apex in self.given:
                start = self.unclaimed.get(apex) if start is None else start
            # A claim may be outdated: the apex may have gone and come back since, while the edge
            # was away. The edge must still hear of that.
            elif is_new or (processed or 0) >= self.unclaimed.get(apex, 0):
                inherited = self.unclaimed.pop(apex, None)
                if start is None and inherited is not None:
                    start = self.claiming[apex] = inherited
            if processed is not None:
                since[apex] = processed
            elif start is not None:
                # A resuming edge may also lack records from before the inheritance.
                resumed = start if greeting.position is None else greeting.position
                since[apex] = min(start, resumed)
        return since

    def claim_more(self, claims: Mapping[str, int | None]) -> dict[str, int]:
        """
        Apply the claims that a connected edge adds; return the same as `claim`.

        An edge that has not heard of an apex's second return repeats its earlier claim. All
        deliveries of that claim are already on the link, and so is the end of the later owner.
        """
        self.forget_claims([apex for apex in claims if apex in self.given])
        since = {}
        for apex, processed in claims.items():
            if processed is None and apex in self.unclaimed and apex not in self.claiming:
                since[apex] = self.claiming[apex] = self.unclaimed.pop(apex)
        return since

    def forget_claims(self, apexes: Iterable[str]) -> None:
        """Forget claims whose waiting deliveries the edge has processed."""
        for apex in apexes:
            self.claiming.pop(apex, None)
            if apex in self.given:
                self.given.discard(apex)
                self.unclaimed.pop(apex, None)


@attrs.frozen
class ParkedInterest:
    """An interest request that a fence stopped; the answer follows when the fence is lifted."""

    peer: EdgePeer
    port: EdgePort | None
    topic_filter: str
    request: int
    retained: bool


@attrs.frozen(kw_only=True)
class ReturnedZone:
    """
    An apex that came back to the zone behind `offset`; another node had it at `epoch`.

    `is_inherited`: True if the apex brought the edge's interest along.
    """

    apex: str
    epoch: int
    offset: int
    is_inherited: bool


@attrs.frozen(kw_only=True)
class EdgeGreeting:
    """
    An edge's report on itself when it connects.

    - `position`: the offset to resume from; None: no stream to resume.
    - `claims`: apexes whose earlier owner's deliveries are all processed. Each has the last
      processed offset of this owner; None: no delivery is processed.
    - `returned`: apexes that came back with the edge's interest while the edge was away and
      unaware.
    - `stream`: a number that grows with each link of a process.
    - `opened`: the link's origin; None: unknown.
    """

    edge: str
    incarnation: int
    filters: tuple[str, ...]
    stream: int = 0
    claims: Mapping[str, int | None] = attrs.field(factory=dict)
    returned: tuple[str, ...] = ()
    position: int | None = None
    in_doubt: tuple[MarkKey, ...] = ()
    opened: OpenedLink | None = None
    wants_publishers: bool = False

    def is_late(self, known: EdgePeer) -> bool:
        """
        True if a newer link of the edge is known.

        Another process may count its lives from a lower number: its folder is a copy or new, and
        the clock went back. The owner's token then decides which process came last. A life that
        only another node reported is older than any life that connects. Otherwise a lie would lock
        the edge out.
        """
        if not known.has_come:
            return False
        own, other = self.opened, known.opened
        if own and other and own.life and other.life and own.life != other.life:
            return own.token < other.token
        return (known.incarnation, known.stream) > (self.incarnation, self.stream)

    def is_before(self, apex: str, offset: int) -> bool:
        """True if the edge may not have heard that the apex came back after this offset."""
        processed = self.claims.get(apex)
        return processed is None or processed < offset

    def closes(self, key: MarkKey, apex: str) -> bool:
        """
        True if the edge no longer needs this mark at the owner of `apex` (rule 4).

        An edge may need marks of a zone that was given back before it hears of that. Such marks end
        with the edge's process.
        """
        edge, incarnation, zone, _ = key
        is_closed = zone == apex or incarnation != self.incarnation
        return edge == self.edge and is_closed and key not in self.in_doubt


@attrs.frozen(kw_only=True)
class EdgeCatchUp:
    """
    The records that an edge reads before it is live again.

    - `after`: records above this offset; None: no catch-up.
    - `claimed`: apexes whose records count above the named offset.
    - `resumed`: other records count above this offset; None: no other records.
    - `missed`: the number of offsets that the journal no longer has.
    - `completes`: the claims that are done when the catch-up is sent.
    """

    after: int | None = None
    claimed: dict[str, int] = attrs.field(factory=dict)
    resumed: int | None = None
    missed: int = 0
    completes: tuple[str, ...] = ()

    def has(self, record: Record) -> bool:
        """True if the record belongs to the catch-up, provided that the edge wants its topic."""
        # The deepest claim is the latest and overrides the apexes above it.
        apex = deepest_enclosing(record.message.topic, self.claimed)
        since = self.resumed if apex is None else self.claimed[apex]
        return since is not None and record.offset > since
