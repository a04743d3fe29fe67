"""
A client's SUBSCRIBE and UNSUBSCRIBE packets: what of them is admitted, and their answers.

A large one is worked off in pieces, as other clients have their turns in between: one of 200,000
filters stopped a node for 8 s. It is answered once, when all its pieces are done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from txbroker.mqtt.session.session import Session
from txbroker.mqtt.transport.service import MqttService
from txbroker.mqtt.wire.decoder import (
    FIRST_FILTER,
    packet_id_of,
    subscribed_filters,
    unsubscribed_filters,
)
from txbroker.mqtt.wire.encoder import encode, encode_suback
from txbroker.mqtt.wire.packets import Subscribe, Unsuback, Unsubscribe
from txbroker.mqtt.wire.return_codes import SUBACK_FAILURE, ProtocolViolation
from txbroker.runtime.structured_log import get_logger, tell_repeated

log = get_logger()

LARGE: Final = 2_048
"""Bytes of a packet that is worked off in pieces."""

PIECE: Final = 32
"""Filters of a piece."""

CHECKED: Final = 256
"""Filters that are looked at in one go, of which nothing is done yet."""

SUBSCRIBE: Final = 0x82
UNSUBSCRIBE: Final = 0xA2

Send = Callable[[bytes], None]
"""Sends an answer to the client, if the connection on which it asked is its still."""


def is_large(first_byte: int, body: bytes) -> bool:
    """True if a packet is for `take_large`."""
    return len(body) >= LARGE and first_byte in (SUBSCRIBE, UNSUBSCRIBE)


def take_large(
    service: MqttService, session: Session, first_byte: int, body: bytes, send: Send
) -> Iterator[None]:
    """Work off a large packet: a piece for each step. An illegal one raises before it does any."""
    filters_of: Callable[[bytes, int, int], tuple[Sequence[object], int]] = (
        subscribed_filters if first_byte == SUBSCRIBE else unsubscribed_filters
    )
    take = _take_subscribe if first_byte == SUBSCRIBE else _take_unsubscribe
    try:
        packet_id = packet_id_of(body)
        at = FIRST_FILTER
        while at < len(body):
            _, at = filters_of(body, at, CHECKED)
            yield
    except ProtocolViolation as violation:
        violation.frame = first_byte, body
        raise
    yield from take(service, session, packet_id, body, send)


def subscribe(service: MqttService, session: Session, packet: Subscribe, send: Send) -> None:
    """A client's SUBSCRIBE."""
    codes = bytearray()

    def acknowledge() -> None:
        send(encode_suback(packet.packet_id, codes))  # [MQTT-3.8.4-1]

    _subscribe(service, session, packet, codes, acknowledge)


def unsubscribe(service: MqttService, session: Session, packet: Unsubscribe, send: Send) -> None:
    """A client's UNSUBSCRIBE."""

    def acknowledge() -> None:
        send(encode(Unsuback(packet.packet_id)))  # [MQTT-3.10.4-4]

    service.edge.subscriptions.unsubscribe(session, packet.filters, acknowledge)


class _Pieces:
    """Those of a packet that are not done; `acknowledge` is called when all are."""

    def __init__(self, acknowledge: Callable[[], None]) -> None:
        self._open = 1
        self._acknowledge = acknowledge

    def begin(self) -> None:
        """One more."""
        self._open += 1

    def end(self) -> None:
        """One less; once more when there are no others to come."""
        self._open -= 1
        if not self._open:
            self._acknowledge()


def _take_subscribe(
    service: MqttService, session: Session, packet_id: int, body: bytes, send: Send
) -> Iterator[None]:
    codes = bytearray()
    pieces = _Pieces(lambda: send(encode_suback(packet_id, codes)))
    at = FIRST_FILTER
    while at < len(body):
        filters, at = subscribed_filters(body, at, PIECE)
        pieces.begin()
        _subscribe(service, session, Subscribe(packet_id, tuple(filters)), codes, pieces.end)
        yield
    pieces.end()


def _take_unsubscribe(
    service: MqttService, session: Session, packet_id: int, body: bytes, send: Send
) -> Iterator[None]:
    pieces = _Pieces(lambda: send(encode(Unsuback(packet_id))))
    at = FIRST_FILTER
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
    """The filters that the session has room for, and the codes of SUBACK."""
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
