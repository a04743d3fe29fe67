"""Converts handovers and the state that moves with a zone, between the wire and values."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from txbroker.delegation.delegation_table import Delegation, DelegationState
from txbroker.delegation.peer_checks import check, check_snapshot
from txbroker.delegation.resolution import AnswerKind, ZoneAnswer
from txbroker.delegation.tree_walk import NodeAnswer
from txbroker.delegation.zone_snapshot import EdgeInterest, Needs, ZoneSnapshot
from txbroker.model.epoch_transition import EpochTransition
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.mqtt.wire.message import Message
from txbroker.rpc.link_convert import cut_from_wire, cut_to_wire, key_from_mark, mark_to_wire
from txbroker.v1 import control_pb2, types_pb2


def snapshot_to_wire(part: ZoneSnapshot) -> control_pb2.Snapshot:
    """Convert a part of a zone's state to its wire message."""
    retained = [
        control_pb2.Retained(topic=m.topic, payload=m.payload, qos=m.qos, properties=m.properties)
        for m in part.retained
    ]
    retained += [control_pb2.Retained(topic=topic, cleared=True) for topic in part.cleared]
    return control_pb2.Snapshot(
        retained=retained,
        interests=[
            control_pb2.EdgeInterest(
                edge=interest.edge, incarnation=interest.incarnation, filters=interest.filters
            )
            for interest in part.interests
        ],
        delegations=[cut_to_wire(cut) for cut in part.delegations],
        marks=[mark_to_wire(key, sequence) for key, sequence in part.marks],
    )


def snapshot_from_wire(part: control_pb2.Snapshot) -> ZoneSnapshot:
    """Convert a wire message to a part of a zone's state."""
    return ZoneSnapshot(
        retained=tuple(
            Message(r.topic, r.payload, min(r.qos, 2), True, properties=r.properties)
            for r in part.retained
            if not r.cleared
        ),
        cleared=tuple(r.topic for r in part.retained if r.cleared),
        interests=tuple(
            EdgeInterest(edge=i.edge, incarnation=i.incarnation, filters=tuple(i.filters))
            for i in part.interests
        ),
        delegations=tuple(cut_from_wire(cut) for cut in part.delegations),
        marks=tuple((key_from_mark(mark), mark.sequence) for mark in part.marks),
    )


def checked_snapshot(part: control_pb2.Snapshot, apex: str) -> ZoneSnapshot:
    """Convert and check a part of this zone's state from another node; raises `PeerError`."""
    check(part)
    snapshot = snapshot_from_wire(part)
    check_snapshot(apex, snapshot)
    return snapshot


def subtree_to_wire(subtree: DelegationState) -> control_pb2.Subtree:
    """Convert the state of delegations below an apex to its wire message."""
    return control_pb2.Subtree(
        delegations=[
            control_pb2.Delegation(
                cut=cut_to_wire(entry.cut), below=[cut_to_wire(cut) for cut in entry.below]
            )
            for entry in subtree.delegations
        ],
        seen=ended_to_wire(subtree.epochs),
        reclaimed=[cut_to_wire(cut) for cut in subtree.reclaimed],
        passages=passages_to_wire(subtree.passages),
    )


def subtree_from_wire(subtree: control_pb2.Subtree) -> DelegationState:
    """Convert a wire message to the state of delegations below an apex."""
    return DelegationState(
        delegations=tuple(
            Delegation(
                cut=cut_from_wire(entry.cut), below=tuple(cut_from_wire(cut) for cut in entry.below)
            )
            for entry in subtree.delegations
        ),
        epochs=ended_from_wire(subtree.seen),
        reclaimed=tuple(cut_from_wire(cut) for cut in subtree.reclaimed),
        passages=passages_from_wire(subtree.passages),
    )


def place_to_wire(place: LogPosition) -> control_pb2.Predecessor:
    """Convert the end of a part, or a position in it, to its wire message."""
    (zone, epoch), offset = place
    return control_pb2.Predecessor(zone=zone, epoch=epoch, offset=offset)


def place_from_wire(place: control_pb2.Predecessor) -> LogPosition:
    """Convert a wire message to the end of a part, or a position in it."""
    return LogPosition(JournalId(place.zone, place.epoch), place.offset)


def passages_to_wire(transitions: Iterable[EpochTransition]) -> list[control_pb2.Passage]:
    """Convert epoch transitions to their wire messages."""
    return [
        control_pb2.Passage(
            apex=transition.apex,
            left=place_to_wire(transition.left),
            entered=place_to_wire(transition.entered),
        )
        for transition in transitions
    ]


def passages_from_wire(passages: Iterable[control_pb2.Passage]) -> tuple[EpochTransition, ...]:
    """Convert wire messages to epoch transitions."""
    return tuple(
        EpochTransition(
            apex=passage.apex,
            left=place_from_wire(passage.left),
            entered=place_from_wire(passage.entered),
        )
        for passage in passages
    )


def needs_to_wire(needs: Needs) -> list[control_pb2.Need]:
    """Convert edges' needed offsets to their wire messages."""
    return [
        control_pb2.Need(edge=edge, zone=part.zone, epoch=part.epoch, offset=offset)
        for edge, places in needs.items()
        for part, offset in places.items()
    ]


def needs_from_wire(needs: Iterable[control_pb2.Need]) -> Needs:
    """Convert wire messages to edges' needed offsets."""
    found: Needs = {}
    for entry in needs:
        found.setdefault(entry.edge, {})[JournalId(entry.zone, entry.epoch)] = entry.offset
    return found


def ended_to_wire(epochs: dict[str, int]) -> list[types_pb2.Gone]:
    """Convert epochs by apex to their wire messages."""
    return [types_pb2.Gone(apex=apex, epoch=epoch) for apex, epoch in epochs.items()]


def ended_from_wire(ended: Iterable[types_pb2.Gone]) -> dict[str, int]:
    """Convert wire messages to epochs by apex."""
    return {gone.apex: gone.epoch for gone in ended}


_KINDS = {
    control_pb2.ResolveReply.AUTHORITATIVE: AnswerKind.AUTHORITATIVE,
    control_pb2.ResolveReply.REFERRAL: AnswerKind.REFERRAL,
}


def answer_from_wire(reply: control_pb2.ResolveReply) -> ZoneAnswer:
    """The answer to a question of a walk; a kind that we do not know is no owner's."""
    return ZoneAnswer(
        kind=_KINDS.get(reply.answer, AnswerKind.NOT_AUTHORITATIVE),
        zone=cut_from_wire(reply.zone),
        ttl=reply.ttl,
        is_local=reply.local,
        referrals=tuple(map(cut_from_wire, reply.referrals)),
        lineage=tuple(map(cut_from_wire, reply.lineage)),
    )


def node_from_wire(reply: control_pb2.StatusReply, address: str) -> NodeAnswer:
    """The answer of the node at this address: its word on itself and on the nodes around it."""
    return NodeAnswer(
        own=attrs.evolve(cut_from_wire(reply.zone), node=reply.node, grpc=address),
        owns_zone=reply.owns_zone,
        serves=reply.owns_zone and reply.serving,
        lineage=tuple(map(cut_from_wire, reply.lineage)),
        zones=tuple(
            Delegation(cut=cut_from_wire(child.zone), below=tuple(map(cut_from_wire, child.below)))
            for child in reply.children
            if child.owns_zone
        ),
        edges=tuple(cut_from_wire(child.zone) for child in reply.children if not child.owns_zone),
        reclaimed=tuple(map(cut_from_wire, reply.reclaimed)),
    )
