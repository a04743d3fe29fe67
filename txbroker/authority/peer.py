"""
An edge, as the authority of a zone sees it.

`EdgePort` is what can be told to a connected edge, in one stream and in order; `Peer` is what is
known of an edge, connected or not.
"""

from __future__ import annotations

import enum
from typing import Protocol

import attrs

from txbroker.authority.handover import MarkKey
from txbroker.authority.journal import Record
from txbroker.delegation.cut import Cut
from txbroker.message import Message
from txbroker.topics import is_within


class EdgePort(Protocol):
    """An edge as its owner sees it: a stream of things to tell, in order."""

    def deliver(self, record: Record) -> None:
        """A live message."""

    def answer(self, request: int, offset: int, retained: list[Message]) -> None:
        """The interest holds from here on; these are the retained messages it matches."""

    def tell_cut(self, cut: Cut) -> None:
        """This apex is served elsewhere from here on."""

    def tell_gone(self, apex: str, epoch: int) -> None:
        """That delegation ended: the zone itself is served elsewhere, or a cut is no more."""

    def unpark(self) -> None:
        """A fence was lifted or became a cut: try again what was parked."""

    def on_durable(self, offset: int) -> None:
        """Publishes of this edge up to this offset may be acknowledged."""

    def close(self, reason: str) -> None:
        """A newer link of the same edge took over."""


class Verdict(enum.Enum):
    """What became of a publish."""

    TAKEN = "taken"
    PARKED = "parked"  # the topic is being handed over; wait for `unpark`
    NOT_AUTHORITATIVE = "not authoritative"


@attrs.define(eq=False)
class Peer:
    """
    One edge: its interest and, while it is connected, its port.

    `unclaimed` holds, for each apex inherited from an earlier owner, the offset after which this
    edge's deliveries wait until it says that it has processed the earlier owner's (rule 13).
    """

    edge: str
    incarnation: int
    filters: set[str] = attrs.Factory(set)
    port: EdgePort | None = None
    unclaimed: dict[str, int] = attrs.Factory(dict)

    def is_waiting_for(self, topic: str) -> bool:
        """Whether deliveries on the topic wait for a claim."""
        return any(is_within(topic, apex) for apex in self.unclaimed)


@attrs.frozen
class ParkedInterest:
    """A request for an interest that came while a fence was up; answered when it is lifted."""

    peer: Peer
    port: EdgePort | None
    topic_filter: str
    request: int
    retained: bool


@attrs.frozen(kw_only=True)
class Greeting:
    """What an edge says of itself when it connects; `position` None: nothing to resume."""

    edge: str
    incarnation: int
    filters: tuple[str, ...]
    claims: tuple[str, ...] = ()
    position: int | None = None
    in_doubt: tuple[MarkKey, ...] = ()


@attrs.frozen(kw_only=True)
class CatchUp:
    """
    What an edge gets before it is live again: its records above `after` (None: nothing), and none
    of `claimed` apexes up to the offset named there. `missed` offsets are kept no longer.
    """

    after: int | None = None
    claimed: dict[str, int] = attrs.field(factory=dict)
    resumed: int | None = None
    missed: int = 0
