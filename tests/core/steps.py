"""Random steps for `World`: long enough that windows fill, packet ids come again, parts mix."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.core.cores import answer, publish, stored
from tests.support.property_lists import NO_LIST, NOT_PLAIN, user_property

TOPICS = [b"a", b"a/b", b"b", b"a/b/c", "\u00e9/x".encode(), b"/", b"a/", b"bb"]
ODD_TOPICS = [b"$SYS", b"a/+", b"#", b"", b"a\0", b"x" * 130, b"\xc3", b"\xed\xa0\x80", b"\xff/a"]
FILTERS = ["a", "a/b", "#", "+", "+/b", "a/#", "\u00e9/+", "/", "a/+/c", "+/+", "nobody"]
APEXES = ["", "a", "a/b", "b", "\u00e9", "a/b/c", "a/"]
ODD_PACKETS = [b"\xc0\0", b"\xe0\0", b"\0\x02xy", b"\x40\x02\0\0", b"\x60\x02\0\x01", b"\x31\0"]

PROPERTIES = [
    b"",
    user_property("a", "b"),
    user_property("a") * 2 + b"\x01\x01",
    b"\x02\x00\x00\x00\x07\x08\x00\x03r/t\x09\x00\x02\x00\xff\x03\x00\x01t",
    user_property("long", "v" * 120),
    user_property("longer", "w" * 17_000),
]

Step = tuple[Any, ...]


def lengthened(packet: bytes) -> bytes:
    """The same with a remaining length of more bytes than it needs, where that can be."""
    size = next(n for n in range(1, 5) if packet[n] < 128)
    spelled = packet[1 : size + 1]
    if size == 4:
        return packet
    return packet[:1] + spelled[:-1] + bytes((spelled[-1] | 128, 0)) + packet[size + 1 :]


class Steps:
    """Draws them, mostly such that something comes of it."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._packet_id = 0
        self._is_large = self._random.random() < 0.3

    def draw(self, count: int) -> list[Step]:
        """Subscriptions first, so that what follows has somewhere to go."""
        first = [self._subscribe() for _ in range(self._random.randrange(8))]
        kinds = [getattr(self, name) for name in dir(self) if name.startswith("_step_")]
        often = [self._publish, self._publish, self._step_acknowledge_all, self._subscribe]
        return first + [self._random.choice(kinds + often * 6)() for _ in range(count)]

    # -- bytes

    def _chance(self, one_in: int) -> bool:
        return not self._random.randrange(one_in)

    def _packet(self) -> bytes:
        if self._chance(40):
            return self._random.choice(ODD_PACKETS)
        if self._chance(6):
            return answer(self._random.choice([0x40, 0x50, 0x62, 0x70]), self._id())
        topic = self._random.choice(ODD_TOPICS if self._chance(40) else TOPICS)
        size = self._random.choice([0, 1, 5, 9, 120])
        if self._is_large:
            size = self._random.choice([1, 900, 16_380, 70_000])
        flags = self._random.choice([1, 8, 9]) if self._chance(30) else 0
        qos = self._random.choice([0, 0, 0, 1, 2])
        packet = publish(
            topic, self._random.randbytes(size), qos, self._id(), flags, self._properties()
        )
        return lengthened(packet) if self._chance(40) else packet

    def _properties(self) -> bytes | None:
        """Half of the packets have a list."""
        if self._chance(2):
            return None
        odd = self._random.choice([*NOT_PLAIN.values(), *NO_LIST.values()])
        return odd if self._chance(20) else self._random.choice(PROPERTIES)

    def _id(self) -> int:
        if self._chance(3):
            return self._random.randrange(1, 9)
        self._packet_id = self._packet_id % 40 + 1
        return self._packet_id

    def _stream(self) -> bytes:
        packets = [self._packet() for _ in range(self._random.randrange(9))]
        if self._chance(2):
            packets.sort(key=lambda one: one[0])  # so that there are runs
        data = b"".join(packets)
        if data and self._chance(60):
            at = self._random.randrange(min(len(data), 60))
            data = data[:at] + self._random.randbytes(1) + data[at + 1 :]
        return data

    # -- what is done often

    def _client(self) -> int:
        return self._random.randrange(3)

    def _part(self) -> str:
        return self._random.choice("pq")

    def _run(self) -> int:
        return self._random.randrange(4)

    def _publish(self) -> Step:
        return "publish", self._client(), self._stream(), self._part(), not self._chance(5)

    def _subscribe(self) -> Step:
        qos, plain = self._random.randrange(3), not self._chance(8)
        return "subscribe", self._client(), self._random.choice(FILTERS), 0, qos, plain

    def _step_acknowledge_all(self) -> Step:
        return "acknowledge_all", self._client()

    # -- what is done now and then

    def _step_read(self) -> Step:
        return "read", self._client(), self._stream()

    def _step_pieces(self) -> Step:
        data, pieces = self._stream(), []
        while data and len(pieces) < 50:
            size = self._random.choice([1, 3, 40, 5000, len(data)])
            pieces.append(data[:size])
            data = data[size:]
        return "pieces", self._client(), pieces, self._chance(2)

    def _step_pings(self) -> Step:
        data = b"\xc0\0" * self._random.randrange(1, 5)
        pieces: list[bytes] = []
        while data:
            size = self._random.choice([1, 1, 2, 3, len(data)])
            pieces.append(data[:size])
            data = data[size:]
        if self._chance(4):
            pieces.append(self._packet()[:1_000])  # A core may read less of it at once.
        return "pings", self._client(), pieces

    def _step_link(self) -> Step:
        return "link", self._random.randrange(9), self._stored()

    def _stored(self) -> bytes:
        """As on a link: some packets are marked."""
        packets = [self._packet() for _ in range(self._random.randrange(9))]
        marked = [one[0] >> 4 == 3 and not self._chance(3) for one in packets]
        return b"".join(
            stored(one) if is_marked else one
            for one, is_marked in zip(packets, marked, strict=True)
        )

    def _step_level(self) -> Step:
        most = self._random.choice([0, 0, 0, 20, 200])
        return "level", self._client(), self._random.choice([3, 4, 5, 5, 5]), most

    def _step_wait(self) -> Step:
        return "wait", self._client(), self._few(), self._random.randrange(4), self._room()

    def _step_link_wait(self) -> Step:
        data = b"".join([self._batch() for _ in range(self._random.randrange(1, 4))])
        return "link_wait", data, self._random.randrange(6), self._room()

    def _batch(self) -> bytes:
        head = b"\0\x05" + self._random.choice([b"h", b"i"])
        return head + self._random.randrange(5).to_bytes(4, "little") + self._few()

    def _step_bailiwick(self) -> Step:
        change = self._random.choice(["set", "put", "put", "put", "drop", "drop"])
        apexes = ["", "", "a", "b"] if change == "set" else APEXES
        return "bailiwick", change, self._random.choice(apexes)

    def _step_know(self) -> Step:
        return "know", self._random.randrange(1, 4)

    def _step_forget(self) -> Step:
        return ("forget",)

    def _few(self) -> bytes:
        if self._chance(3):
            return self._stream()
        topics = [self._random.choice(TOPICS) for _ in range(self._random.randrange(4))]
        if self._chance(2):
            properties = self._random.choice(PROPERTIES)
            packets = [publish(topic, b"few", properties=properties) for topic in topics]
            return b"".join(map(stored, packets) if self._chance(2) else packets)
        return b"".join(publish(topic, b"few") for topic in topics)

    def _room(self) -> int:
        return self._random.choice([0, 1, 10**6])

    def _step_takes(self) -> Step:
        return "takes", self._client(), not self._chance(4)

    def _step_route(self) -> Step:
        kind = self._random.choice(["routes", "bounds"])
        return "route", kind, self._random.choice(APEXES), self._random.randrange(5)

    def _step_interest(self) -> Step:
        return "interest", not self._chance(3), self._random.choice(FILTERS), self._client()

    def _step_second_subscription(self) -> Step:
        return *self._subscribe()[:3], 1, self._random.randrange(3), not self._chance(3)

    def _step_unsubscribe(self) -> Step:
        client, name = self._client(), self._random.choice(FILTERS)
        return "unsubscribe", client, name, self._random.randrange(2)

    def _step_target(self) -> Step:
        return "target", self._random.randrange(9), self._random.randrange(3), not self._chance(4)

    def _step_place(self) -> Step:
        return "place", self._run(), self._random.choice([0, 5, 2**40]), self._random.choice("ef")

    def _step_select(self) -> Step:
        chosen = [self._random.randrange(9) for _ in range(self._random.randrange(1, 6))]
        return "select", self._run(), chosen

    def _step_cut(self) -> Step:
        return "cut", self._run(), self._random.randrange(6)

    def _step_rebuild(self) -> Step:
        return "rebuild", self._run()

    def _step_split(self) -> Step:
        return "split", self._run()

    def _step_fan_out(self) -> Step:
        return "fan_out", self._run(), self._part()

    def _step_answer(self) -> Step:
        return "answer", self._run(), self._client(), self._chance(2)

    def _step_lend(self) -> Step:
        start, lender = self._random.randrange(8), self._random.randrange(1, 3)
        return "lend", self._run(), self._client(), start, lender, self._chance(4)

    def _step_flow(self) -> Step:
        return self._random.choice(["hold", "free", "release"]), self._client(), self._id()

    def _step_give(self) -> Step:
        how = self._random.choice(
            ["deliver", "redeliver", "deliver_first", *("lend", "landed") * 2]
        )
        size = self._random.choice([0, 9, 300, 3000, 263_000])
        qos, offset = self._random.randrange(1, 3), self._random.randrange(99)
        properties = self._random.choice(PROPERTIES)
        return "give", self._client(), how, qos, size, self._part(), offset, properties

    def _step_acknowledge(self) -> Step:
        return "acknowledge", self._client(), [self._id() for _ in range(3)]

    def _step_packet_id(self) -> Step:
        return self._random.choice(["receive", "complete"]), self._client(), self._id()

    def _step_send(self) -> Step:
        size = self._random.choice([0, 1, 300, 263_000, 2_000_000])
        return "send", self._client(), size, self._chance(2)

    def _step_window(self) -> Step:
        inflight, memory = self._random.choice([0, 2, 5, 30]), self._random.choice([0, 500, 10**6])
        return "window", self._client(), inflight, memory

    def _step_state(self) -> Step:
        return "state", self._client(), not self._chance(4), self._chance(4)

    def _step_clear(self) -> Step:
        return "state", self._client(), True, False

    def _step_pass_by(self) -> Step:
        return "pass_by", self._client(), self._part() if self._chance(2) else None

    def _step_pump(self) -> Step:
        return "pump", self._client()

    def _step_take(self) -> Step:
        return "take", self._client()

    def _step_partly(self) -> Step:
        return "send_some", self._client(), self._random.choice([1, 700, 5000, 10**7])

    def _step_outputs(self) -> Step:
        return ("outputs",)

    def _step_hurry(self) -> Step:
        return "hurry", self._chance(2)

    def _step_renew(self) -> Step:
        return "renew", self._client()
