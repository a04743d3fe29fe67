"""
The properties of CONNACK for a client of level 5: all that differs from the defaults of the
standard.
"""

from __future__ import annotations

from txbroker.mqtt.session.session import Session
from txbroker.mqtt.transport.service import MqttService
from txbroker.mqtt.wire.packets import LEVEL_5, Connack, Connect
from txbroker.mqtt.wire.properties import Properties
from txbroker.mqtt.wire.reason_codes import ReasonCode

MOST_RECEIVED = 65_535
"""The receive maximum that a client assumes if CONNACK names none."""


def accepted(
    service: MqttService, packet: Connect, session: Session, *, present: bool, is_assigned: bool
) -> Connack:
    """Return the CONNACK for an accepted client of level 5; `is_assigned`: it sent no client id."""
    most = service.limits.receive_maximum
    lifetime = service.edge.clients.lifetime(session)
    is_capped = packet.expiry != 0 and (packet.expiry is None or packet.expiry > lifetime)
    properties = Properties(
        session_expiry=int(lifetime) if is_capped else None,
        receive_maximum=most if most < MOST_RECEIVED else None,
        maximum_packet_size=service.limits.packet,
        assigned_client_id=session.client_id if is_assigned else None,
        topic_alias_maximum=service.limits.topic_aliases or None,
        server_keep_alive=keep_alive_of(service, packet, is_told=True),
    )
    return Connack(present, ReasonCode.SUCCESS, properties)


def keep_alive_of(service: MqttService, packet: Connect, *, is_told: bool = False) -> int | None:
    """
    Return the keep-alive in seconds that counts for the client.

    `is_told`: return None if the client's own counts, so that CONNACK need not name it.
    """
    most = service.limits.keepalive_max
    own = packet.keep_alive
    if packet.protocol_level >= LEVEL_5 and most and (not own or own > most):
        return most
    return None if is_told else own


def refused(code: int, reason: str, elsewhere: str = "") -> Connack:
    """Return the CONNACK that refuses a client of level 5; it may go `elsewhere`, unless ""."""
    properties = Properties(reason_string=reason, server_reference=elsewhere or None)
    return Connack(False, code, properties)
