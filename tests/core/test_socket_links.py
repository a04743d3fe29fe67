"""What is done at once with publishes to links, and with batches that come from links."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.cores import Client, both, publish, stored
from tests.core.socket_bench import a_bench, a_link, header
from tests.support.property_lists import user_property
from txbroker.core import FED
from txbroker.core.reference.packet_writer import HIGH_MARK

USER = user_property("name", "value")


# -- to links


@both
def test_what_is_for_an_owner_elsewhere_goes_there(core: Any) -> None:
    packets = publish(b"far/a", b"1") + publish(b"far/b", b"2")
    with a_bench(core) as bench:
        sender = bench.add_sender("other", 150)
        assert bench.wait(packets) is None
        assert b"<publisher>\2\0\0\0" + packets == bench.reader.recv(1000)
        assert (2, 0) == (bench.router.received, bench.router.delivered)
        assert 0 < sender.sent == 150 - sender.room

        sender.room = 0
        assert [(bench.number, FED)] == bench.wait(publish(b"far/a"))
        assert ["other", "other"] == bench.found


@both
def test_what_is_for_one_owner_goes_there_by_whatever_apex(core: Any) -> None:
    packets = publish(b"far/a", b"1") + publish(b"farther", b"2")
    with a_bench(core) as bench:
        bench.router.routes.set("farther", "other")
        bench.add_sender("other", 150)
        assert bench.wait(packets) is None
        assert b"<publisher>\2\0\0\0" + packets == bench.reader.recv(1000)


@both
def test_a_node_without_a_zone(core: Any) -> None:
    """Also while some client's output is full: only the owner gets what a client publishes."""
    packet = publish(b"far/a", b"1")
    with a_bench(core) as bench:
        bench.add_sender("other")
        bench.sockets = bench.router.make_sockets()
        bench.sockets.wire_owners(bench.find)
        bench.sockets.add(bench.number, bench.publisher.packet_reader)
        assert bench.wait(packet) is None
        bench.subscriber.packet_writer.send(bytes(HIGH_MARK))
        assert [] == bench.wait(packet)
        assert bench.publisher.packet_reader.fault is None
        bench.router.send_outputs()
        assert 2 * (b"<publisher>\1\0\0\0" + packet) == bench.reader.recv(1000)


@both
def test_what_is_for_two_owners_is_for_others(core: Any) -> None:
    with a_bench(core) as bench:
        bench.add_sender("other")
        assert [(bench.number, FED)] == bench.wait(publish(b"far/a") + publish(b"a"))
        assert not bench.router.received


@both
def test_what_other_edges_want_goes_there_and_here(core: Any) -> None:
    packet = publish(b"a", b"1")
    with a_bench(core) as bench:
        bench.add_sender("there")
        bench.router.interests.add("a", "there", "there")
        assert [] == bench.wait(packet)
        assert packet == bench.subscriber.packet_writer.dequeue()
        bench.sockets.notify_output()
        bench.router.send_outputs()
        assert b"<publisher>\1\0\0\0" + packet == bench.reader.recv(1000)

        bench.connect_subscriber()
        bench.router.interests.remove("#", "edge")
        assert bench.wait(packet) is None
        assert b"<publisher>\1\0\0\0" + packet == bench.reader.recv(1000)


@both
def test_all_links_have_to_be_free(core: Any) -> None:
    with a_bench(core) as bench:
        for key in ("there", "elsewhere"):
            bench.router.interests.add("a", key, key)
        bench.add_sender("there")
        assert [(bench.number, FED)] == bench.wait(publish(b"a"))
        bench.publisher.packet_reader.step()
        bench.add_sender("elsewhere", room=0)
        assert [(bench.number, FED)] == bench.wait(publish(b"a"))
        assert not bench.subscriber.packet_writer.size and not bench.router.received


@both
def test_what_nobody_wants_goes_nowhere(core: Any) -> None:
    with a_bench(core) as bench:
        bench.router.interests.remove("#", "edge")
        assert bench.wait(publish(b"a")) is None
        assert (1, 0) == (bench.router.received, bench.router.delivered)


