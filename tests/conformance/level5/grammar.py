"""
A grammar of what clients of level 5 send: legal packets, and packets with one fault.

Each packet knows its answer: the packet that must come for it, or the reason codes of the
DISCONNECT with which the connection must end. Nothing of txbroker is imported.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from tests.support import wire5
from tests.support.wire import (
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
    length,
    string,
)
from tests.support.wire5 import Properties

MALFORMED, PROTOCOL_ERROR = 0x81, 0x82
EITHER = frozenset({MALFORMED, PROTOCOL_ERROR})

FOREIGN = 60_000
"""Identifiers from here on are of no message that the server has sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A packet, and its answer: its kind and how many codes it has; or the fault's reason codes."""

    data: bytes
    answer: int = 0
    packet_id: int = 0
    codes: int = 1
    fault: frozenset[int] = frozenset()


CONNECT_ONLY = {
    wire5.SESSION_EXPIRY,
    wire5.RECEIVE_MAXIMUM,
    wire5.MAXIMUM_PACKET,
    wire5.ALIAS_MAXIMUM,
    wire5.RESPONSE_INFO_WANTED,
    wire5.PROBLEM_INFO,
    wire5.USER_PROPERTY,
}
MESSAGE = {
    wire5.PAYLOAD_FORMAT,
    wire5.MESSAGE_EXPIRY,
    wire5.CONTENT_TYPE,
    wire5.RESPONSE_TOPIC,
    wire5.CORRELATION_DATA,
    wire5.USER_PROPERTY,
}
OF_KIND = {
    PUBLISH: MESSAGE,
    SUBSCRIBE: {wire5.SUBSCRIPTION_ID, wire5.USER_PROPERTY},
    UNSUBSCRIBE: {wire5.USER_PROPERTY},
    PUBACK: {wire5.REASON_STRING, wire5.USER_PROPERTY},
}
REPEATABLE = {wire5.USER_PROPERTY}

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
levels = st.sampled_from(["a", "b", "", "\u00e4", "$c"])
topics = st.lists(levels, min_size=1, max_size=4).map(lambda parts: "x/" + "/".join(parts))
filters = st.lists(st.sampled_from(["a", "b", "+", ""]), min_size=1, max_size=3).flatmap(
    lambda parts: st.sampled_from(["x/" + "/".join(parts), "/".join(["x", *parts, "#"])])
)
payloads = st.binary(max_size=40)

_RANGES = {
    wire5.PAYLOAD_FORMAT: (0, 1),
    wire5.PROBLEM_INFO: (0, 1),
    wire5.RESPONSE_INFO_WANTED: (0, 1),
    wire5.SESSION_EXPIRY: (0, 5),
    wire5.RECEIVE_MAXIMUM: (1, 65_535),
    wire5.MAXIMUM_PACKET: (10_000, 2**32 - 1),
    wire5.ALIAS_MAXIMUM: (0, 65_535),
    wire5.MESSAGE_EXPIRY: (0, 2**32 - 1),
    wire5.SUBSCRIPTION_ID: (1, 268_435_455),
}


def value(name: int) -> st.SearchStrategy[wire5.Value]:
    """A legal value of a property."""
    if name in _RANGES:
        return st.integers(*_RANGES[name])
    if name == wire5.USER_PROPERTY:
        return st.tuples(texts, texts)
    if name == wire5.CORRELATION_DATA:
        return payloads
    return topics if name == wire5.RESPONSE_TOPIC else texts


@st.composite
def properties(draw: st.DrawFn, legal: set[int]) -> Properties:
    """A legal list: any of these properties, in any order."""
    names = draw(st.lists(st.sampled_from(sorted(legal)), unique=True, max_size=4))
    names += [wire5.USER_PROPERTY] * draw(st.integers(0, 2))
    return [(name, draw(value(name))) for name in draw(st.permutations(names))]


