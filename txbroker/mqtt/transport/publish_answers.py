"""
The answers to a client of level 5 for publishes that the node refuses (sections 3.4 and 3.5).

PUBACK or PUBREC with an error ends the exchange: nothing was stored, and the packet id is free.
"""

from __future__ import annotations

from txbroker.mqtt.wire.packets import Puback, Publish, Pubrec, Will
from txbroker.mqtt.wire.properties import Properties
from txbroker.mqtt.wire.property_list import is_text

NO_ROOM = "the node has no room for long"
NO_TEXT = "the payload is not UTF-8, as its format indicator says"


def refusal(packet_id: int, qos: int, code: int, reason: str) -> Puback | Pubrec:
    """Return the answer to a publish of QoS 1 or 2."""
    kind = Puback if qos == 1 else Pubrec
    return kind(packet_id, code, Properties(reason_string=reason))


def has_illegal_payload(message: Publish | Will) -> bool:
    """True if the payload must be UTF-8 and is not (section 3.3.2.3.2)."""
    if not is_text(message.properties):
        return False
    try:
        message.payload.decode()
    except UnicodeDecodeError:
        return True
    return False
