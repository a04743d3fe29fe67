"""The stored form of a session's window: cursors, messages in flight, the client's open publishes.

Each message that cannot be read again has a value of its own, which the window names by number. A
window that moves to another node has these messages inside.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from operator import sub
from typing import Final

import attrs

from txbroker.model.log_position import JournalId, LogPosition
from txbroker.mqtt.session.cursor import Cursor, MergedPart
from txbroker.mqtt.session.inbound_publish import InboundPublish, StreamKey
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.session.window import LAST_PACKET_ID, Lent, OutboundMessage
from txbroker.mqtt.wire.message import Message
from txbroker.v1 import state_pb2

LEAST_ALIKE: Final = 16
"""Messages of a run with consecutive offsets that are stored without a look at each."""

_ONE_EACH: Final = b"\x5a"  # the tag of `StoredFlow.steps`
_ONE: Final = b"\x02"  # a step of 1


def encode_window(session: Session, *, whole: bool = False, publishes: bool = True) -> bytes:
    """
    Encode the part that changes with each message.

    `whole`: include the messages that cannot be read again, which otherwise are referred to by
    number. Unless `publishes`, the client's publishes have rows of their own.
    """
    sender = session.durable_sender
    window = state_pb2.StoredWindow(last_id=sender.last_id)
    index = _Parts(window, session.now())
    index.add_flows(sender.flows(), whole=whole)
    index.add_runs(sender.open_runs(), {packet_id for packet_id, _ in sender.flows()})
    held = list(sender.held())
    if whole:
        for entry in held:
            index.add_flow(0, entry, whole=True)
    elif held:
        window.held_first, window.held = held[0].number, len(held)
    cursors = {part: cursor.offset for part, cursor in session.places.behind.items()}
    for part, offset in sender.first_queued().items():  # not in flight: the message is read again
        cursors[part] = min(cursors.get(part, offset), offset - 1)
    for part, offset in cursors.items():
        _add_cursor(window, index, session.places.behind.get(part) or Cursor(part, offset), offset)
    for part, offset in session.places.taken.items():
        if part not in cursors:
            window.taken.add(part=index.of(part), offset=offset)
    for part, known in session.places.had.items():
        for had in known:
            _add_had(window, index.of(part), had)
    for part, offset in session.places.cut_off.items():
        window.cut_off.add(part=index.of(part), offset=offset)
    if publishes:
        window.publishes.extend(map(_stored_publish, session.stored_publishes()))
    return window.SerializeToString()


def encode_publish(publish: InboundPublish) -> bytes:
    """Encode a publish of the client for a row of its own."""
    return _stored_publish(publish).SerializeToString()


def decode_publish(value: bytes) -> InboundPublish:
    """Decode a publish of the client from a row of its own."""
    return _publish(state_pb2.StoredPublish.FromString(value))


def encode_numbered(entry: OutboundMessage, now: float, kept_at: int) -> bytes:
    """
    Encode a message that cannot be read again, with what is left of its interval `now`.

    `kept_at`: the same moment by the node's message clock, which goes on over a restart.
    """
    flow = state_pb2.StoredFlow(qos=entry.qos, retain=entry.retain, identifiers=entry.identifiers)
    _add_message(flow, entry, now)
    if entry.until is not None:
        flow.kept_at = kept_at
    return flow.SerializeToString()


@attrs.frozen(kw_only=True)
class RestoredWindow:
    """The contents of a window, for `Session.restore`; the session has its cursors already."""

    flows: list[tuple[int, OutboundMessage]]
    held: list[OutboundMessage]
    publishes: list[InboundPublish]
    last_id: int


def decode_window(
    value: bytes, session: Session, numbered: Callable[[int], bytes | None], clock: int = 0
) -> RestoredWindow:
    """
    Restore the session's cursors; `numbered` finds the messages that are stored by number.

    `clock`: the reading of the node's message clock.
    """
    window = state_pb2.StoredWindow.FromString(value)
    parts = [part_of(part) for part in window.parts]
    for kept in window.cursors:
        part = parts[kept.part]
        after = (
            LogPosition(part_of(kept.after.part), kept.after.offset)
            if kept.HasField("after")
            else None
        )
        stops = tuple(LogPosition(part_of(stop.part), stop.offset) for stop in kept.stops)
        session.places.add(Cursor(part, kept.offset, kept.until or None, after, stops))
    for taken in window.taken:
        session.places.advance(parts[taken.part], taken.offset)
    for stored in window.had:
        part = parts[stored.part]
        session.places.set_had(part, (*session.places.had.get(part, ()), _had(stored)))
    for aside in window.cut_off:
        session.places.suspend(parts[aside.part], aside.offset)
    flows = [flow for stored in window.flows for flow in _flows(stored, parts, numbered, clock)]
    numbers = range(window.held_first, window.held_first + window.held)
    held = [_numbered(number, numbered(number), clock) for number in numbers]
    return RestoredWindow(
        flows=[(packet_id, entry) for packet_id, entry in flows if packet_id and entry is not None],
        held=[entry for packet_id, entry in flows if not packet_id and entry is not None]
        + [entry for entry in held if entry is not None],
        publishes=[_publish(kept) for kept in window.publishes],
        last_id=window.last_id,
    )


def stored_places(value: bytes) -> dict[JournalId, int]:
    """Return where the session of a stored window reads on, by part."""
    window = state_pb2.StoredWindow.FromString(value)
    return {part_of(window.parts[kept.part]): kept.offset for kept in window.cursors}


class _Parts:
    """The parts that a window refers to, each written once; messages are written as of `now`."""

    def __init__(self, window: state_pb2.StoredWindow, now: float) -> None:
        self._window = window
        self._now = now
        self._index: dict[JournalId, int] = {}

    def of(self, part: JournalId) -> int:
        index = self._index.get(part)
        if index is None:
            index = self._index[part] = len(self._index)
            self._window.parts.add(zone=part.zone, epoch=part.epoch)
        return index

    def add_flows(self, flows: Iterable[tuple[int, OutboundMessage]], *, whole: bool) -> None:
        """
        Add flows; a run with consecutive packet ids, usual in a catch-up, becomes one stored flow.
        """
        before: OutboundMessage | None = None
        last_id = 0
        steps: list[int] = []
        for packet_id, entry in flows:
            step = _step(before, entry) if before and packet_id == last_id + 1 else None
            if step is None:
                self._end_run(steps)
                self.add_flow(packet_id, entry, whole=whole)
            else:
                steps.append(step)
            before, last_id = entry, packet_id
        self._end_run(steps)

    def add_runs(
        self, runs: Iterable[tuple[JournalId, Sequence[int]]], taken: Collection[int]
    ) -> None:
        """Add messages that are in flight in runs, under packet ids that are not taken."""
        free = _gaps(taken)
        ids = range(0)
        for part, offsets in runs:
            at = 0
            while at < len(offsets):
                ids = ids or next(free)
                some = _alike(offsets, at, at + len(ids))
                flow = self._window.flows.add(
                    packet_id=ids[0], qos=1, part=self.of(part) + 1, offset=some[0]
                )
                more = len(some) - 1
                if some[-1] - some[0] == more:
                    flow.MergeFromString(_ONE_EACH + length_prefix(more) + _ONE * more)
                else:
                    flow.steps.extend(map(sub, some[1:], some))
                at += len(some)
                ids = ids[len(some) :]

    def _end_run(self, steps: list[int]) -> None:
        if steps:
            self._window.flows[-1].steps.extend(steps)
            steps.clear()

    def add_flow(self, packet_id: int, entry: OutboundMessage, *, whole: bool) -> None:
        place = entry.place
        flow = self._window.flows.add(
            packet_id=packet_id,
            qos=entry.qos,
            retain=entry.retain,
            released=entry.released,
            identifiers=entry.identifiers,
        )
        if place is not None:
            flow.part, flow.offset = self.of(place.part) + 1, place.offset
        elif whole:
            _add_message(flow, entry, self._now)
        else:
            flow.number = entry.number


def _alike(offsets: Sequence[int], at: int, stop: int) -> Sequence[int]:
    """
    Return the offsets from `at` on that follow one another; all up to `stop` if these are few.
    """
    stop = min(stop, len(offsets))
    begin = offsets[at] - at
    end = bisect_left(range(stop), True, at, stop, key=lambda one: offsets[one] - one > begin)
    return offsets[at:end] if end - at >= LEAST_ALIKE else offsets[at:stop]


def _gaps(taken: Collection[int]) -> Iterator[range]:
    """Yield the packet ids that are not taken, as ranges."""
    first = 1
    for packet_id in (*sorted(taken), LAST_PACKET_ID + 1):
        if packet_id > first:
            yield range(first, packet_id)
        first = packet_id + 1


def _step(before: OutboundMessage, entry: OutboundMessage) -> int | None:
    """
    Return the distance of an entry's offset from the entry before; None if more than that differs.
    """
    here, there = before.place, entry.place
    if (
        here is None
        or there is None
        or here.part != there.part
        or before.qos != entry.qos
        or before.retain != entry.retain
        or before.identifiers != entry.identifiers
        or before.released != entry.released
    ):
        return None
    return there.offset - here.offset


def _add_message(flow: state_pb2.StoredFlow, entry: OutboundMessage, now: float) -> None:
    message = entry.aged(now)
    if message is not None:
        flow.topic, flow.payload, flow.message_qos = message.topic, message.payload, message.qos
        flow.properties = message.properties
    if entry.lent is not None:
        flow.group = entry.lent.group
        flow.lent.CopyFrom(stored_place(entry.lent.place))


def _add_cursor(window: state_pb2.StoredWindow, index: _Parts, cursor: Cursor, offset: int) -> None:
    kept = window.cursors.add(part=index.of(cursor.part), offset=offset, until=cursor.until or 0)
    if cursor.after is not None:
        kept.after.CopyFrom(stored_place(cursor.after))
    kept.stops.extend(_places(cursor.stops))


def _add_had(window: state_pb2.StoredWindow, part: int, had: MergedPart) -> None:
    filters, starts = [text for text, _ in had.filters], [start for _, start in had.filters]
    left = sorted(had.left)
    window.had.add(part=part, through=had.through, filters=filters, starts=starts, left=left)


def _had(stored: state_pb2.StoredHad) -> MergedPart:
    filters = tuple(zip(stored.filters, stored.starts, strict=True))
    return MergedPart(through=stored.through, filters=filters, left=frozenset(stored.left))


def _stored_publish(publish: InboundPublish) -> state_pb2.StoredPublish:
    kept = state_pb2.StoredPublish(
        packet_id=publish.packet_id,
        taken=publish.taken,
        checksum=publish.checksum,
        must_match=publish.must_match,
    )
    if publish.origin is not None:
        kept.origin.CopyFrom(_mark(*publish.origin))
    if publish.entry is not None:
        kept.entry.CopyFrom(_mark(*publish.entry))
    return kept


def _publish(kept: state_pb2.StoredPublish) -> InboundPublish:
    return InboundPublish(
        kept.packet_id,
        2,
        kept.taken,
        0,
        origin=_sent_as(kept.origin) if kept.HasField("origin") else None,
        entry=_sent_as(kept.entry) if kept.HasField("entry") else None,
        checksum=kept.checksum,
        must_match=kept.must_match,
    )


def _mark(key: StreamKey, sequence: int) -> state_pb2.StoredMark:
    edge, incarnation, zone, stream = key
    return state_pb2.StoredMark(
        edge=edge, incarnation=incarnation, zone=zone, stream=stream, sequence=sequence
    )


def _sent_as(mark: state_pb2.StoredMark) -> tuple[StreamKey, int]:
    return (mark.edge, mark.incarnation, mark.zone, mark.stream), mark.sequence


def _flows(
    stored: state_pb2.StoredFlow,
    parts: list[JournalId],
    numbered: Callable[[int], bytes | None],
    clock: int,
) -> Iterator[tuple[int, OutboundMessage | None]]:
    """Yield packet ids with their messages: one, or a run of them."""
    entry = _flow(stored, parts, numbered, clock)
    yield stored.packet_id, entry
    if entry is not None and entry.place is not None:
        part, offset = entry.place
        for packet_id, step in enumerate(stored.steps, stored.packet_id + 1):
            offset += step
            yield packet_id, attrs.evolve(entry, place=LogPosition(part, offset))


def _flow(
    flow: state_pb2.StoredFlow,
    parts: list[JournalId],
    numbered: Callable[[int], bytes | None],
    clock: int,
) -> OutboundMessage | None:
    """Decode a message in flight; None if it was stored by number and its value is missing."""
    if flow.number:
        entry = _numbered(flow.number, numbered(flow.number), clock)
        if entry is None:
            return None
        entry.released = flow.released
    elif flow.part:
        place = LogPosition(parts[flow.part - 1], flow.offset)
        entry = OutboundMessage(None, flow.qos, flow.retain, place)
    else:
        entry = OutboundMessage(_message(flow), flow.qos, flow.retain, lent=_lent(flow))
    entry.released = flow.released
    entry.identifiers = tuple(flow.identifiers)
    entry.is_sent = bool(flow.packet_id)
    return entry


def _numbered(number: int, value: bytes | None, clock: int) -> OutboundMessage | None:
    if value is None:
        return None
    flow = state_pb2.StoredFlow.FromString(value)
    message = _message(flow)
    if flow.kept_at:
        message = message.aged(max(clock - flow.kept_at, 0) / 1e6)
    return OutboundMessage(
        message,
        flow.qos,
        flow.retain,
        None,
        tuple(flow.identifiers),
        number,
        lent=_lent(flow),
    )


def _lent(flow: state_pb2.StoredFlow) -> Lent | None:
    if not flow.group:
        return None
    return Lent(flow.group, LogPosition(part_of(flow.lent.part), flow.lent.offset))


def _message(flow: state_pb2.StoredFlow) -> Message:
    return Message(
        flow.topic, flow.payload, flow.message_qos, flow.retain, properties=flow.properties
    )


def _places(places: Iterable[LogPosition]) -> list[state_pb2.StoredPlace]:
    return [stored_place(place) for place in places]


def stored_place(place: LogPosition) -> state_pb2.StoredPlace:
    """Return the stored form of a log position."""
    part = state_pb2.StoredPart(zone=place.part.zone, epoch=place.part.epoch)
    return state_pb2.StoredPlace(part=part, offset=place.offset)


def part_of(stored: state_pb2.StoredPart) -> JournalId:
    """Return the journal part that was stored."""
    return _part_key(stored.zone, stored.epoch)


@lru_cache(maxsize=4096)
def _part_key(zone: str, epoch: int) -> JournalId:
    """Return one shared object for all references to the part."""
    return JournalId(zone, epoch)


def length_prefix(size: int) -> bytes:
    """Encode a length as protobuf does before a field."""
    if size < 0x80:
        return _SHORT[size]
    return bytes((size & 0x7F | 0x80,)) + length_prefix(size >> 7)


_SHORT: Final = [bytes((size,)) for size in range(0x80)]
