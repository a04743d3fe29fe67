"""
State that sessions leave at this node when they move: open publishes, and positions in journals.

The new node has to hear how each open publish ended here. A publish in doubt may go to an outbox of
this node. The outbox sends it under the entry's id, which no other node knows. So the entry's id is
durable here before the entry (as for a session that stays, protocol rule 16). The row stays until
the new node has no publish in doubt. Until then no owner may forget the streams in which the
publishes were sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from txbroker.delegation.zone_snapshot import MarkKey
from txbroker.directory.directory_ports import DurableTable
from txbroker.directory.entry import pack, unpack
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.mqtt.session.inbound_publish import InboundPublish, OriginId

Flows = dict[OriginId, InboundPublish]
"""Publishes by the origin id that they had when their session left."""


class TransferredPublishes:
    """See the module's text; `table` has one row for each client id."""

    def __init__(self, table: DurableTable) -> None:
        self._table = table
        self._flows: dict[str, Flows] = {}

    def __len__(self) -> int:
        return len(self._flows)

    def load(self, is_in_outbox: Callable[[OriginId], bool]) -> None:
        """Load after a start; `is_in_outbox` is True if a publish became its outbox entry."""
        for name, record in self._table.items():
            (rows,), _ = unpack(record)
            flows = self._flows[name.decode()] = dict(map(_flow, rows))
            for flow in flows.values():
                if flow.entry is not None and not flow.taken:
                    flow.taken = is_in_outbox(flow.entry)
                    if not flow.taken:
                        # A missing entry counts as drained as soon as that outbox is gone, so the
                        # id is removed now.
                        flow.entry = None
                        self._save(name.decode())

    def store(self, client_id: str, flows: Flows) -> None:
        """Store the publishes of a session that leaves; publishes that it left here before win."""
        known = self._flows.get(client_id, {})
        if flows:
            self._flows[client_id] = {origin: known.get(origin, flows[origin]) for origin in flows}
            self._save(client_id)

    def mark_changed(self, client_id: str) -> None:
        """Save the client's publishes: one of them becomes an outbox entry."""
        if client_id in self._flows:
            self._save(client_id)

    def accepted_ids(self, client_id: str) -> Iterator[OriginId]:
        """
        Return the origin ids of publishes that owners have accepted, or that are durable in an
        outbox.
        """
        return (origin for origin, flow in self._flows.get(client_id, {}).items() if flow.taken)

    def forget(self, client_id: str) -> None:
        """Delete the client's publishes: no node asks about them any more."""
        self._flows.pop(client_id, None)
        self._table.delete(client_id.encode())

    def keys(self) -> Iterator[MarkKey]:
        """Return the streams that owners may still be asked about."""
        for flows in self._flows.values():
            yield from dict.fromkeys(key for key, _ in flows)

    def _save(self, client_id: str) -> None:
        rows = [
            [flow.packet_id, origin, flow.taken, flow.entry]
            for origin, flow in self._flows[client_id].items()
        ]
        self._table.put(client_id.encode(), pack([rows]))


class TransferredCursors:
    """
    Journal positions of sessions that moved away, by the token of each move.

    This edge's low-water marks stay at these positions until owners have confirmed the marks of the
    sessions' new nodes. Otherwise owners would, in between, trim records that the sessions wait
    for.
    """

    def __init__(self, table: DurableTable) -> None:
        self._table = table
        self._moves: dict[bytes, tuple[str, tuple[LogPosition, ...]]] = {}
        for token, record in table.items():
            (client_id, rows), _ = unpack(record)
            places = tuple(
                LogPosition(JournalId(zone, epoch), offset) for zone, epoch, offset in rows
            )
            self._moves[token] = client_id, places

    def __len__(self) -> int:
        return len(self._moves)

    def store(
        self, client_id: str, token: bytes, needs: Iterable[LogPosition]
    ) -> tuple[LogPosition, ...]:
        """Store the lowest position of each part for a session that leaves; return these."""
        lowest: dict[JournalId, int] = {}
        for part, offset in needs:
            lowest[part] = min(offset, lowest.get(part, offset))
        places = tuple(LogPosition(part, offset) for part, offset in lowest.items())
        if places:
            self._moves[token] = client_id, places
            rows = [[part.zone, part.epoch, offset] for part, offset in places]
            self._table.put(token, pack([client_id, rows]))
        return places

    def forget(self, token: bytes) -> None:
        """Delete the positions of a move: the new node's marks are durable at the owners."""
        if self._moves.pop(token, None) is not None:
            self._table.delete(token)

    def places(self) -> Iterable[tuple[LogPosition, ...]]:
        """Return the positions of each move."""
        return (places for _, places in self._moves.values())

    def moves(self) -> Iterable[tuple[bytes, str]]:
        """Return token and client id of each move with positions."""
        return [(token, client_id) for token, (client_id, _) in self._moves.items()]


def _flow(row: list[Any]) -> tuple[OriginId, InboundPublish]:
    packet_id, fields, taken, entry = row
    origin = _origin(fields)
    flow = InboundPublish(packet_id, 2, taken, 0, origin=origin)
    flow.entry = None if entry is None else _origin(entry)
    return origin, flow


def _origin(fields: list[Any]) -> OriginId:
    (edge, incarnation, zone, stream), sequence = fields
    return (edge, incarnation, zone, stream), sequence