@st.composite
def faulty_list(draw: st.DrawFn, legal: set[int]) -> bytes:
    """The bytes of a list with one fault, its length included."""
    raw = wire5.properties_of(draw(properties(legal)))
    body = raw[1:] if raw[0] < 128 else raw[2:]
    # A PUBLISH may have a topic alias, too, and an identifier is another fault there.
    foreign = sorted(set(wire5.TYPES) - legal - {wire5.SUBSCRIPTION_ID, wire5.ALIAS})
    kind = draw(st.sampled_from(["twice", "foreign", "unknown", "cut", "text", "padded", "range"]))
    if kind == "twice":
        single = [name for name in sorted(legal) if name not in REPEATABLE]
        if single:
            name = draw(st.sampled_from(single))
            pair: Properties = [(name, draw(value(name))) for _ in range(2)]
            return wire5.properties_of(pair)
    if kind == "range":
        ranged = [n for n in sorted(legal) if n in (wire5.PAYLOAD_FORMAT, wire5.SUBSCRIPTION_ID)]
        if ranged:
            bad = {wire5.PAYLOAD_FORMAT: 2, wire5.SUBSCRIPTION_ID: 0}
            return wire5.properties_of([(ranged[0], bad[ranged[0]])])
    if kind == "cut":
        return length(len(body) + 3) + body + bytes((wire5.USER_PROPERTY, 0, 9))
    if kind == "text":
        return length(len(body) + 6) + body + bytes((wire5.USER_PROPERTY, 0, 1, 0xFF, 0, 0))
    if kind == "padded":
        return bytes((len(body) & 127 | 128, len(body) >> 7 | 128, 0)) + body
    if kind == "foreign":
        name = draw(st.sampled_from(foreign))
        wrong: wire5.Value = b"x" if wire5.TYPES[name] == "binary" else 1
        wrong = "x" if wire5.TYPES[name] == "text" else wrong
        return wire5.properties_of([(name, wrong)])
    return length(len(body) + 1) + body + b"\x7f"


@st.composite
def legal_packet(draw: st.DrawFn, packet_id: int) -> Sent:
    """A packet that a client may send in any state."""
    kind = draw(st.sampled_from(["publish"] * 4 + ["subscribe", "unsubscribe", "ack", "alias"]))
    if kind == "subscribe":
        options = st.builds(
            lambda qos, bits, handling: qos | bits | handling << 4,
            st.integers(0, 2),
            st.sampled_from([0, 4, 8, 12]),
            st.integers(0, 2),
        )
        pairs = draw(st.lists(st.tuples(filters, options), min_size=1, max_size=4))
        listed = draw(properties(OF_KIND[SUBSCRIBE]))
        data = wire5.subscribe(packet_id, *pairs, properties=listed)
        return Sent(data=data, answer=SUBACK, packet_id=packet_id, codes=len(pairs))
    if kind == "unsubscribe":
        texts_ = draw(st.lists(filters, min_size=1, max_size=4))
        listed = draw(properties(OF_KIND[UNSUBSCRIBE]))
        data = wire5.unsubscribe(packet_id, *texts_, properties=listed)
        return Sent(data=data, answer=UNSUBACK, packet_id=packet_id, codes=len(texts_))
    if kind == "ack":
        which = draw(st.sampled_from([PUBACK, PUBREC, PUBREL, PUBCOMP]))
        code = draw(st.sampled_from([0, 0x92] if which in (PUBREL, PUBCOMP) else [0, 0x10]))
        listed = draw(properties(OF_KIND[PUBACK]))
        foreign = FOREIGN + packet_id
        data = wire5.ack(which, foreign, code, listed)
        answer = {PUBREC: PUBREL, PUBREL: PUBCOMP}.get(which, 0)
        return Sent(data=data, answer=answer, packet_id=foreign)
    qos = draw(st.integers(0, 2))
    listed = draw(properties(OF_KIND[PUBLISH]))
    if kind == "alias":
        listed.insert(0, (wire5.ALIAS, draw(st.integers(1, 5))))
    data = wire5.publish(
        draw(topics),
        draw(payloads),
        qos=qos,
        packet_id=packet_id,
        retain=draw(st.integers(0, 9)) == 9,  # they stay, and come for each SUBSCRIBE
        properties=listed,
    )
    return Sent(data=data, answer=(0, PUBACK, PUBREC)[qos], packet_id=packet_id)


