"""The messages of a join stream up to the parent's answer, as values."""

from __future__ import annotations

import attrs

from txbroker.delegation.delegation_table import DelegationState
from txbroker.delegation.grant_state import KnownRoot
from txbroker.delegation.join_rules import Applicant, JoinRefused, ZoneElsewhere
from txbroker.delegation.zone_snapshot import MarkKey, ZoneSnapshot
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.model.zone_cut import ZoneCut


@attrs.frozen(kw_only=True)
class Announcement:
    """
    The first message of a child.

    `owns_zone`: False for a pure edge, whose zone is "". `granted_by`: the last parent's zone, at
    the epoch that this parent last reported. `takes_marks`: the child confirms `StreamMarks`; False
    for an older node.
    """

    applicant: Applicant
    owns_zone: bool = True
    granted_by: JournalId | None = None
    takes_marks: bool = True


@attrs.frozen(kw_only=True)
class StreamMarks:
    """
    Marks of publish streams, some thousands at most, before the grant of a forgotten zone.

    The child confirms them with `ZoneReceived`.
    """

    marks: tuple[tuple[MarkKey, int], ...]


@attrs.frozen(kw_only=True)
class HandoverFence:
    """
    The last message of a zone's state: the old owner accepts no more publishes of the zone.

    `left`: the end of the old owner's journal. `epoch`: the epoch of the new owner. `subtree`: the
    delegations that move along.
    """

    left: LogPosition
    epoch: int
    subtree: DelegationState


@attrs.frozen(kw_only=True)
class ZoneReceived:
    """The child's message that the zone's complete state, or each mark, is durable there."""

    epoch: int


@attrs.frozen(kw_only=True)
class JoinGranted:
    """
    The parent's grant; `epoch` 0: the parent accepts a pure edge.

    `lineage`: the zones above, root first. `ended`: the ends of zones around the child's. `below`:
    the cuts below the zone that the parent knows, for a child whose data is a copy.
    """

    epoch: int
    lineage: tuple[ZoneCut, ...] = ()
    ended: dict[str, int] = attrs.field(factory=dict)
    below: tuple[ZoneCut, ...] = ()
    root: KnownRoot | None = None


@attrs.frozen(kw_only=True)
class AnswerDelayed:
    """The parent lives, and answers when it has served the children before this one."""


@attrs.frozen(kw_only=True)
class AnsweringNode:
    """The node that answers an announcement: its name, zone, data folder and process."""

    node: str
    zone: str
    identity: str
    life: str


@attrs.frozen(kw_only=True)
class ParentAnswer:
    """The answer to an announcement; `who`: the node that answers, None for an older node."""

    answer: JoinGranted | JoinRefused | ZoneElsewhere
    who: AnsweringNode | None = None


ChildMessage = Announcement | ZoneReceived
ParentMessage = ZoneSnapshot | HandoverFence | StreamMarks | AnswerDelayed | ParentAnswer
