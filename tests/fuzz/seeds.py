"""What the fuzzer begins with: packets of real clients, in steps through each part of the core."""

from __future__ import annotations

from pathlib import Path

from tests.core.cores import answer, publish, stored
from tests.fuzz.steps import FILTERS, PIECES, STEPS, TOPICS
from tests.support.property_lists import user_property

NAMES = [name for name, _ in STEPS]


def step(name: str, *choices: int | bytes) -> bytes:
    """A step, by the bytes that its arguments are chosen with."""
    made = bytes((PIECES if name == "pieces" else NAMES.index(name),))
    return made + b"".join([one if isinstance(one, bytes) else bytes((one,)) for one in choices])


def literal(data: bytes) -> bytes:
    """What a stream of these bytes is made of; at most 7 * 63 of them."""
    pieces = [data[at : at + 63] for at in range(0, len(data), 63)]
    assert len(pieces) < 8
    return bytes((len(pieces),)) + b"".join([bytes((0xC0 | len(one),)) + one for one in pieces])


def subscribe(client: int, topic_filter: str, qos: int) -> bytes:
    return step("subscribe", client, FILTERS.index(topic_filter), 0, qos, 0)


CONNECT = b"\x10\x18\0\x04MQTT\x04\x02\0\x3c\0\x0cmosq-publish"
SUBSCRIBE = b"\x82\x08\0\x01\0\x03a/b\x01"
PING, DISCONNECT = b"\xc0\0", b"\xe0\0"
CONVERSATION = b"".join(
    (
        publish(b"a/b", b"21.5"),
        publish(b"a/b", b"21.6", 1, 1),
        publish(b"a/b", b"21.7", 2, 2),
        publish(b"a/b/c", b"x" * 100, 1, 3, 8),
        answer(0x40, 1),
        answer(0x50, 2),
        answer(0x70, 2),
        answer(0x62, 2),
        PING,
        publish("\u00e9/x".encode(), b""),
        publish(b"$SYS/a", b"1"),
        publish(b"a/+", b"1"),
        DISCONNECT,
    )
)
FEW = publish(b"a/b", b"1") + publish(b"a", b"2")
HEADER = b"\0\x05h\1\0\0\0"  # of a batch of one
LONG_FORM = b"\x30\x86\x80\0\0\x01a123"  # a remaining length of three bytes where one would do
MALFORMED = b"\x30\xff\xff\xff\xff\x01"

SUBSCRIBED = b"".join(
    (
        subscribe(0, "a/#", 1),
        subscribe(1, "+/b", 2),
        subscribe(1, "#", 0),
        subscribe(2, "a/b", 1),
        step("interest", 1, FILTERS.index("a/#"), 1),
        step("interest", 1, FILTERS.index("+"), 2),
        step("route", 0, 1, 1),
        step("route", 1, 2, 1),
    )
)
RUN = step("publish", 0, literal(CONVERSATION), 0, 1)
LISTED = (
    publish(b"a/b", b"1", properties=b""),
    publish(b"a/b", b"2", properties=user_property("n", "v") * 2 + b"\x01\1"),
    publish(b"a/b", b"3", 1, 1, properties=b"\x02\0\0\0\7\x08\0\1r\x09\0\1\0"),
    publish(b"a", b"4", 2, 2, properties=b"\x03\0\1t"),
    publish(b"a", b"5", properties=b"\x23\0\1"),
)
STORED = (publish(b"a/b", b"1"), publish(b"a/b", b"", 1, 1, 1), publish(b"a", b"x" * 9, 2, 2))
ANSWERED = step("acknowledge_all", 0) + step("acknowledge_all", 1) + step("outputs")