@st.composite
def faulty_packet(draw: st.DrawFn, packet_id: int) -> Sent:
    """A packet with one fault, which must end the connection."""
    ids = packet_id.to_bytes(2)
    table: list[tuple[bytes, frozenset[int]]] = [
        (wire5.publish("x", properties=b"")[:1] + b"\x03\0\1x", EITHER),
        (b"\x36" + length(6) + b"\0\1x" + ids + b"\0", EITHER),
        (b"\x38\x04\0\1x\0", EITHER),
        (wire5.publish("x/+"), EITHER | {0x90}),
        (wire5.publish("x\0"), EITHER | {0x90}),
        (wire5.publish(b"x\xff"), EITHER | {0x90}),
        (wire5.publish(""), EITHER | {0x90}),
        (wire5.publish("", properties=[(wire5.ALIAS, 99)]), EITHER | {0x94}),
        (wire5.publish("x", properties=[(wire5.ALIAS, 0)]), EITHER | {0x94}),
        (wire5.publish("x", properties=[(wire5.ALIAS, 65_535)]), frozenset({0x94})),
        (wire5.publish("x", qos=1, packet_id=0), EITHER),
        (wire5.publish("x", properties=[(wire5.SUBSCRIPTION_ID, 1)]), EITHER),
        (wire5.subscribe(0, ("x", 0)), EITHER),
        (wire5.subscribe(packet_id, ("x", 3)), EITHER),
        (wire5.subscribe(packet_id, ("x", 0x30)), EITHER),
        (wire5.subscribe(packet_id, ("x", 0xC0)), EITHER),
        (wire5.subscribe(packet_id), EITHER),
        (wire5.subscribe(packet_id, ("x/#/y", 0)), EITHER | {0x8F}),
        (wire5.subscribe(packet_id, ("$share/g/x", 4)), frozenset({PROTOCOL_ERROR})),
        (wire5.unsubscribe(packet_id), EITHER),
        (b"\x80" + wire5.subscribe(packet_id, ("x", 0))[1:], frozenset({MALFORMED})),
        (b"\xa0" + wire5.unsubscribe(packet_id, "x")[1:], frozenset({MALFORMED})),
        (b"\x60\x02" + ids, frozenset({MALFORMED})),
        (wire5.ack(PUBACK, 0), EITHER),
        (wire5.ack(PUBACK, FOREIGN, 0x92), EITHER),
        (wire5.ack(PUBREL, FOREIGN, 0x10), EITHER),
        (wire5.ack(PUBREC, FOREIGN, 0, [(wire5.RECEIVE_MAXIMUM, 1)]), EITHER),
        (b"\xc0\x01x", EITHER),
        (b"\xc1\x00", frozenset({MALFORMED})),
        (b"\xc0\x80\x00", frozenset({MALFORMED})),
        (b"\xc0\xff\xff\xff\xff\x01", frozenset({MALFORMED})),
        (b"\x00\x00", EITHER),
        (b"\xd0\x00", EITHER),
        (b"\x20\x03\0\0\0", EITHER),
        (b"\x90\x04" + ids + b"\0\0", EITHER),
        (wire5.connect("again"), frozenset({PROTOCOL_ERROR})),
        (wire5.auth(0x19, [(wire5.AUTH_METHOD, "x")]), frozenset({PROTOCOL_ERROR})),
        (wire5.disconnect(0x8B), EITHER),
        (wire5.disconnect(0, [(wire5.SERVER_REFERENCE, "x")]), EITHER),
    ]
    if draw(st.booleans()):
        data, fault = draw(st.sampled_from(table))
        return Sent(data=data, fault=fault)
    kind = draw(st.sampled_from([PUBLISH, SUBSCRIBE, UNSUBSCRIBE]))
    listed = draw(faulty_list(OF_KIND[kind]))
    tail = {
        PUBLISH: b"",
        SUBSCRIBE: string("x") + b"\0",
        UNSUBSCRIBE: string("x"),
    }[kind]
    head = string("x") if kind == PUBLISH else ids
    first = {PUBLISH: 0x30, SUBSCRIBE: 0x82, UNSUBSCRIBE: 0xA2}[kind]
    body = head + listed + tail
    return Sent(data=bytes((first,)) + length(len(body)) + body, fault=EITHER | {0x94})


@st.composite
def conversation(draw: st.DrawFn) -> list[Sent]:
    """Legal packets, perhaps one with a fault behind them, and one more that nobody may answer."""
    count = draw(st.integers(0, 12))
    sent = [draw(legal_packet(number + 1)) for number in range(count)]
    if draw(st.booleans()):
        sent.append(draw(faulty_packet(count + 1)))
    return sent
