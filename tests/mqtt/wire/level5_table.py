"""
Packets of MQTT 5.0, as `packet_table` has those of 3.1.1.

A row of `LEGAL` is a packet, its bytes and its value; a row of `ILLEGAL` is bytes, the rule that
they break, the reason code that the peer is told, and a further statement that the refusal shows.
"""

from __future__ import annotations

import attrs

from tests.mqtt.wire.packet_table import Legal
from txbroker.mqtt.wire.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    Will,
)
from txbroker.mqtt.wire.properties import Properties


@attrs.frozen
class Illegal:
    name: str
    data: bytes
    rule: str
    code: int = 0x81
    shows: str = ""


def row(first_byte: int, body: bytes) -> bytes:
    """A whole packet; its length is a single byte in this table."""
    assert len(body) < 128

    return bytes((first_byte, len(body))) + body


def connect(flags: int, payload: bytes, properties: bytes = b"\0") -> bytes:
    return row(0x10, b"\0\4MQTT\5" + bytes((flags,)) + b"\0\x3c" + properties + payload)


USER = b"\x26\0\1k\0\1v"
USERS = Properties(user_properties=(("k", "v"),))

LEGAL = [
    Legal(
        "connect",
        connect(0x02, b"\0\1c"),
        Connect(client_id="c", keep_alive=60, protocol_level=5),
    ),
    Legal(
        "connect, no client id, session kept",
        connect(0x00, b"\0\0"),
        Connect(client_id="", clean_session=False, keep_alive=60, protocol_level=5),
    ),
    Legal(
        "connect, password without user name",
        connect(0x42, b"\0\1c\0\1p"),
        Connect(client_id="c", keep_alive=60, password=b"p", protocol_level=5),
    ),
    Legal(
        "connect, everything",
        connect(
            0xF6,
            b"\0\1c\x10\x18\0\0\0\7\1\1\2\0\0\0\x09\x09\0\1!\0\1w\0\1g\0\1u\0\1p",
            b"\x1b\x11\0\0\0\x0a\x17\0\x19\1\x21\0\5\x22\0\6\x26\0\1k\0\1v\x27\0\0\1\0",
        ),
        Connect(
            client_id="c",
            keep_alive=60,
            will=Will(
                topic="w",
                payload=b"g",
                qos=2,
                retain=True,
                properties=b"\1\1\2\0\0\0\x09\x09\0\1!",
                delay=7,
            ),
            username="u",
            password=b"p",
            protocol_level=5,
            properties=Properties(
                session_expiry=10,
                request_problem_information=False,
                request_response_information=True,
                receive_maximum=5,
                topic_alias_maximum=6,
                user_properties=(("k", "v"),),
                maximum_packet_size=256,
            ),
        ),
    ),
    Legal("connack", b"\x20\x03\x01\x00\x00", Connack(True, 0)),
    Legal(
        "connack, refused, with a reason",
        b"\x20\x07\x00\x8c\x04\x1f\0\1x",
        Connack(False, 0x8C, Properties(reason_string="x")),
    ),
    Legal("publish, QoS 0", row(0x30, b"\0\1a\0hi"), Publish("a", b"hi")),
    Legal(
        "publish, byte order mark kept [MQTT-1.5.4-3]",
        row(0x30, b"\0\3\xef\xbb\xbf\0"),
        Publish("\ufeff", b""),
    ),
    Legal("publish, retained, nothing", row(0x31, b"\0\1a\0"), Publish("a", b"", 0, True)),
    Legal(
        "publish, properties in the sender's order",
        row(0x3D, b"\0\1a\0\7\x0e" + USER + b"\2\0\0\0\1\1\0hi"),
        Publish("a", b"hi", 2, True, True, 7, USER + b"\2\0\0\0\1\1\0"),
    ),
    Legal(
        "publish, alias alone, and identifiers",
        row(0x32, b"\0\0\0\7\x0f\x0b\1\x0b\xac\2\x23\0\x09" + USER),
        Publish("", b"", 1, False, False, 7, USER, 9, (1, 300)),
    ),
    Legal("puback", b"\x40\x02\x00\x01", Puback(1)),
    Legal("puback, reason", b"\x40\x03\x00\x01\x10", Puback(1, 0x10)),
    Legal("puback, properties", row(0x40, b"\0\1\0\7" + USER), Puback(1, 0, USERS)),
    Legal("pubrec", b"\x50\x03\x01\x00\x97", Pubrec(256, 0x97)),
    Legal("pubrel", b"\x62\x03\xff\xff\x92", Pubrel(65_535, 0x92)),
    Legal(
        "pubcomp",
        row(0x70, b"\0\2\x92\4\x1f\0\1x"),
        Pubcomp(2, 0x92, Properties(reason_string="x")),
    ),
    Legal(
        "subscribe",
        row(0x82, b"\0\1\2\x0b\x05\0\1a\x2d\0\3+/#\x02\0\x0a$share/g/+\x19"),
        Subscribe(
            1,
            (("a", 0x2D), ("+/#", 0x02), ("$share/g/+", 0x19)),
            Properties(subscription_identifiers=(5,)),
        ),
    ),
    Legal("suback", row(0x90, b"\0\1\0\0\2\x8f"), Suback(1, (0, 2, 0x8F))),
    Legal(
        "unsubscribe",
        row(0xA2, b"\0\2\7" + USER + b"\0\1a\0\1+"),
        Unsubscribe(2, ("a", "+"), USERS),
    ),
    Legal("unsuback", row(0xB0, b"\0\3\0\0\x11"), Unsuback(3, (0, 0x11))),
    Legal("pingreq", b"\xc0\x00", Pingreq()),
    Legal("pingresp", b"\xd0\x00", Pingresp()),
    Legal("disconnect", b"\xe0\x00", Disconnect()),
    Legal("disconnect, with will", b"\xe0\x01\x04", Disconnect(4)),
    Legal(
        "disconnect, properties",
        row(0xE0, b"\0\5\x11\0\0\0\0"),
        Disconnect(0, Properties(session_expiry=0)),
    ),
    Legal("auth, nothing", b"\xf0\x00", Auth()),
    Legal(
        "auth",
        row(0xF0, b"\x18\x08\x15\0\1m\x16\0\1d"),
        Auth(0x18, Properties(authentication_method="m", authentication_data=b"d")),
    ),
]