@both
def test_a_header_is_made_once_until_it_is_forgotten(core: Any) -> None:
    made: list[str] = []

    def make(client_id: str) -> bytes:
        made.append(client_id)
        return b".1234"

    router = core.Router(lambda: None)
    packet_writer = router.make_packet_writer()
    sender = router.make_sender(packet_writer, make)
    client = Client(core, router, "me")
    client.step(publish(b"a"))
    run = client.packet_reader.qos0
    assert not sender.send(run)  # there is no room
    sender.room = 1000
    assert not sender.send(run)  # it cannot be written
    packet_writer.descriptor = 1
    assert sender.send(run) and sender.send(run)
    sender.forget()
    assert sender.send(run)
    assert ["me"] * 2 == made
    assert (b".\1\0\0\0" + publish(b"a")) * 3 == packet_writer.dequeue()


# -- from links


@both
def test_a_batch_whose_header_is_known_goes_on_at_once(core: Any) -> None:
    with a_link(core) as link:
        assert link.wait(header(b"one") + publish(b"a/b", b"12")) is None
        assert publish(b"a/b", b"12") == link.reader.recv(100)
        assert (0, 1) == (link.router.received, link.router.delivered)
        assert 17.0 == link.packet_reader.heard_at and link.packet_reader.received > 5


@both
def test_a_batch_in_the_stored_form_goes_on_at_once(core: Any) -> None:
    """Packets with a list among others; clients of each level get their own form."""
    said = [(b"1", b""), (b"2", None), (b"3", USER), (b"4", USER)]
    packets = [publish(b"a/b", payload, properties=listed) for payload, listed in said]
    data = b"".join(
        packet if listed is None else stored(packet)
        for packet, (_, listed) in zip(packets, said, strict=True)
    )
    for level in (4, 5):
        with a_link(core) as link:
            link.subscriber.packet_writer.level = level
            assert link.wait(header(b"one", 4) + data) is None
            expected = b"".join(
                publish(b"a/b", payload, properties=None if level < 5 else listed or b"")
                for payload, listed in said
            )
            assert expected == link.reader.recv(1000)
            assert 4 == link.router.delivered and not link.packet_reader.expected
            assert link.packet_reader.received > 2 * len(USER)


@both
def test_a_list_that_is_not_plain_is_for_others(core: Any) -> None:
    """Those before it have gone on, and it is of the same batch."""
    odd = stored(publish(b"a", b"2", properties=b"\x23\0\1"))
    with a_link(core) as link:
        data = header(b"one", 2) + stored(publish(b"a", b"1", properties=USER)) + odd
        assert [(link.number, FED)] == link.wait(data)
        link.router.send_outputs()
        assert publish(b"a", b"1") == link.reader.recv(100)
        head = link.packet_reader.step()
        assert (0, b"one\1\0\0\0") == head
        link.packet_reader.expected = 1
        assert (odd[0], odd[2:]) == link.packet_reader.step()


@both
def test_publishes_of_a_client_at_level_5_go_on_at_once(core: Any) -> None:
    """To clients here, to a link whose node reads properties, and into the journal."""
    packets = [publish(b"a", b"1", properties=b""), publish(b"a", b"2", properties=USER)]
    kept: list[bytes] = []
    with a_bench(core) as bench:
        session = bench.publisher.session
        bench.publisher.packet_reader.open(session, "publisher", None, clean=True, level=5)
        bench.subscriber.packet_writer.level = 5
        bench.router.interests.add("#", "there", "there")
        bench.way = ("here", "here", "edge", lambda runs: kept.extend(run.raw for run in runs))
        bench.add_sender("there").has_properties = True
        bench.wait(b"".join(packets))
        bench.sockets.notify_output()
        sent = b"".join(map(stored, packets))
        assert [sent] == kept
        assert b"<publisher>\2\0\0\0" + sent == bench.reader.recv(1000)
        assert b"".join(packets) == bench.subscriber.packet_writer.dequeue()
        odd = publish(b"a", b"2", properties=b"\x23\0\1")
        assert [(bench.number, FED)] == bench.wait(odd)
        assert (0x30, odd[2:]) == bench.publisher.packet_reader.step()


