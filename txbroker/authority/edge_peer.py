"""
An edge, as the authority of a zone sees it.

`EdgePort` is what can be told to a connected edge, in one stream and in order; `EdgePeer` is what
is known of an edge, connected or not.
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
    """An edge as its owner sees it: a stream of things to tell, in order."""

    def deliver(self, record: Record) -> None:
        """A live message."""

    def deliver_runs(self, runs: list[Run]) -> None:
        """Many live messages; `run.offset` says where each lies, 0 for QoS 0."""

    def sender(self) -> Sender | None:
        """What brings QoS 0 to it at once, if nothing has to go before that, or to wait."""

    def answer(self, request: int, offset: int, retained: RetainedQuery | None) -> None:
        """
        The interest holds; messages count for it from here on, or from a place further on at which
        it is told so. With it go the retained messages that it matches, if they are asked for.
        """

    def tell_cut(self, cut: ZoneCut) -> None:
        """This apex is served elsewhere from here on."""

    def tell_found(self, cut: ZoneCut) -> None:
        """This apex has been served elsewhere for long: what was delivered there is over."""

    def tell_gone(self, apex: str, epoch: int, offset: int | None = None) -> None:
        """
        That delegation ended: the zone itself is served elsewhere, or a cut is no more. `offset`:
        it was reclaimed, and is the zone's from there on, whatever the earlier owner says.
        """

    def unpark(self) -> None:
        """A fence was lifted or became a cut: try again what was parked."""

    def on_durable(self, offset: int) -> None:
        """Publishes of this edge up to this offset may be acknowledged."""

    def close(self, reason: str) -> None:
        """A newer link of the same edge took over."""


class PublishVerdict(enum.Enum):
    """What became of a publish."""

    TAKEN = "taken"
    PARKED = "parked"  # the topic is being handed over; wait for `unpark`
    NOT_AUTHORITATIVE = "not authoritative"


TAKEN: Final = PublishVerdict.TAKEN
"""For what looks at it with each publish: to find a member in its enum is a call of Python."""


@attrs.frozen
class OpenedLink:
    """A link was opened by this process of its edge, with the owner's token of this number."""

    life: str
    token: int


@attrs.define(eq=False)
class EdgePeer:
    """
    One edge: its interest and, while it is connected, its port; `stream` is its last link's, which
    was `opened` so, if this life of it `has_come` here at all.

    `unclaimed` holds, for each apex inherited from an earlier owner, the offset after which this
    edge's deliveries wait until it says that it has processed the earlier owner's (rule 13).
    `claiming` holds the same offset from then on, until the edge says that it has processed what
    had waited: a link that breaks meanwhile may have carried any part of it. `given` are those that
    the present link carries though they are unclaimed: the edge has nothing of them to come from
    elsewhere, and is to hear of them on this link.
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

    def sender(self) -> Sender | None:
        """What brings QoS 0 to it at once."""
        return None if self.port is None or self.unclaimed else self.port.sender()

    def disconnect(self, reason: str) -> None:
        """Close the edge's link, if it has one: it takes and gets nothing more."""
        port, self.port = self.port, None
        if port is not None:
            port.close(reason)

    def is_waiting_for(self, record: Record) -> bool:
        """Whether the record waits for a claim; one from before the inheritance does not."""
        topic, offset = record.message.topic, record.offset
        return any(
            is_within(topic, apex) and (not offset or offset > start) and apex not in self.given
            for apex, start in self.unclaimed.items()
        )

    def open_claims(self) -> dict[str, int]:
        """What it has not claimed, or not processed since; the earlier offset where it is both."""
        return {**self.unclaimed, **self.claiming}

    def claim(self, greeting: EdgeGreeting) -> dict[str, int]:
        """
        What an edge that connects claims: the offsets behind which the apexes' deliveries go on.

        An apex of which nothing is known here and there is left out: its deliveries are like all
        others. What the edge does not name any more is done with.
        """
        claims, self.given = greeting.claims, set(greeting.returned)
        self.claiming = {apex: at for apex, at in self.claiming.items() if apex in claims}
        since = {}
        for apex in {**claims, **dict.fromkeys(greeting.returned)}:
            processed, start = claims.get(apex), self.claiming.get(apex)
            is_new = processed is None and start is None
            if apex in self.given:
                start = self.unclaimed.get(apex) if start is None else start
            # A claim may be of an earlier time: since then the apex went and came back, and the
            # edge, which was away, is still to hear of that.
            elif is_new or (processed or 0) >= self.unclaimed.get(apex, 0):
                inherited = self.unclaimed.pop(apex, None)
                if start is None and inherited is not None:
                    start = self.claiming[apex] = inherited
            if processed is not None:
                since[apex] = processed
            elif start is not None:
                # An edge that resumes may lack records from before the inheritance, too.
                resumed = start if greeting.position is None else greeting.position
                since[apex] = min(start, resumed)
        return since

    def claim_more(self, claims: Mapping[str, int | None]) -> dict[str, int]:
        """
        What a connected edge has come to claim; the same as for `claim`.

        Where it has not heard yet that an apex came again, it repeats what it claimed before: all
        that belongs to that is on its way to it already, and the end of its later owner is, too.
        """
        self.forget_claims([apex for apex in claims if apex in self.given])
        since = {}
        for apex, processed in claims.items():
            if processed is None and apex in self.unclaimed and apex not in self.claiming:
                since[apex] = self.claiming[apex] = self.unclaimed.pop(apex)
        return since

    def forget_claims(self, apexes: Iterable[str]) -> None:
        """The edge has processed what had waited."""
        for apex in apexes:
            self.claiming.pop(apex, None)
            if apex in self.given:
                self.given.discard(apex)
                self.unclaimed.pop(apex, None)


