"""Snapshots of a handover, between the wire and our values."""

from __future__ import annotations

from txbroker.authority.handover import EdgeInterest, Snapshot
from txbroker.link.convert import cut_from_wire, cut_to_wire, key_from_mark, mark_to_wire
from txbroker.message import Message
from txbroker.v1 import control_pb2


def snapshot_to_wire(part: Snapshot) -> control_pb2.Snapshot:
    """A part of a zone's state as the wire has it."""
    retained = [
        control_pb2.Retained(topic=m.topic, payload=m.payload, qos=m.qos) for m in part.retained
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


def snapshot_from_wire(part: control_pb2.Snapshot) -> Snapshot:
    """A part of a zone's state as we have it."""
    return Snapshot(
        retained=tuple(
            Message(r.topic, r.payload, min(r.qos, 2), True) for r in part.retained if not r.cleared
        ),
        cleared=tuple(r.topic for r in part.retained if r.cleared),
        interests=tuple(
            EdgeInterest(edge=i.edge, incarnation=i.incarnation, filters=tuple(i.filters))
            for i in part.interests
        ),
        delegations=tuple(cut_from_wire(cut) for cut in part.delegations),
        marks=tuple((key_from_mark(mark), mark.sequence) for mark in part.marks),
    )
