"""
One table of packets, for everything that reads or writes them.

A row of `LEGAL` is a packet, its bytes and its value; a row of `ILLEGAL` is bytes, the rule that
they break and, where one is due, the code of the CONNACK that answers them.
"""

from __future__ import annotations

import attrs

from txbroker.mqtt.wire.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
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


@attrs.frozen
class Legal:
    name: str
    data: bytes
    packet: Packet


@attrs.frozen
class Illegal:
    name: str
    data: bytes
    rule: str
    connack: int | None = None


def _row(first_byte: int, body: bytes) -> bytes:
    """A whole packet; its length is a single byte in this table."""
    assert len(body) < 128

    return bytes((first_byte, len(body))) + body


def _connect(flags: int, payload: bytes, protocol: bytes = b"\x00\x04MQTT\x04") -> bytes:
    return _row(0x10, protocol + bytes((flags,)) + b"\x00\x3c" + payload)


LEGAL = [
    Legal("connect", _connect(0x02, b"\0\1c"), Connect(client_id="c", keep_alive=60)),
    Legal(
        "connect, no client id",
        _connect(0x02, b"\0\0"),
        Connect(client_id="", keep_alive=60),
    ),
    Legal(
        "connect, no client id, session kept: for the session to judge",
        _connect(0x00, b"\0\0"),
        Connect(client_id="", clean_session=False, keep_alive=60),
    ),
    Legal(
        "connect, everything",
        _connect(0xF4, b"\0\1c\0\3w/t\0\4gone\0\2me\0\2\xff\0"),
        Connect(
            client_id="c",
            clean_session=False,
            keep_alive=60,
            will=Will(topic="w/t", payload=b"gone", qos=2, retain=True),
            username="me",
            password=b"\xff\0",
        ),
    ),
    Legal(
        "connect, empty will, user name and password",
        _connect(0xC6, b"\0\1c\0\1w\0\0\0\0\0\0"),
        Connect(
            client_id="c",
            keep_alive=60,
            will=Will(topic="w", payload=b"", qos=0, retain=False),
            username="",
            password=b"",
        ),
    ),
    Legal(
        "connect, user name without password",
        _connect(0x82, b"\0\1c\0\2me"),
        Connect(client_id="c", keep_alive=60, username="me"),
    ),
    Legal(
        "connect, MQTT 3.1",
        _connect(0x02, b"\0\1c", b"\0\6MQIsdp\3"),
        Connect(client_id="c", keep_alive=60, protocol_name="MQIsdp", protocol_level=3),
    ),
    Legal("connack", b"\x20\x02\x00\x00", Connack(False, 0)),
    Legal("connack, session present", b"\x20\x02\x01\x00", Connack(True, 0)),
    Legal("connack, refused", b"\x20\x02\x00\x05", Connack(False, 5)),
    Legal("publish, QoS 0", _row(0x30, b"\0\3a/bhi"), Publish("a/b", b"hi")),
    Legal("publish, empty payload, retained", _row(0x31, b"\0\1a"), Publish("a", b"", 0, True)),
    Legal(
        "publish, QoS 1",
        _row(0x32, b"\0\1a\0\7hi"),
        Publish("a", b"hi", 1, packet_id=7),
    ),
    Legal(
        "publish, QoS 2, again, retained, largest packet identifier",
        _row(0x3D, b"\0\1a\xff\xff"),
        Publish("a", b"", 2, True, True, 65_535),
    ),
    Legal(
        "publish, not ASCII, byte order mark kept [MQTT-1.5.3-3]",
        _row(0x30, b"\0\x09\xef\xbb\xbf\xc3\xbc\xf0\xaa\x9b\x94"),
        Publish("\ufeffü\U0002a6d4", b""),
    ),
    Legal("publish, topic of slashes", _row(0x30, b"\0\2//"), Publish("//", b"")),
    Legal("publish, $ topic", _row(0x30, b"\0\2$x"), Publish("$x", b"")),
    Legal("puback", b"\x40\x02\x00\x01", Puback(1)),
    Legal("pubrec", b"\x50\x02\x01\x00", Pubrec(256)),
    Legal("pubrel", b"\x62\x02\xff\xff", Pubrel(65_535)),
    Legal("pubcomp", b"\x70\x02\x00\x02", Pubcomp(2)),
    Legal(
        "subscribe",
        _row(0x82, b"\0\1\0\1a\0\0\3+/#\2\0\1#\1"),
        Subscribe(1, (("a", 0), ("+/#", 2), ("#", 1))),
    ),
    Legal("suback", _row(0x90, b"\0\1\0\1\2\x80"), Suback(1, (0, 1, 2, 0x80))),
    Legal("unsubscribe", _row(0xA2, b"\0\2\0\1a\0\1+"), Unsubscribe(2, ("a", "+"))),
    Legal("unsuback", b"\xb0\x02\x00\x03", Unsuback(3)),
    Legal("pingreq", b"\xc0\x00", Pingreq()),
    Legal("pingresp", b"\xd0\x00", Pingresp()),
    Legal("disconnect", b"\xe0\x00", Disconnect()),
]