@attrs.frozen
class ParkedInterest:
    """A request for an interest that came while a fence was up; answered when it is lifted."""

    peer: EdgePeer
    port: EdgePort | None
    topic_filter: str
    request: int
    retained: bool


@attrs.frozen(kw_only=True)
class ReturnedZone:
    """
    An apex that came back to the zone, after `offset`, from another node that had it at `epoch`.
    `is_inherited`: it brought along what the edge wants of it.
    """

    apex: str
    epoch: int
    offset: int
    is_inherited: bool


@attrs.frozen(kw_only=True)
class EdgeGreeting:
    """
    What an edge says of itself when it connects; `position` None: nothing to resume.

    `claims`: apexes whose earlier owner's deliveries are all processed, each with the last offset
    of this owner's that is, None where none is. `returned`: apexes that came back, with what it
    wants of them, while it was away, and of which it has not heard. `stream`: numbers that grow
    with each link of a process, which was `opened` so; None: nobody knows how.
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

    def is_late(self, known: EdgePeer) -> bool:
        """
        True if a newer link of the edge is known.

        Another process may count its lives from a lower number: its folder is a copy, or new, and
        the time of day went back. Its token says which one came last. A life that another node has
        told of, and that never came, is older than any that does: a lie would lock the edge out.
        """
        if not known.has_come:
            return False
        own, other = self.opened, known.opened
        if own and other and own.life and other.life and own.life != other.life:
            return own.token < other.token
        return (known.incarnation, known.stream) > (self.incarnation, self.stream)

    def is_before(self, apex: str, offset: int) -> bool:
        """Whether the edge may not have heard that the apex came back after this offset."""
        processed = self.claims.get(apex)
        return processed is None or processed < offset

    def closes(self, key: MarkKey, apex: str) -> bool:
        """
        Whether the edge says that it needs this mark at the owner of `apex` no longer (rule 4).

        Marks that came with a zone that was given back are needed by edges that have not heard of
        that yet; they go with the edge's process.
        """
        edge, incarnation, zone, _ = key
        is_closed = zone == apex or incarnation != self.incarnation
        return edge == self.edge and is_closed and key not in self.in_doubt


@attrs.frozen(kw_only=True)
class EdgeCatchUp:
    """
    What an edge gets before it is live again: its records above `after` (None: nothing), those of
    `claimed` apexes above the offset named there, others above `resumed` (None: no others).
    `missed` offsets are kept no longer. When it is sent, the claims `completes` are done with.
    """

    after: int | None = None
    claimed: dict[str, int] = attrs.field(factory=dict)
    resumed: int | None = None
    missed: int = 0
    completes: tuple[str, ...] = ()

    def has(self, record: Record) -> bool:
        """Whether the record belongs to it, if the edge wants its topic."""
        # The deepest claim is the latest; what it says holds for the apexes above it, too.
        apex = deepest_enclosing(record.message.topic, self.claimed)
        since = self.resumed if apex is None else self.claimed[apex]
        return since is not None and record.offset > since
