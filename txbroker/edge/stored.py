"""Durable sessions as they are stored: a record for what changes rarely, one for the rest."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from txbroker.message import Message
from txbroker.mqtt.session import (
    Cursor,
    Incoming,
    Outgoing,
    Session,
    StreamKey,
    Subscription,
)
from txbroker.place import PartKey, Place
from txbroker.v1 import state_pb2


def encode_session(session: Session, away_since: int) -> bytes:
    """The rare part; `away_since` in microseconds UTC, 0 while the client is here."""
    stored = state_pb2.StoredSession(
        incarnation=session.incarnation, away_since=away_since, dropped=session.dropped
    )
    for subscription in session.subscriptions.values():
        kept = stored.subscriptions.add(
            filter=subscription.topic_filter,
            qos=subscription.qos,
            pending=sorted(subscription.pending),
        )
        kept.starts.extend(_place(Place(p, o)) for p, o in subscription.starts.items())
    return stored.SerializeToString()


def decode_session(value: bytes, session: Session) -> int:
    """Give the session its rare part back; returns `away_since`."""
    stored = state_pb2.StoredSession.FromString(value)
    session.incarnation = stored.incarnation
    session.dropped = stored.dropped
    for kept in stored.subscriptions:
        session.subscriptions[kept.filter] = Subscription(
            kept.filter,
            kept.qos,
            set(kept.pending),
            {_part(start.part): start.offset for start in kept.starts},
        )
    return stored.away_since


def encode_window(session: Session) -> bytes:
    """The part that changes with each message."""
    window = state_pb2.StoredWindow()
    index = _Parts(window)
    cursors = {part: cursor.offset for part, cursor in session.behind.items()}
    for packet_id, entry in session.flows():
        index.add_flow(packet_id, entry)
    for entry in session.queue():
        if entry.place is None:
            index.add_flow(0, entry)
        else:  # not in flight: it is read again
            part, offset = entry.place
            cursors[part] = min(cursors.get(part, offset), offset - 1)
    for part, offset in cursors.items():
        _add_cursor(window, index, session.behind.get(part) or Cursor(part, offset), offset)
    for part, offset in session.taken.items():
        if part not in cursors:
            window.taken.add(part=index.of(part), offset=offset)
    for publish in session.open_publishes():
        if publish.taken or publish.origin or publish.entry:
            _add_publish(window, publish)
    window.last_id = session.last_id
    return window.SerializeToString()


@attrs.frozen(kw_only=True)
class Restored:
    """What a window held: for `Session.restore`, and the rest."""

    flows: list[tuple[int, Outgoing]]
    queue: list[Outgoing]
    publishes: list[Incoming]
    last_id: int


def decode_window(value: bytes, session: Session) -> Restored:
    """Give the session its cursors back; the flows are for its `restore`."""
    window = state_pb2.StoredWindow.FromString(value)
    parts = [_part(part) for part in window.parts]
    for kept in window.cursors:
        part = parts[kept.part]
        after = Place(_part(kept.after.part), kept.after.offset) if kept.HasField("after") else None
        stops = [Place(_part(stop.part), stop.offset) for stop in kept.stops]
        session.behind[part] = Cursor(part, kept.offset, kept.until or None, after, stops)
    for taken in window.taken:
        session.taken[parts[taken.part]] = taken.offset
    flows = [(flow.packet_id, _flow(flow, parts)) for flow in window.flows]
    return Restored(
        flows=[(packet_id, entry) for packet_id, entry in flows if packet_id],
        queue=[entry for packet_id, entry in flows if not packet_id],
        publishes=[_publish(kept) for kept in window.publishes],
        last_id=window.last_id,
    )


class _Parts:
    """The parts that a window speaks of, each written once."""

    def __init__(self, window: state_pb2.StoredWindow) -> None:
        self._window = window
        self._index: dict[PartKey, int] = {}

    def of(self, part: PartKey) -> int:
        index = self._index.get(part)
        if index is None:
            index = self._index[part] = len(self._index)
            self._window.parts.add(zone=part.zone, epoch=part.epoch)
        return index

    def add_flow(self, packet_id: int, entry: Outgoing) -> None:
        message, place = entry.message, entry.place
        flow = self._window.flows.add(
            packet_id=packet_id, qos=entry.qos, retain=entry.retain, released=entry.released
        )
        if place is not None:
            flow.part, flow.offset = self.of(place.part) + 1, place.offset
        elif message is not None:
            flow.topic, flow.payload = message.topic, message.payload
            flow.message_qos = message.qos


def _add_cursor(window: state_pb2.StoredWindow, index: _Parts, cursor: Cursor, offset: int) -> None:
    kept = window.cursors.add(part=index.of(cursor.part), offset=offset, until=cursor.until or 0)
    if cursor.after is not None:
        kept.after.CopyFrom(_place(cursor.after))
    kept.stops.extend(_places(cursor.stops))


def _add_publish(window: state_pb2.StoredWindow, publish: Incoming) -> None:
    kept = window.publishes.add(packet_id=publish.packet_id, taken=publish.taken)
    if publish.origin is not None:
        kept.origin.CopyFrom(_mark(*publish.origin))
    if publish.entry is not None:
        kept.entry.CopyFrom(_mark(*publish.entry))


def _publish(kept: state_pb2.StoredPublish) -> Incoming:
    return Incoming(
        kept.packet_id,
        2,
        kept.taken,
        0,
        origin=_sent_as(kept.origin) if kept.HasField("origin") else None,
        entry=_sent_as(kept.entry) if kept.HasField("entry") else None,
    )


def _mark(key: StreamKey, sequence: int) -> state_pb2.StoredMark:
    edge, incarnation, zone, stream = key
    return state_pb2.StoredMark(
        edge=edge, incarnation=incarnation, zone=zone, stream=stream, sequence=sequence
    )


def _sent_as(mark: state_pb2.StoredMark) -> tuple[StreamKey, int]:
    return (mark.edge, mark.incarnation, mark.zone, mark.stream), mark.sequence


def _flow(flow: state_pb2.StoredFlow, parts: list[PartKey]) -> Outgoing:
    place = Place(parts[flow.part - 1], flow.offset) if flow.part else None
    message = None if place else Message(flow.topic, flow.payload, flow.message_qos, flow.retain)
    return Outgoing(message, flow.qos, flow.retain, place, released=flow.released, is_sent=True)


def _places(places: Iterable[Place]) -> list[state_pb2.StoredPlace]:
    return [_place(place) for place in places]


def _place(place: Place) -> state_pb2.StoredPlace:
    part = state_pb2.StoredPart(zone=place.part.zone, epoch=place.part.epoch)
    return state_pb2.StoredPlace(part=part, offset=place.offset)


def _part(stored: state_pb2.StoredPart) -> PartKey:
    return PartKey(stored.zone, stored.epoch)
