"""
A client's SUBSCRIBE and UNSUBSCRIBE packets: the admitted filters, and the answers.

A large packet is processed in pieces, between the turns of other clients: one of 200,000 filters
stopped a node for 8 s. Its one answer leaves when all pieces are done.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final

import attrs

from txbroker.model.share_name import GROUP_PREFIX, shared_subscription
from txbroker.model.topics import TopicError
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.transport.service import MqttService
from txbroker.mqtt.wire.decoder import (
    request_head,
    subscribed_filters,
    unsubscribed_filters,
)
from txbroker.mqtt.wire.packet_kind import PacketKind
from txbroker.mqtt.wire.packets import LEVEL_5, Suback, Subscribe, Unsuback, Unsubscribe
from txbroker.mqtt.wire.properties import NO_PROPERTIES, Properties
from txbroker.mqtt.wire.reason_codes import ReasonCode
from txbroker.mqtt.wire.return_codes import SUBACK_FAILURE, ProtocolViolation
from txbroker.mqtt.wire.subscription_options import QOS_BITS
from txbroker.runtime.structured_log import get_logger, log_limited

log = get_logger()

LARGE: Final = 2_048
"""Bytes from which a packet is processed in pieces."""

PIECE: Final = 32
"""Filters of a piece."""

LARGE_WITH_GROUPS: Final = 128
"""The same as `LARGE` for a packet with shared subscriptions: each may begin or end a session."""

PIECE_WITH_GROUPS: Final = 2
"""Filters of a piece of a packet with shared subscriptions."""

MOST_NAMED: Final = 100
"""Zones that one SUBACK names as pending."""

PENDING_ZONE: Final = "pending-zone"
"""Name of the user property of SUBACK with the apex of a zone that has not confirmed."""

CHECKED: Final = 256
"""Filters that one step checks, before any takes effect."""

SUBSCRIBE: Final = 0x82
UNSUBSCRIBE: Final = 0xA2

MOST_BYTES: Final = 64 * 1024 * 1024
"""
Bytes of all subscriptions' filters, beyond which a session has room for `FEW_BYTES`.

A session may have 10,000 filters of 64 KiB. One stranger with a single connection filled the memory
of a node.
"""

FEW_BYTES: Final = 16 * 1024
"""Bytes of filters that any session may have: those of a usual client."""

Send = Callable[[Suback | Unsuback], None]
"""Sends an answer to the client, if the connection of the request is still the session's."""


def is_large(first_byte: int, body: bytes) -> bool:
    """True if `process_large` must process the packet."""
    if first_byte not in (SUBSCRIBE, UNSUBSCRIBE) or len(body) < LARGE_WITH_GROUPS:
        return False
    return len(body) >= LARGE or _has_groups(body)


def process_large(
    service: MqttService, session: Session, first_byte: int, body: bytes, send: Send
) -> Iterator[None]:
    """
    Process a large packet, one piece a step; raises for an illegal one before any piece takes
    effect.
    """
    filters_of: Callable[[bytes, int, int, int], tuple[Sequence[object], int]] = (
        subscribed_filters if first_byte == SUBSCRIBE else unsubscribed_filters
    )
    take = _process_subscribe if first_byte == SUBSCRIBE else _process_unsubscribe
    level = session.level
    try:
        packet_id, properties, start = request_head(body, PacketKind(first_byte >> 4), level)
        at = start
        while at < len(body):
            _, at = filters_of(body, at, CHECKED, level)
            yield
    except ProtocolViolation as violation:
        violation.frame = first_byte, body
        raise
    request = _LargeRequest(packet_id, properties, body, start)
    yield from take(service, session, request, send)


def subscribe(service: MqttService, session: Session, packet: Subscribe, send: Send) -> None:
    """Process a SUBSCRIBE."""
    answer = _SubscribeAnswer(packet.packet_id, send)
    _subscribe(service, session, packet, answer, answer.leave)


