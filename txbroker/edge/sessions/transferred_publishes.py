"""
What sessions that went to other nodes have left here: publishes that were open, places to be kept.

What became of them here the new node has to be told: one that was in doubt may go to an outbox
here, and is sent as an entry of that, of which nobody else knows. So that is durable before the
entry is (as it is with a session that stays, protocol rule 16), and kept until the new node says
that it need not ask any more. Until then no owner may forget the streams that they were sent in.
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
"""Publishes by what they were sent as when their session left."""


class TransferredPublishes:
    """See the module's text; `table` keeps them, by client id."""

    def __init__(self, table: DurableTable) -> None:
        self._table = table
        self._flows: dict[str, Flows] = {}

    def __len__(self) -> int:
        return len(self._flows)

    def load(self, is_in_outbox: Callable[[OriginId], bool]) -> None:
        """After a start; `is_in_outbox`: whether what was to become an entry of an outbox did."""
        for name, record in self._table.items():
            (rows,), _ = unpack(record)
            flows = self._flows[name.decode()] = dict(map(_flow, rows))
            for flow in flows.values():
                if flow.entry is not None and not flow.taken:
                    flow.taken = is_in_outbox(flow.entry)
                    if not flow.taken:
                        # It would seem to be drained as soon as that outbox is gone.
                        flow.entry = None
                        self._save(name.decode())

    def leave(self, client_id: str, flows: Flows) -> None:
        """A session goes; one that was here before may have left some of them then."""
        known = self._flows.get(client_id, {})
        if flows:
            self._flows[client_id] = {origin: known.get(origin, flows[origin]) for origin in flows}
            self._save(client_id)

    def note(self, client_id: str) -> None:
        """One of them becomes an entry of an outbox."""
        if client_id in self._flows:
            self._save(client_id)

    def taken(self, client_id: str) -> Iterator[OriginId]:
        """Those that are durable now."""
        return (origin for origin, flow in self._flows.get(client_id, {}).items() if flow.taken)

    def forget(self, client_id: str) -> None:
        """Nobody asks for them any more."""
        self._flows.pop(client_id, None)
        self._table.delete(client_id.encode())

    def keys(self) -> Iterator[MarkKey]:
        """The streams that owners may still be asked about."""
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
    What sessions needed of journals when they left, by the token of each move.

    This edge's low-water marks stay at these places until the owners have confirmed those of the
    nodes that have the sessions: between the two, owners would trim what the sessions wait for.
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

    def leave(
        self, client_id: str, token: bytes, needs: Iterable[LogPosition]
    ) -> tuple[LogPosition, ...]:
        """A session goes; the lowest place of each part."""
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
        """The marks of the session's new node are durable at the owners."""
        if self._moves.pop(token, None) is not None:
            self._table.delete(token)

    def places(self) -> Iterator[LogPosition]:
        """All of them."""
        for _, places in self._moves.values():
            yield from places

    def moves(self) -> Iterable[tuple[bytes, str]]:
        """The moves whose places are kept: token and client id."""
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
