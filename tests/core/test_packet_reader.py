"""What becomes of bytes that a client sends."""

from __future__ import annotations

import gc
import sys
from typing import Any

import pytest

from tests.core.cores import COMPILED, a_client, answer, both, needs_compiled, publish
from txbroker.model.publish_run import MOST


@both
def test_publishes_are_gathered_and_the_rest_is_for_others(core: Any) -> None:
    client = a_client(core)

    found = client.step(
        publish(b"a", b"1") + publish(b"b", b"2", 1, 7) + publish(b"a", b"3") + b"\xc0\0"
    )

    qos0, qos12 = client.packet_reader.qos0, client.packet_reader.qos12
    assert (0xC0, b"") == found
    assert publish(b"a", b"1") + publish(b"a", b"3") == qos0.raw
    assert (["b"], [7], 1) == (qos12.topics(), qos12.packet_ids, len(client.flows))
    assert client.packet_reader.step() is None
    assert client.packet_reader.qos0 is None and client.packet_reader.qos12 is None


@both
@pytest.mark.parametrize("takes", [True, False])
def test_flows_are_asked_for_when_there_is_a_use_for_them(core: Any, takes: bool) -> None:
    """The packets before are given first; that one comes again, whether it is gathered or not."""
    client = a_client(core)
    client.packet_reader.open(client.session, "client", None, clean=True)
    client.packet_reader.takes_qos12 = takes

    assert client.step(publish(b"a") + b"\xc0\0" + publish(b"b", b"2", 1, 7)) == (0xC0, b"")
    assert not client.packet_reader.wants_flows
    assert client.packet_reader.step() is None
    assert (
        client.packet_reader.wants_flows
        and client.packet_reader.has_more
        and client.packet_reader.has_heard
    )
    assert client.packet_reader.first_byte == 0x32

    client.packet_reader.open(client.session, "client", client.flows, clean=True)
    found = client.packet_reader.step()
    assert not client.packet_reader.wants_flows and not client.packet_reader.has_more
    if takes:
        assert found is None and publish(b"b", b"2", 1, 7) == client.packet_reader.qos12.raw
        assert [7] == client.flows.packet_ids()
    else:
        assert (0x32, publish(b"b", b"2", 1, 7)[2:]) == found


@both
def test_what_an_incomplete_packet_will_hold(core: Any) -> None:
    """Its length counts as soon as it is known, or the bytes that are there."""
    client, packet = a_client(core), publish(b"a", b"x" * 200)

    assert client.step(packet[:2]) is None
    assert client.packet_reader.awaited >= 2
    assert client.step(packet[2:9]) is None
    assert len(packet) == client.packet_reader.awaited


PADDED = {
    "publish": publish(b"a", b"1", properties=b""),
    "publish of QoS 1": publish(b"a", b"1", 1, 7, properties=b""),
    "PUBACK": answer(0x40, 7),
    "PUBREL": answer(0x62, 7),
    "PINGREQ": b"\xc0\0",
}


@both
@pytest.mark.parametrize("packet", PADDED.values(), ids=list(PADDED))
def test_padded_length_is_for_others_to_judge(core: Any, packet: bytes) -> None:
    """Level 5 forbids it: nothing of such a packet is processed here, behind a run either."""
    client = a_client(core)
    client.packet_reader.open(client.session, "client", client.flows, clean=True, level=5)
    padded = packet[:1] + bytes((packet[1] | 128, 0)) + packet[2:]

    for before in (b"", publish(b"a", properties=b"")):
        assert client.step(before + padded) == (packet[0], packet[2:])
        assert client.packet_reader.is_padded
        assert not client.packet_reader.pubacks and client.packet_reader.qos12 is None
        assert not before or client.packet_reader.qos0.count == 1
    assert client.step(b"\xc0\0") == (0xC0, b"") and not client.packet_reader.is_padded


@both
def test_padded_length_of_level_4_is_read(core: Any) -> None:
    client = a_client(core)

    assert client.step(b"\x30\x84\0" + publish(b"a", b"1")[2:]) is None
    assert publish(b"a", b"1") == client.packet_reader.qos0.raw


@both
def test_nobody_needs_flows_for_what_is_not_gathered_anyway(core: Any) -> None:
    client = a_client(core)
    client.packet_reader.open(client.session, "client", None, clean=True)
    retained = publish(b"b", b"2", 1, 7, flags=1)
    assert (0x33, retained[2:]) == client.step(retained)
    assert not client.packet_reader.wants_flows


