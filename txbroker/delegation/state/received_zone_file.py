"""
SHELL: a zone's state that has arrived in a handover, kept until it is part of the store.

One file. At a child it is there before the child says "received", so that a crash on either side of
the parent's commit loses nothing; at a parent that takes a zone back, before it commits.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import attrs
from google.protobuf.message import DecodeError

from txbroker.delegation.delegation_table import DelegationState
from txbroker.delegation.zone_snapshot import ReceivedZone, ZoneSnapshot, in_parts
from txbroker.model.errors import StoreError
from txbroker.rpc.zone_convert import (
    Needs,
    needs_from_wire,
    needs_to_wire,
    snapshot_from_wire,
    snapshot_to_wire,
    subtree_from_wire,
    subtree_to_wire,
)
from txbroker.storage import atomic_file
from txbroker.v1 import control_pb2, store_pb2

FORMAT = 1
"""Version of the file; a newer one is refused."""


@attrs.frozen(kw_only=True)
class StagedZone:
    """
    The zone `apex` on its way here.

    `epoch` is the one at which this node is to serve it; of a zone that came back from a child, the
    one at which the child did. `needs` is what edges need of its journal.
    """

    apex: str
    epoch: int
    incoming: ReceivedZone
    needs: Needs = attrs.field(factory=dict)
    subtree: DelegationState = DelegationState()


class ReceivedZoneFile:
    """The one place for what has arrived."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def save(self, arrived: StagedZone) -> None:
        """Make it durable in place of any other; raises `StoreError`."""
        atomic_file.replace(self._path, atomic_file.to_frames(_messages(arrived)))

    def load(self) -> StagedZone | None:
        """What was saved last, None when there is nothing; raises `StoreError`."""
        messages = atomic_file.from_frames(self._path)
        if messages is None:
            return None
        try:
            return self._read(messages)
        except (DecodeError, IndexError) as error:
            raise StoreError(
                f"{self._path}: not readable as a zone's state; restore it from a backup"
            ) from error

    def remove(self) -> None:
        """It is needed no longer; raises `StoreError`."""
        atomic_file.remove(self._path)

    def _read(self, messages: list[bytes]) -> StagedZone:
        head = store_pb2.Arrived.FromString(messages[0])
        if head.format > FORMAT:
            raise StoreError(
                f"{self._path}: format {head.format} is newer than this version's {FORMAT};"
                " start the newer txbroker"
            )
        incoming = ReceivedZone()
        if head.HasField("predecessor"):
            before = head.predecessor
            incoming.predecessor = (before.zone, before.epoch, before.offset)
        for message in messages[1:]:
            incoming.take(snapshot_from_wire(control_pb2.Snapshot.FromString(message)))
        return StagedZone(
            apex=head.apex,
            epoch=head.epoch,
            incoming=incoming,
            needs=needs_from_wire(head.needs),
            subtree=subtree_from_wire(head.subtree),
        )


def _messages(arrived: StagedZone) -> Iterator[bytes]:
    head = store_pb2.Arrived(
        format=FORMAT,
        apex=arrived.apex,
        epoch=arrived.epoch,
        subtree=subtree_to_wire(arrived.subtree),
        needs=needs_to_wire(arrived.needs),
    )
    incoming = arrived.incoming
    if incoming.predecessor is not None:
        zone, epoch, offset = incoming.predecessor
        before = control_pb2.Predecessor(zone=zone, epoch=epoch, offset=offset)
        head.predecessor.CopyFrom(before)
    yield head.SerializeToString()
    for part in in_parts(incoming.retained.values()):
        yield snapshot_to_wire(part).SerializeToString()
    rest = ZoneSnapshot(
        interests=tuple(incoming.interests),
        delegations=tuple(incoming.delegations),
        marks=tuple(incoming.marks.items()),
    )
    yield snapshot_to_wire(rest).SerializeToString()
