"""Property lists of publishes: from clients, over links, to clients of both levels, and on disk."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.cores import (
    COMPILED,
    CORES,
    Client,
    a_client,
    a_run,
    both,
    needs_compiled,
    pairs,
    publish,
    stored,
)
from tests.support.property_lists import (
    NO_LIST,
    NOT_PLAIN,
    plain_properties,
    user_property,
    with_length,
)
from txbroker.journal.store.record_format import decode_records, encode_records
from txbroker.model.errors import PeerError
from txbroker.mqtt.wire.message import Message
from txbroker.mqtt.wire.property_list import MOST_PROPERTIES, cut_list
from txbroker.mqtt.wire.return_codes import ProtocolViolation
from txbroker.storage.segment import Batch

USER = user_property("name", "value")

some_lists = st.lists(plain_properties, min_size=1, max_size=6)


def packets_of(lists: list[bytes], qos: int = 0) -> list[bytes]:
    return [
        publish(b"a/%d" % (n % 2), b"%d" % n, qos, n + 1, properties=properties)
        for n, properties in enumerate(lists)
    ]


def without_lists(lists: list[bytes], qos: int = 0) -> list[bytes]:
    return [publish(b"a/%d" % (n % 2), b"%d" % n, qos, n + 1) for n in range(len(lists))]


@settings(max_examples=60, deadline=None)
@given(lists=some_lists, qos=st.sampled_from([0, 1]))
def test_a_run_has_what_its_publishes_have(lists: list[bytes], qos: int) -> None:
    for core in CORES:
        packets = packets_of(lists, qos)
        run = a_run(core, *packets, level=5)

        assert run.has_properties
        assert b"".join(map(stored, packets)) == run.raw
        messages = [run.message(n) for n in range(run.count)]
        assert (
            lists
            == [one.properties for one in messages]
            == [run.properties(n) for n in range(run.count)]
        )
        assert [b"%d" % n for n in range(len(lists))] == [one.payload for one in messages]
        assert run.size == sum(one.size for one in messages)
        heads = [one.head(1, retain=False, dup=False, level=5) for one in messages]
        if qos:
            assert all(packet.startswith(head) for packet, head in zip(packets, heads, strict=True))
        part = run.select(range(run.count - 1, -1, -1))
        assert lists[::-1] == [part.message(n).properties for n in range(part.count)]


@both
def test_a_run_without_lists_is_as_it_came(core: Any) -> None:
    packets = publish(b"a", b"1") + publish(b"b", b"2")
    run = a_run(core, packets[:6], packets[6:])
    assert (False, packets) == (run.has_properties, run.raw)
    assert b"" == run.message(0).properties


@both
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("name", [*NOT_PLAIN, *NO_LIST])
def test_lists_that_are_not_plain_are_for_others(core: Any, name: str, qos: int) -> None:
    """Behind properties that are plain, too; on a link and in a store they are errors."""
    made = NO_LIST.get(name)
    for before in (b"", USER):
        properties = before + NOT_PLAIN.get(name, b"")
        packet = publish(b"a", made if made is not None else with_length(properties) + b"x", qos, 7)
        client = a_client(core, level=5)
        assert (packet[0], packet[2:]) == client.step(packet)
        assert not client.flows.packet_ids()

        link = core.LinkReader(1000)
        link.expected = 1
        link.feed(stored(packet))
        assert (packet[0] | 0xC0, packet[2:]) == link.step()
        with pytest.raises(ProtocolViolation):
            cut_list(packet[0] | 0xC0, packet[2:])
        body = encode_records([Message("a", b"", packet=stored(packet))], {}, "n")
        for work in (
            lambda body=body: core.Columns().add(1, 2, body, 1),
            lambda body=body: core.StoredRecords().add(1, body, 1),
            lambda body=body: core.Sieve(lambda _: False).sift(1, body, 1, 0, 9),
        ):
            with pytest.raises(PeerError, match="no PUBLISH"):
                work()


@both
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_lists_of_too_many_properties_are_for_others(core: Any, qos: int) -> None:
    """The decoder refuses them; one property less is nothing that anybody looks at."""
    for more, is_left in ((0, False), (1, True)):
        properties = b"\x26\0\0\0\0" * (MOST_PROPERTIES + more)
        packet = publish(b"a", with_length(properties) + b"x", qos, 7)
        client = a_client(core, level=5)
        assert (client.step(packet) is not None) == is_left


@both
def test_a_client_below_level_5_has_no_lists(core: Any) -> None:
    """What looks like one is its payload."""
    for level in (3, 4):
        run = a_run(core, publish(b"a", with_length(USER) + b"x"), level=level)
        assert (with_length(USER) + b"x", b"") == (
            run.message(0).payload,
            run.message(0).properties,
        )


@both
@pytest.mark.parametrize("size", [0, 117, 118, 127, 128, 129, 300, 16_374, 16_383, 16_384, 70_000])
@pytest.mark.parametrize("qos", [0, 1])
def test_lists_and_packets_of_every_length(core: Any, size: int, qos: int) -> None:
    """To clients of both levels, from one of each."""
    listed = b"\x09" + size.to_bytes(2) + bytes(size) if size and size < 65_536 else b""
    for properties, level in ((listed, 5), (None, 4)):
        packet = publish(b"a", b"x" * size, qos, 1, properties=properties)
        run = a_run(core, packet, level=level)
        router = core.Router(lambda: None)
        for of_client in (4, 5):
            client = Client(core, router, str(of_client), level=of_client)
            client.packet_writer.open_window(10, 10**6)
            client.subscribe("#", qos)
        assert [] == router.fan_out(run, "part")
        assert [
            publish(b"a", b"x" * size, qos, 1),
            publish(b"a", b"x" * size, qos, 1, properties=properties or b""),
        ] == [bytes(target.packet_writer.dequeue()) for _, target in sorted_targets(router)]


def sorted_targets(router: Any) -> list[tuple[Any, Any]]:
    return sorted(router.targets.match("a"), key=lambda one: one[1].packet_writer.level)


@settings(max_examples=60, deadline=None)
@given(
    lists=st.lists(st.none() | plain_properties, min_size=1, max_size=8),
    qos=st.sampled_from([0, 1]),
    wanted=st.sampled_from([0, 1]),
)
def test_each_client_gets_its_own_form(lists: list[bytes | None], qos: int, wanted: int) -> None:
    """Of a run from a link, in which both forms are mixed."""
    packets = [
        publish(b"a/%d" % (n % 2), b"%d" % n, qos, n + 1, properties=properties)
        for n, properties in enumerate(lists)
    ]
    data = b"".join(
        one if properties is None else stored(one)
        for one, properties in zip(packets, lists, strict=True)
    )
    at = min(qos, wanted)
    expected = [
        b"".join(
            publish(
                b"a/%d" % (n % 2),
                b"%d" % n,
                at,
                n + 1,
                properties=(properties or b"") if level == 5 else None,
            )
            for n, properties in enumerate(lists)
        )
        for level in (4, 4, 5, 5)
    ]
    for core in CORES:
        link = core.LinkReader(1_000_000)
        link.expected = len(lists)
        link.feed(data)
        run = link.step()
        assert (len(lists), data) == (run.count, run.raw)
        router = core.Router(lambda: None)
        clients = [Client(core, router, str(n), level=4 + (n > 1)) for n in range(4)]
        for client in clients:
            client.packet_writer.open_window(20, 10**6)
            client.subscribe("#", wanted)
        assert [] == router.fan_out(run, "part")
        assert expected == [bytes(client.packet_writer.dequeue()) for client in clients]


@both
def test_messages_of_a_window_have_their_properties(core: Any) -> None:
    """Live, read again, or to be had once; a client below level 5 gets none."""
    for level in (4, 5):
        client = a_client(core, level=level)
        writer = client.packet_writer
        writer.open_window(10, 10**6)
        assert writer.deliver(b"a", b"1", 1, 65, "part", 1, USER)
        assert writer.redeliver(b"a", b"2", 2, 65, "part", 2, USER * 20)
        writer.deliver_first(b"a", b"3", 1, 65, b"", retain=True)
        writer.pump()
        lists = (USER, b"", USER * 20) if level == 5 else (None,) * 3
        assert (
            publish(b"a", b"1", 1, 1, properties=lists[0])
            + publish(b"a", b"3", 1, 2, flags=1, properties=lists[1])
            + publish(b"a", b"2", 2, 3, properties=lists[2])
        ) == writer.dequeue()


@both
@pytest.mark.parametrize("level", [4, 5])
def test_what_is_too_large_for_one_client_is_counted_and_goes_to_others(
    core: Any, level: int
) -> None:
    """To the byte; it takes no room in the window."""
    router = core.Router(lambda: None)
    small, other = (Client(core, router, name, level=level) for name in ("small", "other"))
    for client in (small, other):
        client.packet_writer.open_window(10, 10**6)
        client.subscribe("qos0/#")
        client.subscribe("qos1/#", 1)
    properties = USER if level == 5 else None
    fits, large = (publish(b"qos0/a", b"x" * n, properties=properties) for n in (10, 11))
    small.packet_writer.max_packet = len(fits)
    run = a_run(core, fits, large, fits, level=level)
    assert [] == router.fan_out(run, None)
    assert (fits + fits, 1, 0) == (
        bytes(small.packet_writer.dequeue()),
        small.packet_writer.too_large,
        small.packet_writer.dropped,
    )
    assert fits + large + fits == other.packet_writer.dequeue()
    fits, large = (publish(b"qos1/a", b"x" * n, 1, 1, properties=properties) for n in (8, 9))
    assert len(fits) == small.packet_writer.max_packet
    assert [] == router.fan_out(a_run(core, large, level=level), "part")
    assert (2, 0, b"") == (
        small.packet_writer.too_large,
        small.packet_writer.in_flight,
        bytes(small.packet_writer.dequeue()),
    )
    assert large == other.packet_writer.dequeue()
    assert [] == router.fan_out(a_run(core, fits, level=level), "part")
    assert fits == small.packet_writer.dequeue()
    writer, listed = small.packet_writer, properties or b""
    assert writer.redeliver(b"qos1/a", b"x" * 9, 1, 80, "part", 1, listed)
    writer.deliver_first(b"qos1/a", b"x" * 9, 1, 80, listed, retain=True)
    assert not writer.send_qos0(large + b"x")
    assert (5, 0, 1) == (writer.too_large, writer.waiting, writer.in_flight)


@both
@pytest.mark.parametrize("how", ["fan_out", "deliver", "redeliver", "deliver_first", "send_qos0"])
def test_somebody_hears_of_what_is_too_large(core: Any, how: str) -> None:
    """At once, though nothing is to be written, and by the end of the turn."""
    told: list[bool] = []
    router = core.Router(lambda: told.append(True))
    client = Client(core, router)
    writer = client.packet_writer
    writer.open_window(10, 10**6)
    writer.max_packet = 10
    if how == "fan_out":
        client.subscribe("#")
        assert [] == router.fan_out(a_run(core, publish(b"a", bytes(10))), None)
    elif how == "send_qos0":
        assert not writer.send_qos0(bytes(11))
    elif how == "deliver_first":
        writer.deliver_first(b"a", bytes(10), 1, 75, retain=True)
    else:
        assert getattr(writer, how)(b"a", bytes(10), 1, 75, "part", 1)
    assert ([True], 1, 0) == (told, writer.too_large, writer.waiting)
    assert [writer] == router.send_outputs()


@both
def test_a_link_takes_the_stored_form_alone(core: Any) -> None:
    """DUP means nothing there either; a packet without mark has no list."""
    link = core.LinkReader(1000)
    link.expected = 4
    first = publish(b"a", b"1", 1, 1, 8, properties=USER)
    second = publish(b"a", with_length(USER) + b"2", 1, 1)
    third = publish(b"a", b"3", 2, 1, properties=b"")
    retained = stored(publish(b"a", b"4", 1, 1, 1, properties=USER))
    link.feed(stored(first) + second + stored(third) + retained)

    run = link.step()
    assert [USER, b"", b""] == [run.message(n).properties for n in range(3)]
    assert [b"1", with_length(USER) + b"2", b"3"] == [run.message(n).payload for n in range(3)]
    assert stored(publish(b"a", b"1", 1, 1, properties=USER)) + second + stored(third) == run.raw
    assert (retained[0], retained[2:]) == link.step()
    assert (0x33, retained[2:5] + b"\0\x01" + b"4", USER) == cut_list(retained[0], retained[2:])


@settings(max_examples=60, deadline=None)
@given(
    lists=st.lists(st.none() | plain_properties, min_size=1, max_size=8),
    qos=st.sampled_from([0, 1]),
    size=st.sampled_from([0, 115, 125, 126, 127, 16_380]),
)
def test_a_node_that_knows_of_no_properties_gets_none(
    lists: list[bytes | None], qos: int, size: int
) -> None:
    """The run is the same otherwise, and counts what is sent."""
    for core in CORES:
        packets = [publish(b"a", bytes(size), qos, 7, properties=one) for one in lists]
        data = b"".join(
            packet if one is None else stored(packet)
            for packet, one in zip(packets, lists, strict=True)
        )
        link = core.LinkReader(1_000_000)
        link.expected = len(lists)
        link.feed(data)
        run = link.step()
        run.clients, run.edge, run.first = ("a", "b"), "e", 5
        run.places = [n % 2 for n in range(run.count)]

        plain = run.without_properties()
        expected = publish(b"a", bytes(size), qos, 7) * len(lists)
        assert (expected, False) == (plain.raw, plain.has_properties)
        assert plain.size == sum(plain.message(n).size for n in range(plain.count))
        assert (run.clients, run.places, "e", run.ranges()) == (
            plain.clients,
            plain.places,
            plain.edge,
            plain.ranges(),
        )
        assert plain.topics() == run.topics() and plain.packet_ids == run.packet_ids
        assert plain.without_properties() is plain
        if qos:
            continue
        for has_properties in (False, True):
            writer = core.Router(lambda: None).make_packet_writer()
            near, far = socket.socketpair()
            with near, far:
                writer.descriptor = near.fileno()
                sender = core.Router(lambda: None).make_sender(writer, lambda _: b"h1234")
                sender.has_properties, sender.room = has_properties, 10**6
                assert sender.send(run)
            sent = run if has_properties else plain
            count = len(lists).to_bytes(4, "little")
            assert (b"h" + count + sent.raw, sent.size) == (bytes(writer.dequeue()), sender.sent)


@needs_compiled
def test_the_other_form_is_made_once_for_all_clients() -> None:
    """Outputs of a hundred clients share it."""
    run = a_run(COMPILED, *[publish(b"a", b"x" * 900, properties=USER)] * 100, level=5)
    router = COMPILED.Router(lambda: None)
    clients = [Client(COMPILED, router, str(n)) for n in range(100)]
    for client in clients:
        client.subscribe("a")
    assert [] == router.fan_out(run, None)
    held = sum(client.packet_writer.memory_held() for client in clients)
    assert held < 100 * 1000
    packet = publish(b"a", b"x" * 900)
    outputs = [client.packet_writer.dequeue() for client in clients]
    assert all(one == packet * 100 for one in outputs)
    assert all(one is outputs[0] for one in outputs)


@both
def test_an_empty_list_is_kept_in_a_journal_as_it_came(core: Any) -> None:
    run = a_run(core, publish(b"a", b"1", properties=b""), level=5)
    batch = Batch(first=1, count=1, time=1, body=encode_records([run], {}, "n"))

    (record,) = decode_records(batch)
    assert (b"1", b"", run.raw) == (
        record.message.payload,
        record.message.properties,
        record.message.link_packet,
    )
    assert publish(b"a", b"1") == record.message.without_properties().link_packet


@needs_compiled
def test_entries_with_a_packet_id_have_room_for_it() -> None:
    data = publish(b"a", b"", 1, 1)
    (entry,) = a_run(COMPILED, data).entries
    with pytest.raises(ValueError, match="outside"):
        COMPILED.Run(data, [entry._replace(payload=entry.topic_end + 1)], clients=("",))


EXPIRES = b"\x02\x00\x00\x00\x05"
OVER = b"\x02\x00\x00\x00\x00"


@both
@pytest.mark.parametrize("qos", [0, 1])
def test_what_expires_is_in_a_run(core: Any, qos: int) -> None:
    """The run says so, whatever else its publishes have, and each has its own interval."""
    lists = [USER, USER + EXPIRES, b"", b"\x01\x00\x03\0\1t\x09\0\1c" + EXPIRES]
    run = a_run(core, *packets_of(lists, qos), level=5)
    run.came = 5.0

    assert lists == [run.properties(index) for index in range(run.count)]
    assert run.expires
    parts = [run.select([0, 2]), *run.cut(2), run.without_properties()]
    assert [False, True, True, False] == [part.expires for part in parts]
    assert {5.0} == {part.came for part in parts}


@both
def test_what_expires_on_a_link_is_in_a_run(core: Any) -> None:
    link = core.LinkReader(1000)
    link.expected = 2
    for listed in (EXPIRES, USER + EXPIRES):
        link.feed(stored(publish(b"a", b"1", 1, 1, properties=listed)))
    run = link.step()
    assert (2, True) == (run.count, run.expires)


@both
@pytest.mark.parametrize("qos", [0, 1])
def test_what_has_expired_is_for_others(core: Any, qos: int) -> None:
    """No client gets it: it goes on by itself, from a client and on a link."""
    packet = publish(b"a", b"1", qos, 1, properties=USER + OVER)
    assert (packet[0], packet[2:]) == a_client(core, level=5).step(packet)
    link = core.LinkReader(1000)
    link.expected = 2
    link.feed(stored(packet))
    assert (stored(packet)[0], packet[2:]) == link.step()


@both
def test_what_expires_does_not_wait_behind_a_window(core: Any) -> None:
    """It would not age there. Its session reads it from the journal, and all that follows."""
    client = a_client(core, level=5)
    client.packet_writer.open_window(2, 2**40)
    client.subscribe("a/#", 1)
    run = a_run(core, *packets_of([EXPIRES] * 4, 1), level=5)
    run.first = 10

    assert [(client.session, 2), (client.session, 3)] == pairs(client.router.fan_out(run, "part"))
    assert (2, 0) == (client.packet_writer.in_flight, client.packet_writer.waiting)
    assert not client.packet_writer.deliver(b"a", b"1", 1, 65, "part", 14, EXPIRES)
    assert client.packet_writer.deliver(b"a", b"1", 1, 65, "part", 14, USER)


@both
@pytest.mark.parametrize("qos", [0, 1])
def test_what_says_that_it_is_text_is_for_others_if_they_want_it(core: Any, qos: int) -> None:
    """What says that it is not, or says nothing, is in a run."""
    others = [publish(b"a", b"1", qos, 1, properties=listed) for listed in (b"", b"\x01\x00")]
    others[1] = publish(b"a", b"1", qos, 3, properties=b"\x01\x00")
    text = publish(b"a", b"2", qos, 2, properties=USER + b"\x01\x01")
    for leaves_text in (False, True):
        client = a_client(core, level=5)
        reader = client.packet_reader
        reader.leaves_text = leaves_text
        found = client.step(b"".join([*others, text]))
        run = reader.qos12 if qos else reader.qos0
        assert (leaves_text, 2 if leaves_text else 3) == (found is not None, run.count)