def unsubscribe(service: MqttService, session: Session, packet: Unsubscribe, send: Send) -> None:
    """Process an UNSUBSCRIBE."""

    reasons = tuple(_unsubscribe_reasons(session, packet.filters))

    def acknowledge() -> None:
        send(Unsuback(packet.packet_id, reasons))  # [MQTT-3.10.4-4]

    _unsubscribe(service, session, packet.filters, acknowledge)


@attrs.frozen
class _LargeRequest:
    """A packet that is processed in pieces; its filters begin at `start` of the body."""

    packet_id: int
    properties: Properties
    body: bytes
    start: int

    @property
    def piece(self) -> int:
        """Return the number of filters of a piece."""
        return PIECE_WITH_GROUPS if _has_groups(self.body) else PIECE


class _SubscribeAnswer:
    """The SUBACK to be: a code for each filter, and the zones that it does not wait for."""

    def __init__(self, packet_id: int, send: Send) -> None:
        self._packet_id = packet_id
        self._send = send
        self._zones: dict[str, None] = {}
        self.codes = bytearray()

    def note_pending(self, apexes: Collection[str]) -> None:
        """Name zones that have not confirmed; a client of level 5 is told `MOST_NAMED` of them."""
        for apex in sorted(apexes)[:MOST_NAMED]:
            if len(self._zones) < MOST_NAMED:
                self._zones[apex] = None

    def leave(self) -> None:
        """Send the SUBACK [MQTT-3.8.4-1]."""
        properties = NO_PROPERTIES
        if self._zones:
            pending = tuple((PENDING_ZONE, apex) for apex in self._zones)
            properties = Properties(user_properties=pending)
        self._send(Suback(self._packet_id, tuple(self.codes), properties))


class _Pieces:
    """The count of a packet's open pieces; `acknowledge` is called when all are done."""

    def __init__(self, acknowledge: Callable[[], None]) -> None:
        self._open = 1
        self._acknowledge = acknowledge

    def add(self) -> None:
        """Count one more piece."""
        self._open += 1

    def end(self) -> None:
        """Count one piece as done; call once more when no further piece will begin."""
        self._open -= 1
        if not self._open:
            self._acknowledge()


def _process_subscribe(
    service: MqttService, session: Session, request: _LargeRequest, send: Send
) -> Iterator[None]:
    answer = _SubscribeAnswer(request.packet_id, send)
    pieces = _Pieces(answer.leave)
    body, at, piece = request.body, request.start, request.piece
    while at < len(body):
        filters, at = subscribed_filters(body, at, piece, session.level)
        pieces.add()
        packet = Subscribe(request.packet_id, tuple(filters), request.properties)
        _subscribe(service, session, packet, answer, pieces.end)
        yield
    pieces.end()


def _process_unsubscribe(
    service: MqttService, session: Session, request: _LargeRequest, send: Send
) -> Iterator[None]:
    reasons = bytearray()
    pieces = _Pieces(lambda: send(Unsuback(request.packet_id, tuple(reasons))))
    body, at, piece = request.body, request.start, request.piece
    while at < len(body):
        filters, at = unsubscribed_filters(body, at, piece, session.level)
        reasons += _unsubscribe_reasons(session, filters)
        pieces.add()
        _unsubscribe(service, session, filters, pieces.end)
        yield
    pieces.end()


def _unsubscribe_reasons(session: Session, filters: Sequence[str]) -> bytes:
    """Return a reason code for each filter; a filter that comes twice is gone the second time."""
    left = {text for text in filters if text in session.subscriptions or text in session.shared}
    reasons = bytearray()
    for text in filters:
        is_known = text in left
        left.discard(text)
        reasons.append(ReasonCode.SUCCESS if is_known else ReasonCode.NO_SUBSCRIPTION_EXISTED)
    return bytes(reasons)