SEEDS = {
    "connect": b"\0" + step("read", 2, literal(CONNECT + SUBSCRIBE + PING)),
    "conversation": b"\0" + SUBSCRIBED + RUN + ANSWERED,
    "conversation-few-topics-kept": b"\1" + SUBSCRIBED + RUN + RUN + ANSWERED,
    "durable": b"\0" + SUBSCRIBED + step("publish", 2, literal(CONVERSATION), 0, 1) + ANSWERED,
    "pieces": b"\0" + SUBSCRIBED + step("pieces", 0, 0, 0, 3, 5, 9, 31, literal(CONVERSATION)),
    "pieces-of-a-link": b"\0" + step("pieces", 0, 1, 7, 2, 11, 20, literal(CONVERSATION)),
    "link": b"\0" + step("link", 9, literal(CONVERSATION)) + step("fan_out", 0, 0),
    "long-form": b"\0" + step("read", 0, literal(publish(b"a") + LONG_FORM + publish(b"b"))),
    "hurried": b"\0" + SUBSCRIBED + step("hurry", 1) + RUN + step("hurry", 0) + ANSWERED,
    "lent": b"\0" + SUBSCRIBED + RUN + step("lend", 1, 0, 0, 1, 0) * 2 + ANSWERED,
    "topics": b"\0"
    + SUBSCRIBED
    + b"".join(
        step("publish", 0, b"\x01\x42" + bytes((0xC0 + number, 1)), 0, 1) for number in range(13)
    ),
    "stored": b"\0"
    + step("stored", 1, 72, literal(STORED[0]), 0, 0)
    + step("stored", 9, 64, literal(b"".join(STORED)), 2, 6, b"\0\0\1\0\4\0")
    + step("stored", 20, 68, b"\0\0\1\0", literal(b"".join(STORED[:2])), 1, 0)
    + step("stored", 19, 72, literal(STORED[0]), 0, 0)
    + step("stored", 30, 72, literal(MALFORMED), 0, 0)
    + step("finish") * 2,
    "level-5": b"\0"
    + SUBSCRIBED
    + step("level", 0, 0, 0)
    + step("level", 1, 0, 0)
    + step("publish", 0, literal(b"".join(LISTED)), 0, 1)
    + ANSWERED
    + step("level", 1, 1, 1)
    + step("publish", 0, literal(b"".join(LISTED)), 0, 1)
    + step("publish", 2, literal(CONVERSATION), 0, 1)
    + ANSWERED
    + step("wait", 0, literal(LISTED[0] * 3), 2, 0),
    "stored-form": b"\0"
    + SUBSCRIBED
    + step("level", 1, 0, 0)
    + step("link", 5, literal(b"".join(map(stored, LISTED)) + FEW))
    + step("fan_out", 0, 0)
    + step("stored", 1, 72, literal(stored(LISTED[1])), 0, 0)
    + step("stored", 9, 72, literal(stored(publish(b"a", properties=b"\x23\0\1"))), 0, 0)
    + ANSWERED,
    "malformed": b"\0" + step("read", 0, literal(publish(b"a") + MALFORMED)),
    "large": b"\0"
    + SUBSCRIBED
    + step("publish", 0, b"\x02\x21\1\1\x0b\x27\1\x0c", 0, 1)
    + ANSWERED,
    "repeated": b"\0"
    + SUBSCRIBED
    + step("publish", 0, b"\x19\x22\x01\x01\x03\x50", 0, 1)
    + ANSWERED,
    "runs-apart": b"\0"
    + SUBSCRIBED
    + step("read", 0, literal(CONVERSATION))
    + step("place", 0, 1, 1)
    + step("select", 0, 2, 1, 0, 1)
    + step("cut", 1, 1)
    + step("rebuild", 0)
    + b"".join(step(name, 0) for name in ("split", "receivers"))
    + step("taken", 0, 1)
    + step("pass_on", 1, 1)
    + step("fan_out", 1, 1)
    + step("matching", 1, 1, 0)
    + step("answer", 2, 0, 1),
    "window": b"\0"
    + SUBSCRIBED
    + step("window", 0, 1, b"\1\0")
    + RUN
    + RUN
    + step("give", 0, 2, 1, 4, 0, 7)
    + step("flood", 0, 0, 60, 1)
    + step("acknowledge", 0, 4, 1, 2, 3, 4)
    + step("receive", 0, 1)
    + step("complete", 0, 1)
    + step("pump", 0)
    + ANSWERED,
    "flows": b"\0"
    + step("hold", 0, 2)
    + step("read", 0, literal(CONVERSATION))
    + step("release", 0, 2)
    + step("free", 0, 2)
    + step("takes", 0, 1)
    + step("read", 0, literal(CONVERSATION)),
    "slow": b"\0"
    + SUBSCRIBED
    + step("send", 1, 13, 1) * 3
    + RUN
    + step("state", 0, 1, 1)
    + RUN
    + step("send_some", 1, 1)
    + step("write")
    + step("take", 0),
    "changes": b"\0"
    + SUBSCRIBED
    + RUN
    + step("unsubscribe", 0, FILTERS.index("a/#"), 0)
    + step("target", 1, 2, 0)
    + step("route", 0, 2, 2)
    + step("replace", 1, 2, 1, 3)
    + step("cache", 1)
    + RUN
    + step("find", TOPICS.index(b"a/b"))
    + step("renew", 1)
    + step("leave", 0)
    + RUN
    + step("close", 0)
    + step("trust", 1)
    + RUN,
    "sockets": b"\0"
    + SUBSCRIBED
    + step("wait", 0, literal(FEW), 2, 0)
    + step("wait", 1, literal(CONVERSATION), 3, 0)
    + step("wait", 0, literal(publish(b"a") + publish(b"b")), 0, 1)
    + step("link_wait", literal(HEADER + publish(b"a")), 2, 0)
    + step("know", 0)
    + step("link_wait", literal(HEADER + publish(b"a")), 2, 0)
    + step("link_wait", literal(HEADER + publish(b"a/b")), 5, 0)
    + step("forget"),
    "misuse": b"\0" + step("misuse", 20, bytes(range(65, 85)), 1, 0, 3, 5, 9, 12, 1, 0, 7),
}


def write(folder: Path) -> None:
    """One file for each."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in SEEDS.items():
        (folder / name).write_bytes(data)
