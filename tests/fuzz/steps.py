"""Any bytes as steps for the worlds of `tests.core.worlds`: what a fuzzer changes, and cores do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tests.core.cores import answer, publish, stored
from tests.support.property_lists import NOT_PLAIN, user_property

T = TypeVar("T")
Step = tuple[Any, ...]

MOST_STEPS = 60

TOPICS = [
    b"a",
    b"a/b",
    b"b",
    b"a/b/c",
    "\u00e9/x".encode(),
    b"/",
    b"a/",
    b"bb",
    b"$SYS/a",
    b"x" * 130,
]
NO_TOPICS = [
    b"",
    b"#",
    b"a/#",
    b"+/a",
    b"a\0",
    b"a level with # in it",
    b"a/level/with/ + in it",
    b"\xc0\xaf",
    b"a/\xe0\x9f\xbf",
    b"a/\xed\xa0\x80",
    b"a/\xf0\x8f\xbf\xbf",
    b"a/\xf4\x90\x80\x80",
    b"a/\xe2\x82",
]
FILTERS = ["a", "a/b", "#", "+", "+/b", "a/#", "\u00e9/+", "/", "a/+/c", "+/+", "b", "$SYS/#"]
FILTERS += ["x" * 130, "x" * 130 + "/#"]
APEXES = ["", "a", "a/b", "b", "\u00e9", "a/b/c", "a/", "x" * 130]
PROPERTIES = [
    b"\x01\x01",
    b"\x02\0\0\0\x07",
    b"\x03\0\x04text",
    b"\x08\0\x03r/t",
    b"\x09\0\x02\0\xff",
    user_property("name", "value"),
    user_property("long", "v" * 130),
]
ODD_PROPERTIES = list(NOT_PLAIN.values())
SIZES = [0, 1, 2, 8, 100, 118, 127, 128, 300, 2_100, 16_380, 70_000, 263_000]
OFFSETS = [0, 5, 2**40]
HEADS = [
    b"\0\0\0\1\0\1\0\1\0e\1\0c",
    b"\1\1\0\1\0\1\0\1\0e\1\0z" + bytes(24) + b"\1\0e\1\0c",
    b"\0\0\0\2\0\2\0\1\0e\0\0\1\0c\2\0\xc3\xa9\0\0\1\0",
]
"""What stands before the packets of a stored batch; of the last one, two bytes for each record."""


class Source:
    """Bytes that choices are made of; when there are no more, the first is chosen each time."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def is_over(self) -> bool:
        return self._at >= len(self._data)

    def byte(self) -> int:
        self._at += 1
        return 0 if self._at > len(self._data) else self._data[self._at - 1]

    def two(self) -> int:
        return self.byte() << 8 | self.byte()

    def below(self, limit: int) -> int:
        return self.byte() % limit

    def one_of(self, choices: Sequence[T]) -> T:
        return choices[self.below(len(choices))]

    def some(self, size: int) -> bytes:
        """So many bytes as they are, or what is left of them."""
        self._at += size
        return self._data[self._at - size : self._at]

    def flag(self) -> bool:
        return self.byte() % 2 == 1


def _odd_topic(source: Source) -> bytes:
    """Bytes as they are, or bytes that are nearly a topic."""
    kind = source.byte()
    return source.some(kind % 24) if kind < 0xC0 else NO_TOPICS[kind % len(NO_TOPICS)]


def _packet(source: Source) -> bytes:
    """A packet for three of four first bytes, else bytes as they are."""
    kind = source.byte()
    if kind < 0x80:  # a PUBLISH: QoS, length of its payload, whose topic
        topic = _odd_topic(source) if kind & 0x40 else source.one_of(TOPICS)
        qos = kind % 3
        packet_id = source.below(8) if qos else 0
        payload = bytes([kind]) * source.one_of(SIZES[: 13 if kind & 0x20 else 5])
        return publish(topic, payload, qos, packet_id, (0, 0, 0, 0, 0, 1, 8, 9)[kind >> 2 & 7])
    if kind < 0xA0:
        return answer((0x40, 0x50, 0x62, 0x70)[kind & 3], source.below(8))
    if kind < 0xC0:
        return _listed(source, kind)
    return source.some(kind & 0x3F)