@both
@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 70_000])
@pytest.mark.parametrize("cut", [1, 2, 3, 4, 5, 100, 20_000])
def test_packets_may_come_in_any_pieces(core: Any, size: int, cut: int) -> None:
    client = a_client(core)
    packets = b"".join(publish(b"a/b", bytes([n]) * size) for n in range(3))
    payloads = []

    for start in range(0, len(packets), cut):
        assert client.step(packets[start : start + cut]) is None
        run = client.packet_reader.qos0
        payloads += [] if run is None else [run.message(n).payload for n in range(run.count)]

    assert [bytes([n]) * size for n in range(3)] == payloads
    assert client.packet_reader.first_byte is None


@both
def test_first_byte_is_that_of_what_is_not_complete(core: Any) -> None:
    client = a_client(core)
    assert client.packet_reader.first_byte is None

    client.step(publish(b"a") + b"\x32")
    assert 0x32 == client.packet_reader.first_byte
    client.step(b"\x09\x00")
    assert 0x32 == client.packet_reader.first_byte


TOPICS = [
    (b"a", True),
    (b"/", True),
    (b"+a", False),
    (b"a/#", False),
    (b"a/bcdefgh#ijk", False),
    (b"abcdefgh+", False),
    (b"a\0b", False),
    (b"abcdefghijk\0", False),
    (b"$a", False),
    (b"a$", True),
    (b"\x01\x1f\x7f", True),
    ("\u00e9\u20ac\U0001f600\ufeff\ufffe".encode(), True),
    (b"\xc0\x80", False),
    (b"\xe0\x9f\xbf", False),
    (b"\xed\xa0\x80", False),
    (b"\xed\x9f\xbf", True),
    (b"\xf0\x8f\xbf\xbf", False),
    (b"\xf4\x8f\xbf\xbf", True),
    (b"\xf4\x90\x80\x80", False),
    (b"\xf5\x80\x80\x80", False),
    (b"\xc3", False),
    (b"abcdefg\xe2\x82", False),
    (b"\x80", False),
    (b"\xff", False),
]


@both
@pytest.mark.parametrize(("topic", "is_valid"), TOPICS)
def test_topics_are_valid_or_for_others(core: Any, topic: bytes, is_valid: bool) -> None:
    """Also behind one that is, and once it is known."""
    packets = [publish(b"abc"), publish(topic, b"1"), publish(topic, b"2")]
    client = a_client(core)

    found = client.step(b"".join(packets))

    assert is_valid is (found is None)
    assert (3 if is_valid else 1) == client.packet_reader.qos0.count
    if not is_valid:
        assert (0x30, packets[1][2:]) == found


@both
@pytest.mark.parametrize(
    "packet",
    [
        b"\x30\x00",
        b"\x30\x01\x00",
        b"\x30\x02\x00\x00",
        b"\x30\x04\x00\x03ab",
        b"\x31\x03\x00\x01a",
        b"\x36\x05\x00\x01a\x00\x01",
        b"\x38\x03\x00\x01a",
        b"\x32\x03\x00\x01a",
        b"\x32\x04\x00\x01a\x00",
        b"\x32\x05\x00\x01a\x00\x00",
        b"\x40\x02\x00\x00",
        b"\x40\x03\x00\x01\x01",
        b"\x41\x02\x00\x01",
        b"\x62\x01\x00",
        b"\x60\x02\x00\x01",
        b"\x20\x02\x00\x00",
    ],
)
def test_what_is_not_plain_is_for_others(core: Any, packet: bytes) -> None:
    client = a_client(core)

    assert (packet[0], packet[2:]) == client.step(packet + publish(b"a"))
    assert client.packet_reader.qos0 is None
    assert client.packet_reader.step() is None
    assert 1 == client.packet_reader.qos0.count


@both
def test_a_length_with_needless_bytes_is_put_right(core: Any) -> None:
    client = a_client(core)

    assert (
        client.step(publish(b"a", b"0") + b"\x30\x84\x00\x00\x01a1" + publish(b"b", b"2")) is None
    )

    run = client.packet_reader.qos0
    assert publish(b"a", b"0") + publish(b"a", b"1") + publish(b"b", b"2") == run.raw
    assert [b"0", b"1", b"2"] == [run.message(n).payload for n in range(3)]


@both
def test_qos_12_is_taken_only_when_it_may_be(core: Any) -> None:
    client = a_client(core, clean=False)

    assert client.step(publish(b"a", b"", 1, 1)) is None
    assert (0x34, publish(b"a", b"", 2, 2)[2:]) == client.step(publish(b"a", b"", 2, 2))
    client.packet_reader.takes_qos12 = False
    assert client.step(publish(b"a", b"", 1, 3)) is not None
    assert client.step(publish(b"a")) is None
    client.packet_reader.takes_qos12 = True
    assert client.step(publish(b"a", b"", 1, 1)) is not None, "the packet id is in use"
    client.flows.hold(9)
    assert client.step(publish(b"a", b"", 1, 9)) is not None, "the packet id is held"