_SIZE = "section 2.2.3"

ILLEGAL = [
    Illegal("type 0", b"\x00\x00", "section 2.2.1"),
    Illegal("type 15", b"\xf0\x00", "section 2.2.1"),
    # fixed header flags
    Illegal("connect, flags", b"\x11\x00", "MQTT-2.2.2-2"),
    Illegal("connack, flags", b"\x21\x02\x00\x00", "MQTT-2.2.2-2"),
    Illegal("puback, flags", b"\x42\x02\x00\x01", "MQTT-2.2.2-2"),
    Illegal("pubrec, flags", b"\x52\x02\x00\x01", "MQTT-2.2.2-2"),
    Illegal("pubrel, flags", b"\x60\x02\x00\x01", "MQTT-3.6.1-1"),
    Illegal("pubcomp, flags", b"\x78\x02\x00\x01", "MQTT-2.2.2-2"),
    Illegal("subscribe, flags", _row(0x80, b"\0\1\0\1a\0"), "MQTT-3.8.1-1"),
    Illegal("suback, flags", b"\x91\x03\x00\x01\x00", "MQTT-2.2.2-2"),
    Illegal("unsubscribe, flags", _row(0xA0, b"\0\1\0\1a"), "MQTT-3.10.1-1"),
    Illegal("unsuback, flags", b"\xb2\x02\x00\x01", "MQTT-2.2.2-2"),
    Illegal("pingreq, flags", b"\xc1\x00", "MQTT-2.2.2-2"),
    Illegal("pingresp, flags", b"\xd8\x00", "MQTT-2.2.2-2"),
    Illegal("disconnect, flags", b"\xe2\x00", "MQTT-3.14.1-1"),
    # CONNECT
    Illegal("connect, other protocol", _connect(2, b"\0\1c", b"\0\4HTTP\4"), "MQTT-3.1.2-1"),
    Illegal("connect, name in small letters", _connect(2, b"\0\1c", b"\0\4mqtt\4"), "MQTT-3.1.2-1"),
    Illegal("connect, MQTT 6", _connect(2, b"\0\0\1c", b"\0\4MQTT\6"), "MQTT-3.1.2-2", 1),
    Illegal("connect, ends after level 6", _row(0x10, b"\0\4MQTT\6"), "MQTT-3.1.2-2", 1),
    Illegal("connect, MQTT 3", _connect(2, b"\0\1c", b"\0\4MQTT\3"), "MQTT-3.1.2-2", 1),
    Illegal("connect, MQIsdp 4", _connect(2, b"\0\1c", b"\0\6MQIsdp\4"), "MQTT-3.1.2-2", 1),
    Illegal("connect, bridge bit", _connect(2, b"\0\1c", b"\0\4MQTT\x84"), "MQTT-3.1.2-2", 1),
    Illegal("connect, bridge bit, 3.1", _connect(2, b"", b"\0\6MQIsdp\x83"), "MQTT-3.1.2-2", 1),
    Illegal("connect, reserved flag", _connect(0x03, b"\0\1c"), "MQTT-3.1.2-3"),
    Illegal("connect, will QoS without will", _connect(0x0A, b"\0\1c"), "MQTT-3.1.2-13"),
    Illegal("connect, will QoS 3", _connect(0x1E, b"\0\1c\0\1w\0\0"), "MQTT-3.1.2-14"),
    Illegal("connect, will retain without will", _connect(0x22, b"\0\1c"), "MQTT-3.1.2-15"),
    Illegal("connect, password alone", _connect(0x42, b"\0\1c\0\1p"), "MQTT-3.1.2-22"),
    Illegal("connect, will topic wildcard", _connect(6, b"\0\1c\0\1#\0\0"), "MQTT-3.3.2-2"),
    Illegal("connect, will topic empty", _connect(6, b"\0\1c\0\0\0\0"), "MQTT-4.7.3-1"),
    Illegal("connect, will missing", _connect(0x06, b"\0\1c"), _SIZE),
    Illegal("connect, user name missing", _connect(0x82, b"\0\1c"), _SIZE),
    Illegal("connect, password missing", _connect(0xC2, b"\0\1c\0\1u"), _SIZE),
    Illegal("connect, user name not announced", _connect(0x02, b"\0\1c\0\1u"), _SIZE),
    Illegal("connect, empty", b"\x10\x00", _SIZE),
    Illegal("connect, no client id field", _connect(0x02, b""), _SIZE),
    Illegal("connect, client id cut short", _connect(0x02, b"\0\2c"), _SIZE),
    Illegal("connect, client id not UTF-8", _connect(2, b"\0\1\xff"), "MQTT-1.5.3-1"),
    Illegal("connect, null in client id", _connect(2, b"\0\1\0"), "MQTT-1.5.3-2"),
    Illegal("connect, user name not UTF-8", _connect(0x82, b"\0\1c\0\1\xc0"), "MQTT-1.5.3-1"),
    # CONNACK and SUBACK
    Illegal("connack, reserved bits", b"\x20\x02\x02\x00", "section 3.2.2.1"),
    Illegal("connack, reserved code", b"\x20\x02\x00\x06", "section 3.2.2.3"),
    Illegal("connack, refused with session", b"\x20\x02\x01\x05", "MQTT-3.2.2-4"),
    Illegal("connack, cut short", b"\x20\x01\x00", _SIZE),
    Illegal("connack, too long", b"\x20\x03\x00\x00\x00", _SIZE),
    Illegal("suback, reserved code", _row(0x90, b"\0\1\3"), "MQTT-3.9.3-2"),
    Illegal("suback, no code", _row(0x90, b"\0\1"), _SIZE),
    # PUBLISH
    Illegal("publish, QoS 3", _row(0x36, b"\0\1a\0\1"), "MQTT-3.3.1-4"),
    Illegal("publish, QoS 3 and DUP", _row(0x3E, b"\0\1a\0\1"), "MQTT-3.3.1-4"),
    Illegal("publish, DUP at QoS 0", _row(0x38, b"\0\1a"), "MQTT-3.3.1-2"),
    Illegal("publish, packet id 0", _row(0x32, b"\0\1a\0\0"), "MQTT-2.3.1-1"),
    Illegal("publish, no packet id", _row(0x34, b"\0\1a"), _SIZE),
    Illegal("publish, half a packet id", _row(0x34, b"\0\1a\0"), _SIZE),
    Illegal("publish, empty", b"\x30\x00", _SIZE),
    Illegal("publish, half a length", b"\x30\x01\x00", _SIZE),
    Illegal("publish, topic cut short", _row(0x30, b"\0\2a"), _SIZE),
    Illegal("publish, empty topic", _row(0x30, b"\0\0"), "MQTT-4.7.3-1"),
    Illegal("publish, + in topic", _row(0x30, b"\0\3a/+"), "MQTT-3.3.2-2"),
    Illegal("publish, # within a level", _row(0x30, b"\0\2a#"), "MQTT-3.3.2-2"),
    Illegal("publish, null in topic", _row(0x30, b"\0\2a\0"), "MQTT-1.5.3-2"),
    Illegal("publish, surrogate in topic", _row(0x30, b"\0\3\xed\xa0\x80"), "MQTT-1.5.3-1"),
    Illegal("publish, overlong slash", _row(0x30, b"\0\2\xc0\xaf"), "MQTT-1.5.3-1"),
    # acknowledgements
    Illegal("puback, packet id 0", b"\x40\x02\x00\x00", "MQTT-2.3.1-1"),
    Illegal("puback, empty", b"\x40\x00", _SIZE),
    Illegal("pubrec, cut short", b"\x50\x01\x01", _SIZE),
    Illegal("pubrel, too long", b"\x62\x03\x00\x01\x00", _SIZE),
    # SUBSCRIBE and UNSUBSCRIBE
    Illegal("subscribe, no filter", _row(0x82, b"\0\1"), "MQTT-3.8.3-3"),
    Illegal("subscribe, packet id 0", _row(0x82, b"\0\0\0\1a\0"), "MQTT-2.3.1-1"),
    Illegal("subscribe, QoS 3", _row(0x82, b"\0\1\0\1a\3"), "MQTT-3-8.3-4"),
    Illegal("subscribe, reserved bit", _row(0x82, b"\0\1\0\1a\x04"), "MQTT-3-8.3-4"),
    Illegal("subscribe, no QoS", _row(0x82, b"\0\1\0\1a"), _SIZE),
    Illegal("subscribe, empty filter", _row(0x82, b"\0\1\0\0\0"), "MQTT-4.7.3-1"),
    Illegal("subscribe, # not last", _row(0x82, b"\0\1\0\3#/a\0"), "MQTT-4.7.1-2"),
    Illegal("subscribe, # within a level", _row(0x82, b"\0\1\0\2a#\0"), "MQTT-4.7.1-2"),
    Illegal("subscribe, + within a level", _row(0x82, b"\0\1\0\2+a\0"), "MQTT-4.7.1-3"),
    Illegal("subscribe, not UTF-8", _row(0x82, b"\0\1\0\1\x80\0"), "MQTT-1.5.3-1"),
    Illegal("subscribe, null", _row(0x82, b"\0\1\0\1\0\0"), "MQTT-1.5.3-2"),
    Illegal("subscribe, second row bad", _row(0x82, b"\0\1\0\1a\0\0\1b\3"), "MQTT-3-8.3-4"),
    Illegal("unsubscribe, no filter", _row(0xA2, b"\0\1"), "MQTT-3.10.3-2"),
    Illegal("unsubscribe, packet id 0", _row(0xA2, b"\0\0\0\1a"), "MQTT-2.3.1-1"),
    Illegal("unsubscribe, bad filter", _row(0xA2, b"\0\1\0\4a/#b"), "MQTT-4.7.1-2"),
    # packets without a body
    Illegal("pingreq, too long", b"\xc0\x01\x00", _SIZE),
    Illegal("disconnect, too long", b"\xe0\x01\x00", _SIZE),
]
