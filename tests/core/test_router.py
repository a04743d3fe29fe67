"""Where publishes go."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from tests.core.cores import (
    COMPILED,
    Client,
    Session,
    a_run,
    both,
    needs_compiled,
    pairs,
    publish,
)
from txbroker.core.reference.packet_writer import MOST, QUEUE_MESSAGES


def raws(parts: list[tuple[Any, Any]]) -> list[tuple[Any, bytes]]:
    return [(value, part.raw) for value, part in parts]


@both
def test_a_run_is_split_by_route(core: Any) -> None:
    router = core.Router(lambda: None)
    home, kitchen = Session("home"), Session("kitchen")
    router.routes.set("", home)
    one, two, three, four = packets = [
        publish(topic) for topic in (b"a", b"home/kitchen", b"b", b"home/kitchen/c")
    ]
    run = a_run(core, *packets)

    assert [(home, run)] == router.split(run)
    router.routes.set("home/kitchen", kitchen)
    assert [(home, one + three), (kitchen, two + four)] == raws(router.split(run))
    router.routes.remove("")
    assert [(None, one + three), (kitchen, two + four)] == raws(router.split(run))
    router.routes.remove("home/kitchen")
    router.routes.remove("nobody")
    assert [(None, run)] == router.split(run)


@both
def test_messages_at_the_beginning_get_a_verdict(core: Any) -> None:
    router = core.Router(lambda: None)
    here, away = Session("here"), Session("away")
    router.bounds.set("a", here)
    router.bounds.set("a/b", away)
    run = a_run(core, publish(b"a"), publish(b"a/c"), publish(b"a/b"), publish(b"a"))

    assert (2, 0) == (router.accepted_count(run, here), router.accepted_count(run, away))
    assert 0 == router.accepted_count(run, None)
    router.bounds.remove("a/b")
    assert 4 == router.accepted_count(run, here)


@both
def test_edges_get_what_they_want(core: Any) -> None:
    router = core.Router(lambda: None)
    one, two = Session("one"), Session("two")
    router.interests.add("a/#", "2", two)
    router.interests.add("+", "1", one)
    router.interests.add("a", "1", one)
    a, b, ab, cd = packets = [publish(topic) for topic in (b"a", b"b", b"a/b", b"c/d")]
    run = a_run(core, *packets)

    assert [((one,), a + b), ((two,), a + ab)] == raws(router.receivers(run))
    router.interests.remove("a/#", "2")
    assert [((one,), a + b)] == raws(router.receivers(run))
    router.interests.add("#", "0", two)
    router.interests.remove("+", "1")
    router.interests.remove("a", "1")
    assert [((two,), run)] == router.receivers(run)
    router.interests.remove("#", "0")
    assert [] == router.receivers(run)


@both
def test_clients_get_what_they_subscribed_to(core: Any) -> None:
    router = core.Router(lambda: None)
    one, two = Client(core, router, "one"), Client(core, router, "two")
    one.subscribe("a/#")
    two.subscribe("+/b")
    packets = [publish(topic, b"p") for topic in (b"a", b"a/b", b"a/b", b"c/b", b"d")]

    assert [] == router.fan_out(a_run(core, *packets), None)

    assert b"".join(packets[:3]) == one.packet_writer.dequeue()
    assert b"".join(packets[1:4]) == two.packet_writer.dequeue()
    assert 6 == router.delivered
    assert [one.packet_writer, two.packet_writer] == router.send_outputs()


@both
def test_overlapping_subscriptions_give_one_message_at_the_highest_qos(core: Any) -> None:
    router = core.Router(lambda: None)
    client = Client(core, router)
    client.packet_writer.open_window(10, 10**6)
    client.subscribe("a", 1, "x")
    client.subscribe("#", 2, "y")
    client.subscribe("+", 0, "z")
    run = a_run(
        core, publish(b"a", b"1", 2, 1), publish(b"a", b"2", 1, 2), publish(b"b", b"", 1, 3)
    )

    assert [] == router.fan_out(run, "part")

    expected = publish(b"a", b"1", 2, 1) + publish(b"a", b"2", 1, 2) + publish(b"b", b"", 1, 3)
    assert (expected, 3) == (client.packet_writer.dequeue(), router.delivered)


@both
def test_qos_12_reaches_a_qos0_subscriber_without_packet_id(core: Any) -> None:
    router = core.Router(lambda: None)
    client = Client(core, router)
    client.subscribe("#")
    payload = b"p" * 123  # with a packet id, its length takes one byte more

    assert [] == router.fan_out(a_run(core, publish(b"ab", payload, 1, 9)), "part")
    assert publish(b"ab", payload) == client.packet_writer.dequeue()


@both
def test_sessions_that_get_nothing_straight_are_told(core: Any) -> None:
    router = core.Router(lambda: None)
    names = "plain", "waits", "is behind", "has no window", "has a part that is not plain"
    plain, waits, behind, lasting, partly = clients = [Client(core, router, n) for n in names]
    for client in clients:
        client.subscribe("#", 1)
    waits.subscribe("+", 2, "other").is_plain = False
    waits.subscribe("a/b", 0, "third")
    behind.packet_writer.is_direct = False
    for client in (plain, waits, behind, partly):
        client.packet_writer.open_window(10, 10**6)
    partly.subscribe("a", 0, "partly").is_plain = False
    run = a_run(core, publish(b"a", b"", 1, 1), publish(b"a/b", b"", 1, 2))

    left = pairs(router.fan_out(run, "part"))

    sessions = [client.session for client in (waits, behind, lasting, partly)]
    assert sessions == [one for one, index in left if index == 0]
    # Nothing overtakes what a session may have to read from the journal.
    assert sessions == [one for one, index in left if index == 1]
    assert 2 * 5 - len(left) == router.delivered


@both
def test_a_client_whose_queue_is_full_gets_nothing_straight(core: Any) -> None:
    router = core.Router(lambda: None)
    client = Client(core, router)
    client.packet_writer.open_window(1, 10**6)
    client.subscribe("#", 1)
    run = a_run(core, *[publish(b"a", b"", 1, n + 1) for n in range(QUEUE_MESSAGES + 3)])
    run.first = 100

    left = pairs(router.fan_out(run, "part"))

    assert [(client.session, n + QUEUE_MESSAGES + 1) for n in range(2)] == left
    assert (False, QUEUE_MESSAGES) == (client.packet_writer.is_direct, client.packet_writer.waiting)
    assert {"part": 101} == client.packet_writer.first_queued()
    assert QUEUE_MESSAGES + 1 == router.delivered


@needs_compiled
@pytest.mark.parametrize("qos", [0, 1])
def test_a_crowd_that_gets_nothing_straight_is_told_of_a_run_at_once(qos: int) -> None:
    """A hundred messages for 9,000 groups were 900,000 pairs, which took a third of a second."""
    router = COMPILED.Router(lambda: None)
    crowd = [Client(COMPILED, router, f"{number}") for number in range(3)]
    for client in crowd:
        client.subscribe("a/#", 1)
        client.packet_writer.is_direct = False
    run = a_run(COMPILED, *[publish(b"a/%d" % n, b"", qos, n + 1) for n in range(5)])

    assert [(client.session, range(5)) for client in crowd] == router.fan_out(run, "part")


@both
def test_each_session_is_told_of_its_own_messages(core: Any) -> None:
    router = core.Router(lambda: None)
    names = "some", "all", "none"
    some, every, none = clients = [Client(core, router, name) for name in names]
    for client in clients:
        client.packet_writer.open_window(10, 10**6)
    some.subscribe("a", 1)
    every.subscribe("#", 1).is_plain = False
    none.subscribe("#", 1)
    run = a_run(core, *[publish(b"%c" % topic, b"", 1, n) for n, topic in enumerate(b"abba", 1)])
    some.packet_writer.is_direct = False

    left = pairs(router.fan_out(run, "part"))

    assert [0, 3] == [index for one, index in left if one is some.session]
    assert [0, 1, 2, 3] == [index for one, index in left if one is every.session]
    assert (6, 4) == (len(left), router.delivered)


@both
def test_a_session_that_reads_a_part_is_passed_by(core: Any) -> None:
    """It reads in its turn what is of QoS 1 or 2 there; all else concerns it."""
    router = core.Router(lambda: None)
    reader, other = Client(core, router, "reader"), Client(core, router, "other")
    for client in (reader, other):
        client.subscribe("#", 1)
        client.packet_writer.is_direct = False
    clients = [reader.session, other.session]
    part, another = "part", "another"
    reader.packet_writer.reads = part
    runs = [a_run(core, publish(b"a", b"", qos)) for qos in (0, 1)]

    assert [other.session] == [session for session, _ in router.fan_out(runs[1], part)]
    assert [other.session] == [target.session for target in router.targets_of("a", part)]
    for its in (another, None):
        assert clients == [target.session for target in router.targets_of("a", its)]
    for run, its in ((runs[1], another), (runs[0], part), (runs[0], None)):
        assert clients == [one for one, _ in router.fan_out(run, its)]
    reader.packet_writer.reads = None
    assert 2 == len(router.fan_out(runs[1], part))


@both
def test_a_slow_client_loses_qos0_and_nobody_else_does(core: Any) -> None:
    router = core.Router(lambda: None)
    slow, other, shut = (Client(core, router, name) for name in ("slow", "other", "shut"))
    for client in (slow, other, shut):
        client.subscribe("#")
    slow.packet_writer.send(bytes(MOST - 25))
    shut.packet_writer.is_shut = True
    packets = [publish(b"a", bytes(8)), publish(b"b", bytes(8)), publish(b"c", bytes(8))]

    assert [] == router.fan_out(a_run(core, *packets), None)

    assert bytes(MOST - 25) + b"".join(packets[:2]) == slow.packet_writer.dequeue()
    assert (b"".join(packets), b"") == (other.packet_writer.dequeue(), shut.packet_writer.dequeue())
    assert (1, 0, 3) == (
        slow.packet_writer.dropped,
        other.packet_writer.dropped,
        shut.packet_writer.dropped,
    )


@both
def test_parts_of_a_run_go_out_as_they_came(core: Any) -> None:
    router = core.Router(lambda: None)
    client = Client(core, router)
    client.subscribe("a/#")
    packets = [publish(b"a/%d" % (n % 7) if n % 3 else b"b", b"%d" % n) for n in range(50)]
    run = a_run(core, *packets)
    chosen = [3, 4, 5, 7, 1, 2, 49, 48]

    assert [] == router.fan_out(run.select(chosen), None)

    assert b"".join(packets[n] for n in chosen if n % 3) == client.packet_writer.dequeue()


@both
@pytest.mark.parametrize("limit", [0, 1, 10, 100_000])
def test_answers_follow_every_change_whatever_is_remembered(core: Any, limit: int) -> None:
    router = core.Router(lambda: None, cache_limit=limit)
    client, peer = Client(core, router), Session("peer")
    packets = [publish(b"a/%d" % (n % 20)) for n in range(40)]
    run = a_run(core, *packets)
    for round_ in range(6):
        is_on = round_ % 2 == 1
        if is_on:
            client.subscribe("a/+")
            router.interests.add("a/+", "peer", peer)
            router.routes.set("a", peer)
            router.bounds.set("a", peer)
        elif round_:
            router.targets.remove("a/+", client.session)
            router.interests.remove("a/+", "peer")
            router.routes.remove("a")
            router.bounds.remove("a")
        for _ in range(2):
            assert [] == router.fan_out(run, None)
            assert (b"".join(packets) if is_on else b"") == client.packet_writer.dequeue()
            assert ([((peer,), run)] if is_on else []) == router.receivers(run)
            assert [(peer if is_on else None, run)] == router.split(run)
            assert (40 if is_on else 0) == router.accepted_count(run, peer)
    router.set_cache_limit(5)
    assert [((peer,), run)] == router.receivers(run)


@both
def test_qos_and_plainness_of_a_target_count_at_once(core: Any) -> None:
    router = core.Router(lambda: None)
    client = Client(core, router)
    client.packet_writer.open_window(10, 10**6)
    target = client.subscribe("#", 1)
    run = a_run(core, publish(b"a", b"", 1, 1))
    router.fan_out(run, "part")
    target.qos = 0
    router.fan_out(run, "part")

    assert publish(b"a", b"", 1, 1) + publish(b"a") == client.packet_writer.dequeue()
    target.is_plain = False
    assert [(client.session, range(1))] == router.fan_out(run, "part")


@both
def test_parts_of_a_run_know_where_they_lie(core: Any) -> None:
    run = a_run(core, *[publish(b"t%d" % n, b"p%d" % n, 1, n + 1) for n in range(5)])
    assert 0 == run.offset(3)
    assert run.select([1]).offsets is None
    run.first, run.clients, run.places, run.edge = 10, ("x", "y"), [0, 1, 0, 1, 1], "edge"
    part = run.select([3, 0, 4]).select([0, 2])

    assert [13, 14] == list(part.offsets)
    assert (["t3", "t4"], [4, 5], [1, 1]) == (part.topics(), part.packet_ids, list(part.places))
    message = part.message(1)
    assert ("t4", b"p4", 1, False) == (
        message.topic,
        message.payload,
        message.qos,
        message.retain,
    )
    assert ("y", "edge") == (message.client_id, message.edge)
    assert part.raw == publish(b"t3", b"p3", 1, 4) + publish(b"t4", b"p4", 1, 5)
    with pytest.raises(IndexError):
        run.message(5)
    with pytest.raises(IndexError):
        run.select([5])


@both
def test_messages_that_follow_one_another_need_no_list_of_offsets(core: Any) -> None:
    """A run that is cut for members of a group has one range of places still."""
    run = a_run(core, *[publish(b"t", b"", 1, n + 1) for n in range(5)])
    run.first = 10

    parts = [*run.cut(2), run.select([1, 2, 3])]
    assert [(10, None), (12, None), (11, None)] == [(part.first, part.offsets) for part in parts]
    assert [[(10, 2)], [(12, 3)], [(11, 3)]] == [part.ranges() for part in parts]
    for chosen in ([0, 2, 1, 3], [3, 2], [1, 3]):
        part = run.select(chosen)
        assert [10 + index for index in chosen] == list(part.offsets)


@both
def test_a_run_can_be_made_of_entries(core: Any) -> None:
    run = a_run(core, *[publish(b"t%d" % n, b"p%d" % n, 1, n + 1) for n in range(5)])
    again = core.Run(run.data, run.entries[1:3], clients=("c",), places=[0, 0], edge="e", serial=7)

    assert (run.select([1, 2]).raw, 2, 7, "e") == (again.raw, again.count, again.serial, again.edge)


@needs_compiled
def test_a_run_is_made_of_good_entries_only() -> None:
    run = a_run(COMPILED, publish(b"abc", b"def"))
    good = run.entries[0]
    for field, value in (
        ("start", -1),
        ("topic", 0),
        ("topic_end", 2),
        ("payload", 3),
        ("end", 11),
        ("end", 2**40),
        ("qos", 3),
        ("packet_id", 65_536),
    ):
        with pytest.raises((ValueError, OverflowError)):
            COMPILED.Run(run.data, [good._replace(**{field: value})], clients=("",))
    with pytest.raises(ValueError):
        COMPILED.Run(run.data, [], clients=("",))


@both
def test_a_thousand_filters_and_topics_agree_with_each_other(core: Any) -> None:
    router = core.Router(lambda: None)
    clients = [Client(core, router, str(n)) for n in range(10)]
    for number in range(1000):
        clients[number % 10].subscribe(f"site/{number}/+", 0, number)
    packets = [publish(b"site/%d/x%d" % (n % 1000, n)) for n in range(3000)]

    assert [] == router.fan_out(a_run(core, *packets), None)

    for number, client in enumerate(clients):
        assert b"".join(packets[number::10]) == client.packet_writer.dequeue()


@both
def test_whoever_left_is_forgotten(core: Any) -> None:
    """Nothing keeps it, whatever was remembered of it."""
    router = core.Router(lambda: None)
    client = Client(core, router)
    client.packet_writer.connection = client.session
    client.subscribe("#", 1)
    client.packet_writer.open_window(1, 10**6)
    run = a_run(core, publish(b"a", b"", 1, 1), publish(b"a", b"", 1, 2))
    router.fan_out(run, "part")
    session = weakref.ref(client.session)
    router.targets.remove("#", client.session)
    router.send_outputs()
    router.fan_out(run, "part")

    del client
    gc.collect()

    assert session() is None


def passing(core: Any) -> tuple[Any, Client, Any]:
    """An exchange in which topics below `own` go from here to here, and its client."""
    router = core.Router(lambda: None)
    client = Client(core, router)
    client.subscribe("#")
    for apex, value in (("", "other"), ("own", "here")):
        router.routes.set(apex, value)
        router.bounds.set(apex, value)
    router.interests.add("#", "edge", "edge")
    return router, client, a_run(core, publish(b"own/a", b"1"), publish(b"own/b", b"2"))


@both
def test_a_run_that_is_clear_is_passed_on(core: Any) -> None:
    router, client, run = passing(core)
    assert [] == router.forward(run, "here", "here", "edge")
    assert run.raw == client.packet_writer.dequeue()


@both
@pytest.mark.parametrize(
    "asked", [("other", "here", "edge"), ("here", "other", "edge"), ("here", "here", "another")]
)
def test_a_run_that_is_not_clear_is_not_touched(core: Any, asked: tuple[str, str, str]) -> None:
    router, client, run = passing(core)
    assert router.forward(run, *asked) is None
    assert not client.packet_writer.size


@both
def test_one_message_that_goes_elsewhere_holds_all_back(core: Any) -> None:
    router, client, _ = passing(core)
    run = a_run(core, publish(b"own/a", b"1"), publish(b"x", b"2"))
    assert router.forward(run, "here", "here", "edge") is None
    router.interests.add("own/b", "far", "far")
    run = a_run(core, publish(b"own/a", b"1"), publish(b"own/b", b"2"))
    assert router.forward(run, "here", "here", "edge") is None
    assert not client.packet_writer.size


@both
def test_forgetting_is_counted(core: Any) -> None:
    """What is kept of topics goes when it is too much, and not before."""
    router = core.Router(lambda: None, 3)
    for number in range(9):
        router.interests.add(f"t/{number}", "1", Session("one"))
    few = a_run(core, publish(b"a"), publish(b"b"))
    many = a_run(core, *[publish(b"t/%d" % number) for number in range(9)])

    router.receivers(few)
    router.receivers(few)
    assert 0 == router.forgotten
    router.receivers(many)
    router.receivers(few)
    assert router.forgotten


@both
def test_a_run_belongs_where_all_of_it_does(core: Any) -> None:
    router, _, run = passing(core)
    assert router.belongs(run, "here", "here")
    assert not router.belongs(run, "other", "here")
    assert not router.belongs(run, "here", "other")
    beyond = a_run(core, publish(b"own/a", b"1", 1, 1), publish(b"x", b"2", 1, 2))
    assert not router.belongs(beyond, "here", "here")


@both
def test_the_only_edge_that_gets_anything(core: Any) -> None:
    router = core.Router(lambda: None)
    one, two = (a_run(core, publish(topic), publish(b"all")) for topic in (b"a", b"b"))
    assert router.sole_receiver([one, two]) is None
    router.interests.add("#", "1", "first")
    assert "first" == router.sole_receiver([one, two])
    router.interests.add("b", "2", "second")
    assert "first" == router.sole_receiver([one])
    assert router.sole_receiver([one, two]) is None
    router.interests.remove("#", "1")
    assert router.sole_receiver([two]) is None


@both
def test_runs_are_fanned_out_up_to_one_of_which_something_is_left(core: Any) -> None:
    router = core.Router(lambda: None)
    client = Client(core, router)
    client.packet_writer.open_window(10, 10**6)
    client.subscribe("#", 1)
    runs = [a_run(core, publish(b"a", b"%d" % one, 1, one)) for one in (1, 2, 3)]

    assert (3, []) == router.fan_out_some(runs, 0, "part")
    assert b"".join(run.raw for run in runs) == client.packet_writer.dequeue()
    client.packet_writer.is_direct = False
    assert (2, [(client.session, range(1))]) == router.fan_out_some(runs, 1, "part")


@both
def test_clients_are_told_that_their_runs_are_safe(core: Any) -> None:
    router = core.Router(lambda: None)
    one, two = Client(core, router), Client(core, router)
    for client in (one, two):
        assert client.step(publish(b"a", b"", 1, 1) + publish(b"a", b"", 2, 2)) is None
    two.flows.hold(1)

    assert [(two.packet_reader.qos12, [1])] == router.answer(
        [one.packet_reader.qos12, two.packet_reader.qos12]
    )
    assert b"\x40\x02\x00\x01\x50\x02\x00\x02" == one.packet_writer.dequeue()
    assert b"\x50\x02\x00\x02" == two.packet_writer.dequeue()