@both
def test_acknowledgements_are_dealt_with(core: Any) -> None:
    client = a_client(core)
    packet_writer = client.packet_writer
    packet_writer.open_window(10, 10**6)
    for qos in (1, 2, 2):
        assert packet_writer.deliver(b"a", b"", qos, 65, "part", 1)
    packet_writer.dequeue()

    assert client.step(answer(0x40, 1) + answer(0x50, 2) + answer(0x70, 2)) is None

    assert (1, False) == (packet_writer.in_flight, client.packet_reader.has_landed)
    assert answer(0x62, 2) == packet_writer.dequeue()
    assert [] == client.packet_reader.pubacks
    assert client.step(publish(b"a", b"", 2, 5)) is None
    assert client.flows.acknowledge(client.packet_reader.qos12, packet_writer) == []
    assert client.step(answer(0x62, 5)) is None
    assert answer(0x50, 5) + answer(0x70, 5) == packet_writer.dequeue()
    client.flows.hold(6)
    assert (0x62, b"\0\x06") == client.step(answer(0x62, 6))
    assert not client.packet_reader.has_landed


@both
@pytest.mark.parametrize(("kind", "packet_id"), [(0x40, 2), (0x50, 1), (0x70, 1), (0x70, 2)])
def test_acknowledgements_of_the_wrong_kind_are_for_others(
    core: Any, kind: int, packet_id: int
) -> None:
    """They change nothing here; the connection is about to end."""
    client = a_client(core)
    packet_writer = client.packet_writer
    packet_writer.open_window(10, 10**6)
    for qos in (1, 2):
        assert packet_writer.deliver(b"a", b"", qos, 65, "part", 1)
    packet_writer.dequeue()

    assert (kind, packet_id.to_bytes(2)) == client.step(answer(kind, packet_id))
    wants = {
        0x40: packet_writer.acknowledge,
        0x50: packet_writer.receive,
        0x70: packet_writer.complete,
    }[kind]
    assert not wants((packet_id,) if kind == 0x40 else packet_id)
    assert (2, b"") == (packet_writer.in_flight, packet_writer.dequeue() or b"")


@both
def test_what_waits_goes_when_there_is_room(core: Any) -> None:
    """Its session has to see to it only where there is more to be done."""
    client = a_client(core)
    packet_writer = client.packet_writer
    packet_writer.open_window(2, 10**6)
    for number in range(5):
        assert packet_writer.deliver(b"a", b"%d" % number, 1, 65, "part", 1 + number)
    assert packet_writer.dequeue()

    client.step(answer(0x40, 1))
    assert (publish(b"a", b"2", 1, 3), True) == (
        packet_writer.dequeue(),
        client.packet_reader.has_landed,
    )
    packet_writer.is_told = True
    client.step(answer(0x40, 2))
    assert (publish(b"a", b"3", 1, 4), False) == (
        packet_writer.dequeue(),
        client.packet_reader.has_landed,
    )
    packet_writer.is_direct = False
    client.step(answer(0x40, 3))
    assert (publish(b"a", b"4", 1, 5), True) == (
        packet_writer.dequeue(),
        client.packet_reader.has_landed,
    )
    assert (4, 4) == (packet_writer.fills, client.router.fills)


@both
def test_acknowledgements_of_a_lasting_session_are_for_others(core: Any) -> None:
    client = a_client(core, clean=False)

    assert client.step(answer(0x40, 7) + answer(0x40, 300)) is None
    assert [7, 300] == client.packet_reader.pubacks
    for first_byte in (0x50, 0x62, 0x70):
        assert (first_byte, b"\0\x07") == client.step(answer(first_byte, 7))
        assert [] == client.packet_reader.pubacks


@both
def test_before_and_after_a_session_every_packet_comes_by_itself(core: Any) -> None:
    router = core.Router(lambda: None)
    packet_reader = router.make_packet_reader(router.make_packet_writer(), 1000)
    packet_reader.feed(publish(b"a") + answer(0x40, 1))

    assert (0x30, b"\0\x01a") == packet_reader.step()
    assert packet_reader.has_heard
    assert (0x40, b"\0\x01") == packet_reader.step()
    assert packet_reader.step() is None
    assert not packet_reader.has_heard
    client = a_client(core)
    client.packet_reader.close()
    assert (0x30, b"\0\x01a") == client.step(publish(b"a"))


@both
@pytest.mark.parametrize(
    ("data", "rule", "code"),
    [
        (b"\x30\x80\x80\x80\x80", "section 2.2.3", 0x81),
        (b"\x30\xff\xff\xff\xff\x01", "section 2.2.3", 0x81),
        (b"\x30\x63", "limits.packet", 0x95),
        (b"\x30\xff\x01", "limits.packet", 0x95),
    ],
)
def test_what_is_no_packet_is_a_fault_after_what_came_before(
    core: Any, data: bytes, rule: str, code: int
) -> None:
    client = a_client(core, max_packet=100)

    assert client.step(publish(b"a" * 95) + data) is None

    assert client.packet_reader.qos0 is not None
    assert rule == client.packet_reader.fault.rule
    client.packet_reader.fault = None
    assert client.packet_reader.step() is None
    assert client.packet_reader.qos0 is None
    fault = client.packet_reader.fault
    assert (rule, code) == (fault.rule, fault.reason_code)


