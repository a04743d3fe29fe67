"""
The durable positions of an edge: how far the edge follows each zone.

A position stands for all sessions that are not behind. The position is taken first, then all
sessions that have changed by then are written, then the position is put. So no row of a session is
older than a durable position.
"""

from __future__ import annotations

from collections.abc import Mapping

from txbroker.edge.sessions.session_rows import RowTable
from txbroker.model.log_position import JournalId
from txbroker.v1 import state_pb2

PASSAGES = 4_000
"""Transitions whose names are persisted, at most; owners announce fewer."""


class StoredPositions:
    """
    The rows of `positions`, and of `passages`: the transitions that this edge has gone through.

    `is_due`: True between the taking of positions and their put.
    """

    def __init__(self, positions: RowTable, passages: RowTable) -> None:
        self._positions = positions
        self._passages = passages
        self._gone_through = dict.fromkeys(name for name, _ in passages.items())
        self._unwritten: list[bytes] = []
        self._told: dict[str, tuple[int, int]] = {}
        self._due: dict[str, tuple[int, int]] | None = None
        self._due_passages = 0

    @property
    def is_due(self) -> bool:
        """True if positions are taken, and not put."""
        return self._due is not None

    def load(self) -> dict[JournalId, int]:
        """Return, part by part, how far the sessions that were not behind had come."""
        found = {}
        for zone, value in self._positions.items():
            stored = state_pb2.Checkpoint.FromString(value)
            found[JournalId(zone.decode(), stored.epoch)] = stored.offset
        return found

    def of(self, part: JournalId) -> int:
        """The position of a part that was put last in this life of the process; 0: none."""
        epoch, offset = self._told.get(part.zone, (part.epoch, 0))
        return offset if epoch == part.epoch else 0

    def has_gone_through(self, name: bytes) -> bool:
        """True if this edge has gone through the transition."""
        return name in self._gone_through

    def note_transition(self, name: bytes) -> None:
        """
        Note that this edge has gone through a transition.

        The note is written in one commit with the next positions, so that both are true or neither.
        """
        if name not in self._gone_through:
            self._gone_through[name] = None
            self._unwritten.append(name)

    def take(self, positions: Mapping[JournalId, int]) -> None:
        """Take positions that `put` will write."""
        self._due = {part.zone: (part.epoch, offset) for part, offset in positions.items()}
        self._due_passages = len(self._unwritten)

    def put(self) -> None:
        """Put the positions that are due, with the transitions of that time."""
        due, self._due = self._due, None
        if due is None:
            return
        for name in self._unwritten[: self._due_passages]:
            self._passages.put(name, b"1")
        del self._unwritten[: self._due_passages]
        while len(self._gone_through) > PASSAGES:
            name = next(iter(self._gone_through))
            del self._gone_through[name]
            self._passages.delete(name)
        for zone, (epoch, offset) in due.items():
            self._put(zone, epoch, offset)

    def give_up(self) -> None:
        """Put nothing: the sessions could not be written."""
        self._due = None

    def close(self, part: JournalId, offset: int) -> None:
        """Put the end of a part; the part that continues it is still to be announced."""
        self._forget_due(part)
        value = self._positions.get(part.zone.encode())
        if value is None or state_pb2.Checkpoint.FromString(value).epoch <= part.epoch:
            self._put(part.zone, part.epoch, offset)

    def end(self, part: JournalId) -> None:
        """Delete the position of a part."""
        self._forget_due(part)
        value = self._positions.get(part.zone.encode())
        if value is not None and state_pb2.Checkpoint.FromString(value).epoch <= part.epoch:
            self._positions.delete(part.zone.encode())
        if self._told.get(part.zone, (part.epoch, 0))[0] <= part.epoch:
            self._told.pop(part.zone, None)

    # internal

    def _forget_due(self, part: JournalId) -> None:
        """Forget what was taken of the zone: put later, it would undo what is put now."""
        if self._due is not None:
            self._due.pop(part.zone, None)

    def _put(self, zone: str, epoch: int, offset: int) -> None:
        if self._told.get(zone) != (epoch, offset):
            self._told[zone] = (epoch, offset)
            point = state_pb2.Checkpoint(epoch=epoch, offset=offset)
            self._positions.put(zone.encode(), point.SerializeToString())