def _listed(source: Source, kind: int) -> bytes:
    """A PUBLISH with a list, for a client or as on a link: properties, or bytes as they are."""
    qos, properties = kind % 3, b""
    packet_id = source.below(8) if qos else 0
    for _ in range(source.below(4)):
        chosen = source.byte()
        odd = source.some(chosen & 7) if chosen & 8 else ODD_PROPERTIES[chosen & 15]
        properties += odd if chosen < 0x40 else PROPERTIES[chosen % len(PROPERTIES)]
    topic, payload = source.one_of(TOPICS), bytes([kind]) * source.one_of(SIZES[:5])
    packet = publish(topic, payload, qos, packet_id, properties=properties)
    return stored(packet) if kind & 8 else packet


def stream(source: Source) -> bytes:
    """Packets, of which the last may be repeated, and anything between them."""
    head = source.byte()
    packets = [_packet(source) for _ in range(head & 7)]
    if head & 8:
        packets += packets[-1:] * (source.byte() if head & 16 else 2)
    return b"".join(packets)


def _client(source: Source) -> int:
    return source.below(3)


def _kind(source: Source) -> str:
    return source.one_of(("routes", "bounds"))


def _part(source: Source) -> str:
    return source.one_of(("p", "q", "r"))


def _packet_ids(source: Source) -> list[int]:
    return [source.below(8) or 9 for _ in range(source.below(5))]


def _entries(source: Source) -> list[tuple[int, ...]]:
    made = []
    for _ in range(source.below(4)):
        places = [source.byte() for _ in range(5)]
        if source.flag():
            places.sort()
        made.append((*places, source.below(4), source.below(3)))
    return made


Choice = Callable[[Source], Any]


def _qos(source: Source) -> int:
    return source.below(3)


def _index(source: Source) -> int:
    return source.below(4)


def _give(source: Source) -> Step:
    how = source.one_of(("deliver", "redeliver", "deliver_first"))
    return how, 1 + source.below(2), source.one_of(SIZES), _part(source), 1 + source.byte()


def _flood(source: Source) -> Step:
    how, chosen = source.one_of(("deliver", "redeliver")), source.byte()
    count = 4_200 if chosen == 211 else 1_000 if chosen == 221 else chosen % 70
    return how, count, source.one_of((0, 5, 300))


def _room(source: Source) -> int:
    return source.one_of((10**6, 0, 1))


def _head(source: Source) -> bytes:
    """The beginning of a stored batch, or something else; and bytes that may be indexes."""
    kind = source.byte()
    return source.some(kind % 32) if kind < 64 else HEADS[kind % 3] + source.some(kind % 8)