@both
def test_a_packet_in_many_reads_costs_in_proportion(core: Any) -> None:
    """8 MiB in reads of 512 bytes: copying all for each would be 64 GiB."""
    client = a_client(core, max_packet=2**28)
    packet = publish(b"a", bytes(8 * 1024 * 1024))

    for start in range(0, len(packet), 512):
        client.packet_reader.feed(packet[start : start + 512])
        client.packet_reader.step()

    assert packet == client.packet_reader.qos0.raw


@both
def test_reads_may_be_fed_faster_than_they_are_worked_off(core: Any) -> None:
    client = a_client(core)
    packet = publish(b"a", bytes(1000)) + b"\xc0\0"
    for _ in range(3):
        for byte in range(len(packet)):
            client.packet_reader.feed(packet[byte : byte + 1])
        client.packet_reader.feed(b"")

    for _ in range(3):
        assert (0xC0, b"") == client.packet_reader.step()
        assert 1 == client.packet_reader.qos0.count
    assert client.packet_reader.step() is None


@both
def test_a_run_has_a_most_of_messages(core: Any) -> None:
    client = a_client(core)
    packets = publish(b"a") * MOST

    assert client.step(packets + publish(b"b")) is None

    assert (MOST, True) == (client.packet_reader.qos0.count, client.packet_reader.has_more)
    assert client.packet_reader.step() is None
    assert (["b"], False) == (client.packet_reader.qos0.topics(), client.packet_reader.has_more)


@both
def test_a_run_has_all_of_who_published_it(core: Any) -> None:
    client = a_client(core, "me")
    client.step(publish(b"a", b"1", 1, 4) + publish(b"b", b"22", 1, 5))

    run = client.packet_reader.qos12

    assert (("me",), None, "", client.session) == (run.clients, run.places, run.edge, run.session)
    assert (2, 1, 2 * 64 + 5, 0, None) == (run.count, run.qos, run.size, run.first, run.offsets)
    assert [4, 5] == run.packet_ids
    client.step(publish(b"a", b"1", 1, 6))
    assert client.packet_reader.qos12.serial == run.serial + 1


@needs_compiled
def test_what_was_read_is_neither_copied_nor_kept() -> None:
    client = a_client(COMPILED)
    data = publish(b"a", bytes(10_000)) * 20
    before = sys.getrefcount(data)

    client.step(data)
    assert client.packet_reader.qos0.raw is data
    client.step(b"")
    assert before == sys.getrefcount(data)
    client.step(data[:-1])
    client.packet_reader.qos0 = None
    client.packet_reader.step()
    assert not [one for one in gc.get_referrers(data) if one is client.packet_reader]


@needs_compiled
def test_an_idle_connection_takes_few_bytes() -> None:
    """Its packet writer, packet reader and flows, with what the garbage collector adds to each."""
    client = a_client(COMPILED)
    client.packet_writer.open_window(20, 10**6)

    parts = (client.packet_writer, client.packet_reader, client.flows)
    held = client.packet_writer.memory_held() + client.flows.memory_held()
    assert sum(sys.getsizeof(part) for part in parts) + held < 500


@both
def test_more_is_said_to_be_there_behind_a_single_packet(core: Any) -> None:
    client = a_client(core)
    ping = b"\xc0\0"

    assert (0xC0, b"") == client.step(ping + publish(b"a") + ping)
    assert client.packet_reader.has_more
    assert (0xC0, b"") == client.packet_reader.step()
    assert (["a"], False) == (client.packet_reader.qos0.topics(), client.packet_reader.has_more)
    assert (0xC0, b"") == client.step(ping + b"\xc0")
    assert client.packet_reader.has_more
    assert client.packet_reader.step() is None
    assert (0xC0, b"") == client.step(b"\0")
    assert (None, False) == (client.packet_reader.first_byte, client.packet_reader.has_more)


@needs_compiled
def test_an_empty_packet_reader_keeps_nothing_of_what_was_read() -> None:
    """There are very many, and a read may have 256 KiB."""
    client = a_client(COMPILED)
    data = publish(b"a", b"0" * 1000)[:-1] + b"1" + b"\xc0\0"
    known = sys.getrefcount(data)
    assert (0xC0, b"") == client.step(data)
    client.packet_reader.qos0 = None
    assert known == sys.getrefcount(data)
