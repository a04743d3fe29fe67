"""The messages of a hand-back stream, as values."""

from __future__ import annotations

import enum

import attrs

from txbroker.delegation.delegation_table import DelegationState
from txbroker.delegation.join_rules import JoinRefused
from txbroker.delegation.zone_snapshot import Needs, ZoneSnapshot
from txbroker.model.log_position import JournalId


@attrs.frozen(kw_only=True)
class HandBackOffer:
    """
    The first message of a child: it gives `zone` back, which it serves at `epoch`.

    `journal`: the most bytes of journal that may follow.
    """

    node: str
    zone: str
    epoch: int
    journal: int = 0


@attrs.frozen(kw_only=True)
class HandBackReady:
    """The parent expects the next messages; `have`: the journal parts that it has already."""

    have: frozenset[JournalId] = frozenset()


@attrs.frozen(kw_only=True)
class JournalCopy:
    """All parts of the zone's journal but those in `have`: many messages on the wire."""

    have: frozenset[JournalId]


@attrs.frozen(kw_only=True)
class JournalRest:
    """The batches that were appended since the `JournalCopy`."""


@attrs.frozen(kw_only=True)
class JournalCopied:
    """The child's journal is copied, and nobody needs the child but for its zone."""


@attrs.frozen(kw_only=True)
class SignOfLife:
    """The child lives, and sends its next message later."""


@attrs.frozen(kw_only=True)
class HandBackFence:
    """
    The last message of a child: its zone accepts no more publishes.

    `offset`: the end of the child's journal. `needs`: the offsets that edges still need.
    """

    offset: int
    subtree: DelegationState
    needs: Needs


@attrs.frozen(kw_only=True)
class HandBackCommitted:
    """The zone is the parent's again; `epoch` is above the child's."""

    epoch: int


class HandBackOutcome(enum.Enum):
    """The end of a hand-back, as the parent knows it."""

    UNKNOWN = "unknown"
    HELD = "held"
    ENDED = "ended"


OfferMessage = (
    HandBackOffer
    | JournalCopy
    | JournalRest
    | JournalCopied
    | SignOfLife
    | ZoneSnapshot
    | HandBackFence
)
OfferReply = HandBackReady | JoinRefused | HandBackCommitted