@both
@pytest.mark.parametrize(
    "data",
    [
        header(b"two") + publish(b"a"),
        header(b"one"),
        header(b"one", 0) + publish(b"a"),
        header(b"one") + publish(b"a", qos=1),
        header(b"one") + publish(b"a", flags=8),
        header(b"one") + publish(b"far"),
        publish(b"a"),
    ],
    ids=["unknown", "empty", "none", "qos1", "dup", "elsewhere", "headless"],
)
def test_any_other_is_for_others(core: Any, data: bytes) -> None:
    with a_link(core) as link:
        assert [(link.number, FED)] == link.wait(data)
        assert not link.subscriber.packet_writer.size and not link.router.delivered


@both
def test_several_batches_of_a_read_go_on_wherever_it_ends(core: Any) -> None:
    a, b, c = publish(b"a", b"1"), publish(b"b", b"2"), publish(b"c", b"3")
    data = header(b"one", 2) + a + b + header(b"one", 3) + a + b + c + header(b"one") + c
    with a_link(core) as link:
        link.packet_reader.most = 10_000
        for size in (1, 3, 7, 20, 29, len(data)):
            for at in range(0, len(data), size):
                link.wait(data[at : at + size])
                while (found := link.packet_reader.step()) is not None:
                    if isinstance(found, tuple):
                        link.packet_reader.expected = int.from_bytes(found[1][-4:], "little")
                    else:
                        assert size < len(data)
                        link.router.fan_out(found, None)
                link.router.send_outputs()
            assert a + b + a + b + c + c == link.reader.recv(100)


@both
def test_the_rest_of_a_batch_has_a_header_for_others(core: Any) -> None:
    first, second = publish(b"a", b"1"), publish(b"a", b"2", 1, 1)
    with a_link(core) as link:
        data = header(b"one", 3) + first + second + first
        assert [(link.number, FED)] == link.wait(data)
        assert first == link.subscriber.packet_writer.dequeue()
        assert (0, header(b"one", 2)[2:]) == link.packet_reader.step()
        link.packet_reader.expected = 2
        assert [second, first] == [link.packet_reader.step().raw, link.packet_reader.step().raw]
        assert link.packet_reader.step() is None


@both
def test_a_header_is_known_by_its_count_and_only_in_time(core: Any) -> None:
    with a_link(core) as link:
        link.batch(header(b"two", 2), publish(b"a"), publish(b"a"))
        link.packet_reader.know("client", "there", 1)
        link.packet_reader.is_open = False
        link.packet_reader.know("client", "there", 2)
        link.packet_reader.is_open = True
        assert [(link.number, FED)] == link.wait(header(b"two", 2) + publish(b"a") * 2)


@both
def test_a_link_that_is_closed_for_that_or_has_had_enough_takes_nothing(core: Any) -> None:
    data = header(b"one") + publish(b"a", bytes(100))
    with a_link(core) as link:
        link.packet_reader.is_open = False
        assert [(link.number, FED)] == link.wait(data)
        while link.packet_reader.step() is not None:
            pass
        link.packet_reader.is_open = True
        link.packet_reader.most = 1
        assert link.wait(data) is None
        assert [(link.number, FED)] == link.wait(data)


@both
def test_deliveries_go_to_clients_whatever_the_own_zone_says(core: Any) -> None:
    data = header(b"one") + publish(b"far", b"1")
    with a_link(core) as link:
        answers = [True, False]
        link.packet_reader.may_take = lambda: answers.pop(0)
        link.packet_reader.leave = lambda run, left: link.left.append((run.raw, left))
        assert link.wait(data) is None
        assert publish(b"far", b"1") == link.reader.recv(100)
        assert [(link.number, FED)] == link.wait(data)
        while link.packet_reader.step() is not None:
            pass

        answers.append(True)
        link.target.is_plain = False
        assert [] == link.wait(data)
        assert [(publish(b"far", b"1"), [(link.subscriber.session, range(1))])] == link.left
        assert not link.asked


@both
def test_headers_that_are_forgotten_are_not_known(core: Any) -> None:
    with a_link(core) as link:
        link.packet_reader.forget()
        assert [(link.number, FED)] == link.wait(header(b"one") + publish(b"a"))