def _unsubscribe(
    service: MqttService,
    session: Session,
    filters: Sequence[str],
    acknowledge: Callable[[], None],
) -> None:
    shared = [text for text in filters if text in session.shared]
    if not shared:
        service.edge.subscriptions.unsubscribe(session, filters, acknowledge)
        return
    pieces = _Pieces(acknowledge)
    pieces.add()
    service.edge.shared.unsubscribe(session, shared, pieces.end)
    service.edge.subscriptions.unsubscribe(session, filters, pieces.end)


def _subscribe(
    service: MqttService,
    session: Session,
    packet: Subscribe,
    answer: _SubscribeAnswer,
    acknowledge: Callable[[], None],
) -> None:
    admitted, codes = _admit(service, session, packet.filters)
    answer.codes += bytes(codes)
    if not admitted:
        acknowledge()
        return
    shared = [pair for pair in admitted if pair[0].startswith(GROUP_PREFIX)]
    if not shared:
        if len(admitted) < len(packet.filters):
            packet = Subscribe(packet.packet_id, admitted, packet.properties)
        service.edge.subscriptions.subscribe(session, packet, acknowledge, answer.note_pending)
        return
    pieces = _Pieces(acknowledge)
    plain = tuple(pair for pair in admitted if pair not in shared)
    if plain:
        pieces.add()
        packet = Subscribe(packet.packet_id, plain, packet.properties)
        service.edge.subscriptions.subscribe(session, packet, pieces.end, answer.note_pending)
    identifiers = packet.properties.subscription_identifiers
    identifier = identifiers[0] if identifiers else 0
    service.edge.shared.subscribe(
        session, tuple(shared), identifier, pieces.end, answer.note_pending
    )


def _has_groups(body: bytes) -> bool:
    """True if a filter of the packet may be a shared subscription's."""
    return GROUP_PREFIX.encode() in body


def _admit(
    service: MqttService, session: Session, filters: tuple[tuple[str, int], ...]
) -> tuple[tuple[tuple[str, int], ...], list[int]]:
    """Return the filters for which the session has room, and the codes of SUBACK."""
    known, shared = session.subscriptions, session.shared
    most = service.limits.subscriptions
    is_5 = session.level >= LEVEL_5
    full = ReasonCode.QUOTA_EXCEEDED if is_5 else SUBACK_FAILURE
    codes = [options & QOS_BITS for _, options in filters]
    room = most - len(known) - len(shared)
    size = _room_in_bytes(service, session)
    total, has_groups = 0, False
    for text, _ in filters:  # Generators for the two would cost as much as all other checks.
        total += len(text)
        has_groups = has_groups or text.startswith(GROUP_PREFIX)
    if len(filters) <= room and total <= size and not has_groups:
        return filters, codes
    admitted: dict[str, int] = {}
    refused = 0
    for place, (topic_filter, options) in enumerate(filters):
        if not _is_legal(topic_filter):
            codes[place] = SUBACK_FAILURE
            continue
        if not (topic_filter in known or topic_filter in shared or topic_filter in admitted):
            if room <= 0 or len(topic_filter) > size:
                codes[place] = full
                refused += 1
                continue
            room -= 1
            size -= len(topic_filter)
        admitted[topic_filter] = options
    if refused:
        service.counters.add("subscriptions.over_limit", refused)
        log_limited(
            log.warning,
            "client.over_limit",
            kind="limits.subscriptions",
            client_id=session.client_id,
            limit="limits.subscriptions",
            value=most,
        )
    return tuple(admitted.items()), codes


def _room_in_bytes(service: MqttService, session: Session) -> int:
    """Return the bytes of further filters for which the session has room."""
    left = MOST_BYTES - service.edge.interests.size
    if left > FEW_BYTES:
        return left
    return FEW_BYTES - sum(map(len, session.subscriptions)) - sum(map(len, session.shared))


def _is_legal(topic_filter: str) -> bool:
    """True unless the filter of a client below level 5 begins as a shared one and is none."""
    try:
        shared_subscription(topic_filter)
    except TopicError:
        return False
    return True