_SIZE = "section 2.1.4"
_FLAGS = "MQTT-2.1.3-1"

ILLEGAL = [
    Illegal("type 0", b"\x00\x00", "section 2.1.2"),
    # fixed header flags
    Illegal("connack, flags", b"\x21\x03\x00\x00\x00", _FLAGS),
    Illegal("puback, flags", b"\x42\x02\x00\x01", _FLAGS),
    Illegal("pubrel, flags", b"\x60\x02\x00\x01", "MQTT-3.6.1-1"),
    Illegal("subscribe, flags", row(0x80, b"\0\1\0\0\1a\0"), "MQTT-3.8.1-1"),
    Illegal("unsubscribe, flags", row(0xA0, b"\0\1\0\0\1a"), "MQTT-3.10.1-1"),
    Illegal("pingreq, flags", b"\xc1\x00", _FLAGS),
    Illegal("disconnect, flags", b"\xe2\x00", "MQTT-3.14.1-1"),
    Illegal("auth, flags", b"\xf1\x00", "MQTT-3.15.1-1"),
    # CONNECT
    Illegal("connect, ends after the level", row(0x10, b"\0\4MQTT\5"), _SIZE),
    Illegal("connect, no property list", row(0x10, b"\0\4MQTT\5\2\0\0"), _SIZE),
    Illegal("connect, reserved flag", connect(0x03, b"\0\1c"), "MQTT-3.1.2-3"),
    Illegal("connect, will QoS without will", connect(0x0A, b"\0\1c"), "MQTT-3.1.2-11"),
    Illegal("connect, will QoS 3", connect(0x1E, b"\0\1c\0\0\1w\0\0"), "MQTT-3.1.2-12"),
    Illegal("connect, will retain without will", connect(0x22, b"\0\1c"), "MQTT-3.1.2-13"),
    Illegal("connect, no client id", connect(0x02, b""), _SIZE, shows="MQTT-3.1.3-3"),
    Illegal("connect, will missing", connect(0x06, b"\0\1c"), _SIZE, shows="MQTT-3.1.2-9"),
    Illegal("connect, user name missing", connect(0x82, b"\0\1c"), _SIZE, shows="MQTT-3.1.2-17"),
    Illegal(
        "connect, user name not announced",
        connect(0x02, b"\0\1c\0\1u"),
        _SIZE,
        shows="MQTT-3.1.2-16",
    ),
    Illegal(
        "connect, password missing", connect(0xC2, b"\0\1c\0\1u"), _SIZE, shows="MQTT-3.1.2-19"
    ),
    Illegal(
        "connect, password not announced",
        connect(0x82, b"\0\1c\0\1u\0\1p"),
        _SIZE,
        shows="MQTT-3.1.2-18",
    ),
    Illegal(
        "connect, client id not UTF-8",
        connect(2, b"\0\1\xff"),
        "MQTT-1.5.4-1",
        shows="MQTT-3.1.3-4",
    ),
    Illegal("connect, null in client id", connect(2, b"\0\1\0"), "MQTT-1.5.4-2"),
    Illegal(
        "connect, user name not UTF-8",
        connect(0x82, b"\0\1c\0\1\xc0"),
        "MQTT-1.5.4-1",
        shows="MQTT-3.1.3-12",
    ),
    Illegal(
        "connect, will topic not UTF-8",
        connect(6, b"\0\1c\0\0\1\xff\0\0"),
        "MQTT-1.5.4-1",
        shows="MQTT-3.1.3-11",
    ),
    Illegal("connect, will topic wildcard", connect(6, b"\0\1c\0\0\1#\0\0"), "MQTT-3.3.2-2", 0x90),
    Illegal("connect, will topic empty", connect(6, b"\0\1c\0\0\0\0\0"), "MQTT-4.7.3-1", 0x90),
    Illegal(
        "connect, authentication data alone",
        connect(2, b"\0\1c", b"\4\x16\0\1d"),
        "section 3.1.2.11.10",
        0x82,
    ),
    # CONNACK
    Illegal("connack, reserved flags", b"\x20\x03\x02\x00\x00", "MQTT-3.2.2-1"),
    Illegal("connack, reserved code", b"\x20\x03\x00\x01\x00", "MQTT-3.2.2-8", 0x82),
    Illegal("connack, refused with session", b"\x20\x03\x01\x80\x00", "MQTT-3.2.2-6", 0x82),
    Illegal("connack, of 3.1.1", b"\x20\x02\x00\x00", _SIZE),
    # PUBLISH
    Illegal("publish, QoS 3", row(0x36, b"\0\1a\0\1\0"), "MQTT-3.3.1-4"),
    Illegal("publish, DUP at QoS 0", row(0x38, b"\0\1a\0"), "MQTT-3.3.1-2"),
    Illegal("publish, packet id 0", row(0x32, b"\0\1a\0\0\0"), "MQTT-2.2.1-3", 0x82),
    Illegal("publish, no property list", row(0x30, b"\0\1a"), _SIZE, shows="MQTT-2.2.2-1"),
    Illegal("publish, no topic, no alias", row(0x30, b"\0\0\0x"), "section 3.3.2.1", 0x82),
    Illegal(
        "publish, + in topic", row(0x30, b"\0\3a/+\0"), "MQTT-3.3.2-2", 0x90, shows="MQTT-4.7.0-1"
    ),
    Illegal(
        "publish, null in topic", row(0x30, b"\0\2a\0\0"), "MQTT-1.5.4-2", shows="MQTT-4.7.3-2"
    ),
    Illegal(
        "publish, surrogate in topic",
        row(0x30, b"\0\3\xed\xa0\x80\0"),
        "MQTT-1.5.4-1",
        shows="MQTT-3.3.2-1",
    ),
    Illegal("publish, list longer than the packet", row(0x30, b"\0\1a\3\1\0"), _SIZE),
    Illegal("publish, padded list length", row(0x30, b"\0\1a\x80\0"), "MQTT-1.5.5-1"),
    Illegal(
        "publish, list length of five bytes", row(0x30, b"\0\1a" + b"\xff" * 5), "section 1.5.5"
    ),
    Illegal("publish, half a list length", row(0x30, b"\0\1a\x80"), _SIZE),
    Illegal("publish, alias 0", row(0x30, b"\0\1a\3\x23\0\0"), "MQTT-3.3.2-8", 0x94),
    Illegal(
        "publish, wildcard in response topic",
        row(0x30, b"\0\1a\4\x08\0\1+"),
        "MQTT-3.3.2-14",
        0x82,
    ),
    # acknowledgements
    Illegal("puback, packet id 0", b"\x40\x02\x00\x00", "MQTT-2.2.1-3", 0x82),
    Illegal("puback, empty", b"\x40\x00", _SIZE),
    Illegal("puback, reserved code", b"\x40\x03\x00\x01\x01", "MQTT-3.4.2-1", 0x82),
    Illegal("pubrec, reserved code", b"\x50\x03\x00\x01\x92", "MQTT-3.5.2-1", 0x82),
    Illegal("pubrel, reserved code", b"\x62\x03\x00\x01\x10", "MQTT-3.6.2-1", 0x82),
    Illegal("pubcomp, reserved code", b"\x70\x03\x00\x01\x80", "MQTT-3.7.2-1", 0x82),
    Illegal("pubrel, bytes after the list", row(0x62, b"\0\1\0\0x"), _SIZE),
    # SUBSCRIBE and UNSUBSCRIBE
    Illegal("subscribe, no property list", row(0x82, b"\0\1"), _SIZE),
    Illegal("subscribe, no filter", row(0x82, b"\0\1\0"), "MQTT-3.8.3-2", 0x82),
    Illegal("subscribe, packet id 0", row(0x82, b"\0\0\0\0\1a\0"), "MQTT-2.2.1-3", 0x82),
    Illegal("subscribe, no options", row(0x82, b"\0\1\0\0\1a"), _SIZE),
    Illegal("subscribe, QoS 3", row(0x82, b"\0\1\0\0\1a\3"), "section 3.8.3.1", 0x82),
    Illegal("subscribe, retain handling 3", row(0x82, b"\0\1\0\0\1a\x30"), "section 3.8.3.1", 0x82),
    Illegal("subscribe, reserved bit 6", row(0x82, b"\0\1\0\0\1a\x40"), "MQTT-3.8.3-5"),
    Illegal("subscribe, reserved bit 7", row(0x82, b"\0\1\0\0\1a\x80"), "MQTT-3.8.3-5"),
    Illegal(
        "subscribe, no local of a group",
        row(0x82, b"\0\1\0\0\x0a$share/g/a\4"),
        "MQTT-3.8.3-4",
        0x82,
    ),
    Illegal("subscribe, no group", row(0x82, b"\0\1\0\0\x09$share//a\0"), "MQTT-4.8.2-1", 0x8F),
    Illegal(
        "subscribe, wildcard group", row(0x82, b"\0\1\0\0\x0a$share/+/a\0"), "MQTT-4.8.2-2", 0x8F
    ),
    Illegal("subscribe, group alone", row(0x82, b"\0\1\0\0\x08$share/g\0"), "MQTT-4.8.2-2", 0x8F),
    Illegal("subscribe, empty filter", row(0x82, b"\0\1\0\0\0\0"), "MQTT-4.7.3-1", 0x8F),
    Illegal("subscribe, # not last", row(0x82, b"\0\1\0\0\3#/a\0"), "MQTT-4.7.1-1", 0x8F),
    Illegal("subscribe, + within a level", row(0x82, b"\0\1\0\0\2+a\0"), "MQTT-4.7.1-2", 0x8F),
    Illegal(
        "subscribe, not UTF-8", row(0x82, b"\0\1\0\0\1\x80\0"), "MQTT-1.5.4-1", shows="MQTT-3.8.3-1"
    ),
    Illegal("unsubscribe, no filter", row(0xA2, b"\0\1\0"), "MQTT-3.10.3-2", 0x82),
    Illegal(
        "unsubscribe, not UTF-8",
        row(0xA2, b"\0\1\0\0\1\x80"),
        "MQTT-1.5.4-1",
        shows="MQTT-3.10.3-1",
    ),
    Illegal("unsubscribe, no group", row(0xA2, b"\0\1\0\0\x09$share//a"), "MQTT-4.8.2-1", 0x8F),
    Illegal("suback, reserved code", row(0x90, b"\0\1\0\3"), "MQTT-3.9.3-2", 0x82),
    Illegal("suback, no code", row(0x90, b"\0\1\0"), _SIZE),
    Illegal("unsuback, reserved code", row(0xB0, b"\0\1\0\1"), "MQTT-3.11.3-2", 0x82),
    Illegal("unsuback, of 3.1.1", row(0xB0, b"\0\1"), _SIZE),
    # packets without a packet identifier
    Illegal("pingreq, too long", b"\xc0\x01\x00", _SIZE),
    Illegal("disconnect, reserved code", b"\xe0\x01\x01", "MQTT-3.14.2-1", 0x82),
    Illegal("disconnect, bytes after the list", b"\xe0\x03\x00\x00\x00", _SIZE),
    Illegal("auth, reserved code", b"\xf0\x01\x80", "MQTT-3.15.2-1", 0x82),
    Illegal("auth, no method", row(0xF0, b"\x18"), "section 3.15.2.2.2", 0x82),
]
