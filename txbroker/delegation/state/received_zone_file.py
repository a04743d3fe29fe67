"""
SHELL: the file of a zone's state that a handover brought, until the state is part of the store.

A child writes the file before it reports "received". So a crash on either side of the parent's
commit loses nothing. A parent that takes a zone back writes the file before its commit.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from google.protobuf.message import DecodeError

from txbroker.delegation.zone_snapshot import ReceivedZone, StagedZone, ZoneSnapshot, in_parts
from txbroker.model.errors import StoreError
from txbroker.rpc.zone_convert import (
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
"""Version of the file; a start refuses a newer one."""


class ReceivedZoneFile:
    """The file that holds the last received state; a node has one."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def save(self, staged_zone: StagedZone) -> None:
        """Make the state durable in place of any other; raises `StoreError`."""
        atomic_file.replace(self._path, atomic_file.to_frames(_messages(staged_zone)))

    def load(self) -> StagedZone | None:
        """Load the last saved state; None if the file is missing; raises `StoreError`."""
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
        """Delete the file; raises `StoreError`."""
        atomic_file.remove(self._path)

    def _read(self, messages: list[bytes]) -> StagedZone:
        head = store_pb2.Arrived.FromString(messages[0])
        if head.format > FORMAT:
            raise StoreError(
                f"{self._path}: format {head.format} is newer than this version's {FORMAT};"
                " start the newer txbroker"
            )
        received_zone = ReceivedZone()
        if head.HasField("predecessor"):
            before = head.predecessor
            received_zone.predecessor = (before.zone, before.epoch, before.offset)
        for message in messages[1:]:
            received_zone.merge(snapshot_from_wire(control_pb2.Snapshot.FromString(message)))
        return StagedZone(
            apex=head.apex,
            epoch=head.epoch,
            incoming=received_zone,
            needs=needs_from_wire(head.needs),
            subtree=subtree_from_wire(head.subtree),
        )


def _messages(staged_zone: StagedZone) -> Iterator[bytes]:
    head = store_pb2.Arrived(
        format=FORMAT,
        apex=staged_zone.apex,
        epoch=staged_zone.epoch,
        subtree=subtree_to_wire(staged_zone.subtree),
        needs=needs_to_wire(staged_zone.needs),
    )
    received_zone = staged_zone.incoming
    if received_zone.predecessor is not None:
        zone, epoch, offset = received_zone.predecessor
        before = control_pb2.Predecessor(zone=zone, epoch=epoch, offset=offset)
        head.predecessor.CopyFrom(before)
    yield head.SerializeToString()
    for part in in_parts(received_zone.retained.values()):
        yield snapshot_to_wire(part).SerializeToString()
    rest = ZoneSnapshot(
        interests=tuple(received_zone.interests),
        delegations=tuple(received_zone.delegations),
        marks=tuple(received_zone.marks.items()),
    )
    yield snapshot_to_wire(rest).SerializeToString()
