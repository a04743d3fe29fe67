"""
A client's SUBSCRIBE and UNSUBSCRIBE packets: the admitted filters, and the answers.

A large packet is processed in pieces, between the turns of other clients: one of 200,000 filters
stopped a node for 8 s. Its one answer leaves when all pieces are done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from txbroker.mqtt.session.session import Session
from txbroker.mqtt.transport.service import MqttService
from txbroker.mqtt.wire.decoder import (
    request_head,
    subscribed_filters,
    unsubscribed_filters,
)
from txbroker.mqtt.wire.encoder import encode, encode_suback
from txbroker.mqtt.wire.packet_kind import PacketKind
from txbroker.mqtt.wire.packets import Subscribe, Unsuback, Unsubscribe
from txbroker.mqtt.wire.return_codes import SUBACK_FAILURE, ProtocolViolation
from txbroker.runtime.structured_log import get_logger, tell_repeated

log = get_logger()

LARGE: Final = 2_048
"""Bytes from which a packet is processed in pieces."""

PIECE: Final = 32
"""Filters of a piece."""

CHECKED: Final = 256
"""Filters that one step checks, before any takes effect."""

SUBSCRIBE: Final = 0x82
UNSUBSCRIBE: Final = 0xA2

Send = Callable[[bytes], None]
"""Sends an answer to the client, if the connection of the request is still the session's."""


def is_large(first_byte: int, body: bytes) -> bool:
    """True if `take_large` must process the packet."""
    return len(body) >= LARGE and first_byte in (SUBSCRIBE, UNSUBSCRIBE)


def take_large(
    service: MqttService, session: Session, first_byte: int, body: bytes, send: Send
) -> Iterator[None]:
    """
    Process a large packet, one piece a step; raises for an illegal one before any piece takes
    effect.
    """
    filters_of: Callable[[bytes, int, int], tuple[Sequence[object], int]] = (
        subscribed_filters if first_byte == SUBSCRIBE else unsubscribed_filters
    )
    take = _take_subscribe if first_byte == SUBSCRIBE else _take_unsubscribe
    try:
        packet_id, _, start = request_head(body, PacketKind(first_byte >> 4))
        at = start
        while at < len(body):
            _, at = filters_of(body, at, CHECKED)
            yield
    except ProtocolViolation as violation:
        violation.frame = first_byte, body
        raise
    yield from take(service, session, packet_id, body, start, send)


def subscribe(service: MqttService, session: Session, packet: Subscribe, send: Send) -> None:
    """Process a SUBSCRIBE."""
    codes = bytearray()

    def acknowledge() -> None:
        send(encode_suback(packet.packet_id, codes))  # [MQTT-3.8.4-1]

    _subscribe(service, session, packet, codes, acknowledge)


def unsubscribe(service: MqttService, session: Session, packet: Unsubscribe, send: Send) -> None:
    """Process an UNSUBSCRIBE."""

    def acknowledge() -> None:
        send(encode(Unsuback(packet.packet_id)))  # [MQTT-3.10.4-4]

    service.edge.subscriptions.unsubscribe(session, packet.filters, acknowledge)


class _Pieces:
    """The count of a packet's open pieces; `acknowledge` is called when all are done."""

    def __init__(self, acknowledge: Callable[[], None]) -> None:
        self._open = 1
        self._acknowledge = acknowledge

    def begin(self) -> None:
        """Count one more piece."""
        self._open += 1

    def end(self) -> None:
        """Count one piece as done; call once more when no further piece will begin."""
        self._open -= 1
        if not self._open:
            self._acknowledge()


def _take_subscribe(
    service: MqttService, session: Session, packet_id: int, body: bytes, at: int, send: Send
) -> Iterator[None]:
    codes = bytearray()
    pieces = _Pieces(lambda: send(encode_suback(packet_id, codes)))
    while at < len(body):
        filters, at = subscribed_filters(body, at, PIECE)
        pieces.begin()
        _subscribe(service, session, Subscribe(packet_id, tuple(filters)), codes, pieces.end)
        yield
    pieces.end()


def _take_unsubscribe(
    service: MqttService, session: Session, packet_id: int, body: bytes, at: int, send: Send
) -> Iterator[None]:
    pieces = _Pieces(lambda: send(encode(Unsuback(packet_id))))
    while at < len(body):
        filters, at = unsubscribed_filters(body, at, PIECE)
        pieces.begin()
        service.edge.subscriptions.unsubscribe(session, filters, pieces.end)
        yield
    pieces.end()


def _subscribe(
    service: MqttService,
    session: Session,
    packet: Subscribe,
    codes: bytearray,
    acknowledge: Callable[[], None],
) -> None:
    admitted, answers = _admit(service, session, packet.filters)
    codes += bytes(answers)
    if not admitted:
        acknowledge()
        return
    if len(admitted) < len(packet.filters):
        packet = Subscribe(packet.packet_id, admitted)
    service.edge.subscriptions.subscribe(session, packet, acknowledge)


def _admit(
    service: MqttService, session: Session, filters: tuple[tuple[str, int], ...]
) -> tuple[tuple[tuple[str, int], ...], list[int]]:
    """Return the filters for which the session has room, and the codes of SUBACK."""
    known, most = session.subscriptions, service.max_subscriptions
    codes = [qos for _, qos in filters]
    if len(known) + len(filters) <= most:
        return filters, codes
    admitted: dict[str, int] = {}
    room = most - len(known)
    for place, (topic_filter, qos) in enumerate(filters):
        if topic_filter not in known and topic_filter not in admitted:
            if room <= 0:
                codes[place] = SUBACK_FAILURE
                continue
            room -= 1
        admitted[topic_filter] = qos
    refused = codes.count(SUBACK_FAILURE)
    if refused:
        service.counters.add("subscriptions.over_limit", refused)
        tell_repeated(
            log.warning,
            "client.over_limit",
            kind="limits.subscriptions",
            client_id=session.client_id,
            limit="limits.subscriptions",
            value=most,
        )
    return tuple(admitted.items()), codes