# A first byte stands for each, in this order: the corpus of an earlier run is good as long as new
# ones come last.
STEPS: list[tuple[str, tuple[Choice, ...]]] = [
    ("publish", (_client, stream, _part, Source.flag)),
    ("acknowledge_all", (_client,)),
    ("read", (_client, stream)),
    ("link", (Source.byte, stream)),
    ("takes", (_client, lambda source: not source.flag())),
    ("route", (_kind, lambda source: source.one_of(APEXES), lambda source: source.below(5))),
    ("interest", (Source.flag, lambda source: source.one_of(FILTERS), _client)),
    (
        "subscribe",
        (
            _client,
            lambda source: source.one_of(FILTERS),
            lambda source: source.below(2),
            _qos,
            lambda source: source.below(5) != 4,
        ),
    ),
    (
        "unsubscribe",
        (_client, lambda source: source.one_of(FILTERS), lambda source: source.below(2)),
    ),
    ("target", (Source.byte, _qos, Source.flag)),
    (
        "place",
        (
            _index,
            lambda source: source.one_of(OFFSETS),
            lambda source: source.one_of(("", "e")),
        ),
    ),
    (
        "select",
        (_index, lambda source: [source.byte() for _ in range(1 + source.below(5))]),
    ),
    ("cut", (_index, Source.byte)),
    ("rebuild", (_index,)),
    ("split", (_index,)),
    ("taken", (_index, _client)),
    ("receivers", (_index,)),
    ("fan_out", (_index, _part)),
    ("answer", (_index, _client, Source.flag)),
    ("hold", (_client, lambda source: 1 + source.below(7))),
    ("free", (_client, lambda source: 1 + source.below(7))),
    ("release", (_client, lambda source: 1 + source.below(7))),
    ("give", (_client, _give)),
    ("acknowledge", (_client, _packet_ids)),
    ("pump", (_client,)),
    ("receive", (_client, lambda source: 1 + source.below(7))),
    ("complete", (_client, lambda source: 1 + source.below(7))),
    ("send", (_client, lambda source: source.one_of([*SIZES, 1_500_000]), Source.flag)),
    ("window", (_client, lambda source: source.below(70), Source.two)),
    ("state", (_client, lambda source: not source.flag(), Source.flag)),
    ("take", (_client,)),
    ("outputs", ()),
    ("send_some", (_client, lambda source: source.one_of((1, 700, 5_000, 10**7)))),
    ("trust", (lambda source: source.one_of((400_000, 20)),)),
    ("close", (_client,)),
    ("renew", (_client,)),
    (
        "replace",
        (_kind, lambda source: [source.one_of(APEXES) for _ in range(source.below(4))]),
    ),
    ("find", (lambda source: source.one_of(TOPICS).decode(),)),
    ("matching", (_index, Source.byte, _client)),
    ("cache", (lambda source: source.one_of((100_000, 0, 1, 3)),)),
    ("flood", (_client, _flood)),
    ("leave", (_client,)),
    ("pass_on", (_index, _client)),
    ("write", ()),
    ("misuse", (lambda source: source.some(source.below(40)), _entries)),
    ("wait", (_client, stream, lambda source: source.below(4), _room)),
    ("link_wait", (stream, lambda source: source.below(6), _room)),
    ("know", (lambda source: 1 + source.below(3),)),
    ("forget", ()),
    (
        "stored",
        (
            Source.byte,
            _head,
            stream,
            lambda source: source.one_of((1, 2, 3, 4, 0, 65_536)),
            lambda source: source.some(source.below(8)),
        ),
    ),
    ("finish", ()),
    (
        "level",
        (
            _client,
            lambda source: source.one_of((5, 4, 3)),
            lambda source: source.one_of((0, 20, 200)),
        ),
    ),
    ("lend", (_index, _client, Source.byte, lambda source: 1 + source.below(2), Source.flag)),
    ("hurry", (Source.flag,)),
]
PIECES = len(STEPS)  # the first byte of a stream that comes in pieces, which is several steps


def _pieces(source: Source) -> list[Step]:
    """Bytes that are cut anywhere: one client's, or a link's."""
    client, is_link, expected = _client(source), source.flag(), source.below(8)
    cuts = [source.byte() for _ in range(source.below(8))]
    data = stream(source)
    steps: list[Step] = []
    for size in [*cuts, len(data)]:
        piece, data = data[:size], data[size:]
        if is_link:
            steps.append(("link", expected, piece))
        else:
            steps.append(("feed", client, piece))
            if size % 2:
                steps.append(("step", client))
    return steps if is_link else [*steps, ("read", client, b"")]


def steps_of(data: bytes) -> tuple[int, list[Step]]:
    """How many topics are kept, and what is done."""
    source = Source(data)
    limit = source.one_of((100_000, 0, 1, 3))
    steps: list[Step] = []
    while not source.is_over and len(steps) < MOST_STEPS:
        number = source.below(PIECES + 1)
        if number == PIECES:
            steps += _pieces(source)
            continue
        name, choices = STEPS[number]
        arguments: list[Any] = []
        for choice in choices:
            chosen = choice(source)
            arguments += chosen if isinstance(chosen, tuple) else [chosen]
        steps.append((name, *arguments))
    return limit, steps
