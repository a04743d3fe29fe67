"""Topic aliases of what goes to a client of level 5 at QoS 0; the same from both cores."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.cores import CORES, Client, a_run, both, publish
from tests.support import wire, wire5
from tests.support.wire5 import ALIAS, Publish
from txbroker.core.reference.aliases import SPARE

TOPICS = [b"home/%d/motion" % number for number in range(4)] + [b"a", b"x" * 1025]


def sent(client: Client) -> list[tuple[str, int, Publish]]:
    """Topic on the wire, alias (0: none) and message of each packet since the last call."""
    buffer, found = bytearray(client.packet_writer.dequeue()), []
    while (raw := wire.cut_frame(buffer)) is not None:
        message = wire5.parse(raw)
        assert isinstance(message, Publish)
        alias = dict(message.properties).get(ALIAS, 0)
        assert isinstance(alias, int)
        found.append((message.topic, alias, message))
    return found


def a_subscriber(core: Any, most: int, max_packet: int = 0) -> Client:
    client = Client(core, core.Router(lambda: None), level=5)
    client.packet_writer.open_window(10, 10**6)
    client.packet_writer.max_packet = max_packet
    client.packet_writer.alias_maximum = most
    client.subscribe("#", 1)
    return client


@both
def test_topic_that_repeats_gets_an_alias(core: Any) -> None:
    """From its second message on; in runs with and without lists, and for single packets."""
    client = a_subscriber(core, 10)
    packets = [publish(b"home/hall", b"%d" % n) for n in range(3)]
    client.router.fan_out(a_run(core, *packets), None)
    listed = publish(
        b"home/hall", b"3", properties=b"\x03\x00\x01t" + b"\x26\x00\x60" + b"n" * 96 + b"\0\0"
    )
    client.router.fan_out(a_run(core, listed, level=5), None)
    identified = publish(b"home/hall", b"4", flags=1, properties=b"\x0b\x07")
    assert client.packet_writer.send_qos0(identified)

    found = sent(client)
    assert ["home/hall", "home/hall", "", "", ""] == [topic for topic, _, _ in found]
    assert [0, 1, 1, 1, 1] == [alias for _, alias, _ in found]
    assert [b"0", b"1", b"2", b"3", b"4"] == [message.payload for _, _, message in found]
    assert (2 + 1, 1 + 1) == tuple(len(message.properties) for _, _, message in found[3:])
    assert found[-1][2].retain and not found[0][2].retain


@both
def test_who_offers_none_gets_none(core: Any) -> None:
    """Packets go as they came, and share their bytes."""
    client, other = a_subscriber(core, 0), a_subscriber(core, 1)
    run = a_run(core, *[publish(TOPICS[0], b"%d" % n) for n in range(3)])
    for one in (client, other):
        one.router.fan_out(run, None)
    assert [0, 0, 0] == [alias for _, alias, _ in sent(client)]
    assert [0, 1, 1] == [alias for _, alias, _ in sent(other)]


@both
def test_aliases_stay_within_their_number_and_the_packet_size(core: Any) -> None:
    """Other topics go without; a packet that would become too large tells no alias."""
    client = a_subscriber(core, 2)
    for _ in range(3):
        for topic in TOPICS:
            client.packet_writer.send_qos0(publish(topic, b"1", properties=b""))
    aliases = [alias for _, alias, _ in sent(client)]
    assert [0] * 6 + [1, 2, 0, 0, 0, 0] * 2 == aliases

    packet = publish(TOPICS[0], b"1", properties=b"")
    client = a_subscriber(core, 2, max_packet=len(packet) + 4)
    for _ in range(3):
        assert client.packet_writer.send_qos0(packet)
    assert [0, 0, 0] == [alias for _, alias, _ in sent(client)]


@both
def test_topics_with_aliases_stay_within_their_bytes(core: Any) -> None:
    """A stranger has thousands of connections; usual topics find room beside long ones."""
    client = a_subscriber(core, 100)
    long = [(b"%d/" % number).ljust(1000, b"x") for number in range(20)]
    for topic in [*long, b"hall/1"]:
        for _ in range(2):
            client.packet_writer.send_qos0(publish(topic, b"1", properties=b""))
    aliases = [alias for _, alias, _ in sent(client)]
    assert [[0, number] for number in range(1, 17)] + [[0, 0]] * 4 + [[0, 17]] == [
        aliases[at : at + 2] for at in range(0, len(aliases), 2)
    ]


@both
def test_dropped_packets_tell_no_alias(core: Any) -> None:
    """The client would know nothing of it."""
    client = a_subscriber(core, 2)
    packet = publish(TOPICS[0], b"1", properties=b"")
    client.packet_writer.send_qos0(packet)
    client.packet_writer.is_shut = True
    assert not client.packet_writer.send_qos0(packet)
    client.packet_writer.is_shut = False
    client.packet_writer.send_qos0(packet)
    assert [(TOPICS[0].decode(), 0), (TOPICS[0].decode(), 1)] == [one[:2] for one in sent(client)]


@settings(max_examples=100, deadline=None)
@given(
    most=st.integers(1, 3),
    numbers=st.lists(st.integers(0, 3) | st.integers(0, SPARE + 10), max_size=200),
    levels=st.lists(st.sampled_from([4, 5]), min_size=1, max_size=3),
)
def test_client_always_knows_the_topic(most: int, numbers: list[int], levels: list[int]) -> None:
    """Whatever comes; and both cores send the same."""
    outputs = []
    for core in CORES:
        client, known, output = a_subscriber(core, most), dict[int, str](), []
        for place, number in enumerate(numbers):
            level = levels[place % len(levels)]
            topic = b"topic/%d" % number
            listed = None if level == 4 else b""
            packet = publish(topic, b"%d" % place, properties=listed)
            client.router.fan_out(a_run(core, packet, level=level), None)
            ((told, alias, message),) = sent(client)
            if alias:
                assert alias <= most
                known.setdefault(alias, told)
                assert known[alias] == topic.decode() and told in ("", known[alias])
            else:
                assert told == topic.decode()
            assert message.payload == b"%d" % place
            output.append((told, alias))
        outputs.append(output)
    assert all(output == outputs[0] for output in outputs)
