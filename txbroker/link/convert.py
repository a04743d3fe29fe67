"""Wire messages to our values and back."""

from __future__ import annotations

from txbroker.authority.handover import MarkKey
from txbroker.delegation.cut import Cut
from txbroker.v1 import types_pb2


def cut_to_wire(cut: Cut) -> types_pb2.Cut:
    """A cut as the wire has it."""
    return types_pb2.Cut(apex=cut.apex, epoch=cut.epoch, node=cut.node, grpc=cut.grpc)


def cut_from_wire(cut: types_pb2.Cut) -> Cut:
    """A cut as we have it."""
    return Cut(apex=cut.apex, epoch=cut.epoch, node=cut.node, grpc=cut.grpc)


def key_from_mark(mark: types_pb2.Mark) -> MarkKey:
    """Which stream a mark is about."""
    return (mark.edge, mark.incarnation, mark.zone, mark.stream)


def mark_to_wire(key: MarkKey, sequence: int) -> types_pb2.Mark:
    """A mark as the wire has it."""
    edge, incarnation, zone, stream = key
    return types_pb2.Mark(
        edge=edge, incarnation=incarnation, zone=zone, stream=stream, sequence=sequence
    )
