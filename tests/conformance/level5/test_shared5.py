"""Shared subscriptions (section 4.8.2)."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.conformance.harness import unique
from tests.conformance.level5_statements import level5_statement
from tests.support import wire, wire5
from tests.support.rawclient5 import RawClient5
from tests.support.wire5 import RECEIVE_MAXIMUM, SUBSCRIPTION_ID

from .harness import Bench5

AS_PUBLISHED = 0x08


def shared(bench: Bench5, rest: str = "x", group: str = "g") -> str:
    """The whole filter of a group."""
    return f"$share/{group}/{bench.topic(rest)}"


def all_of(members: list[RawClient5], count: int) -> list[list[bytes]]:
    """So many messages that members get in all, each acknowledged."""
    found: list[list[bytes]] = [[] for _ in members]
    while sum(map(len, found)) < count:
        for payloads, member in zip(found, members, strict=True):
            while member.has_input(0.02):
                message = member.expect_publish()
                payloads.append(message.payload)
                member.acknowledge(message)
    return found


@level5_statement("MQTT-4.8.2-3")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_message_goes_to_one_member(brokers5: Bench5, qos: int) -> None:
    """In turns, and in order to each."""
    members = [brokers5.subscriber((shared(brokers5), 2)) for _ in range(3)]
    pub = brokers5.publisher()
    for number in range(30):
        pub.publish(brokers5.topic(), b"%02d" % number, qos=qos)
    found = all_of(members, 30)
    assert sorted(payload for one in found for payload in one) == [b"%02d" % n for n in range(30)]
    for one in found:
        assert len(one) >= 5 and one == sorted(one)


@level5_statement("MQTT-4.8.2-3")
def test_qos_is_the_members_own(brokers5: Bench5) -> None:
    low = brokers5.subscriber((shared(brokers5, group="low"), 0))
    high = brokers5.subscriber((shared(brokers5, group="high"), 1))
    brokers5.publisher().publish(brokers5.topic(), b"1", qos=2)
    assert low.expect_publish(payload=b"1").qos == 0
    message = high.expect_publish(payload=b"1")
    assert message.qos == 1
    high.acknowledge(message)


def test_groups_and_plain_subscriptions_each_get_a_copy(brokers5: Bench5) -> None:
    clients = [
        brokers5.subscriber((shared(brokers5, group="a"), 1)),
        brokers5.subscriber((shared(brokers5, group="b"), 1)),
        brokers5.subscriber((brokers5.topic(), 1)),
    ]
    brokers5.publisher().publish(brokers5.topic(), b"1", qos=1)
    for client in clients:
        client.acknowledge(client.expect_publish(payload=b"1"))


def test_a_client_with_both_gets_both(brokers5: Bench5) -> None:
    client = brokers5.subscriber((shared(brokers5), 1), (brokers5.topic(), 1))
    brokers5.publisher().publish(brokers5.topic(), b"1", qos=1)
    for message in client.take(2):
        assert message.payload == b"1"
        client.acknowledge(message)


def test_no_retained_message_comes(brokers5: Bench5) -> None:
    pub = brokers5.publisher()
    pub.publish(brokers5.topic(), b"old", qos=1, retain=True)
    member = brokers5.subscriber((shared(brokers5), 1))
    pub.publish(brokers5.topic(), b"new", qos=1)
    member.acknowledge(member.expect_publish(payload=b"new"))
    pub.publish(brokers5.topic(), b"", qos=1, retain=True)


def test_identifier_and_retain_as_published(brokers5: Bench5) -> None:
    member = brokers5.client()
    member.subscribe((shared(brokers5), 1 | AS_PUBLISHED), properties=[(SUBSCRIPTION_ID, 7)])
    pub = brokers5.publisher()
    for qos in (0, 1):
        pub.publish(brokers5.topic(), b"1", qos=qos, retain=True)
        message = member.expect_publish(payload=b"1", retain=True)
        assert (SUBSCRIPTION_ID, 7) in message.properties
        member.acknowledge(message)
    pub.publish(brokers5.topic(), b"", qos=1, retain=True)


def test_a_message_of_a_member_that_leaves_goes_to_another(brokers5: Bench5) -> None:
    """What it has not acknowledged, with DUP."""
    first = brokers5.subscriber((shared(brokers5), 1))
    pub = brokers5.publisher()
    pub.publish(brokers5.topic(), b"1", qos=1)
    first.expect_publish(payload=b"1")
    second = brokers5.subscriber((shared(brokers5), 1))
    first.close()
    message = second.expect_publish(payload=b"1")
    assert message.dup
    second.acknowledge(message)
    brokers5.silence(second, pub)


@level5_statement("MQTT-4.8.2-5")
def test_a_sent_message_of_qos_2_goes_to_no_other(brokers5: Bench5) -> None:
    first = brokers5.subscriber((shared(brokers5), 2))
    pub = brokers5.publisher()
    pub.publish(brokers5.topic(), b"1", qos=2)
    first.expect_publish(payload=b"1")
    second = brokers5.subscriber((shared(brokers5), 2))
    first.close()
    pub.publish(brokers5.topic(), b"2", qos=2)
    second.acknowledge(second.expect_publish(payload=b"2"))
    brokers5.silence(second, pub)


@level5_statement("MQTT-4.8.2-4")
def test_qos_2_is_completed_with_the_client_that_has_it(brokers5: Bench5) -> None:
    name = unique()
    first = brokers5.client(name, expiry=60)
    first.subscribe((shared(brokers5), 2))
    pub = brokers5.publisher()
    pub.publish(brokers5.topic(), b"1", qos=2)
    first.expect_publish(payload=b"1")
    first.close()
    second = brokers5.subscriber((shared(brokers5), 2))
    first = brokers5.resume(name, expiry=60)
    message = first.expect_publish(payload=b"1")
    assert message.dup
    first.acknowledge(message)
    brokers5.silence(second, pub)


def test_a_durable_group_keeps_messages(brokers5: Bench5) -> None:
    """While all members are away; the first one that comes back gets them."""
    name = unique()
    member = brokers5.client(name, expiry=60)
    member.subscribe((shared(brokers5), 1))
    member.disconnect()
    pub = brokers5.publisher()
    for number in range(5):
        pub.publish(brokers5.topic(), b"%d" % number, qos=1)
    member = brokers5.resume(name, expiry=60)
    found = all_of([member], 5)
    assert found == [[b"%d" % number for number in range(5)]]
    member.unsubscribe(shared(brokers5))


def test_a_group_without_members_has_ended(brokers5: Bench5) -> None:
    pub = brokers5.publisher()
    for leave in (RawClient5.close, RawClient5.disconnect):
        member = brokers5.subscriber((shared(brokers5), 1))
        leave(member)
        pub.publish(brokers5.topic(), b"lost", qos=1)
        member = brokers5.subscriber((shared(brokers5), 1))
        pub.publish(brokers5.topic(), b"1", qos=1)
        member.acknowledge(member.expect_publish(payload=b"1"))
        assert member.unsubscribe(shared(brokers5)).codes == (0,)
        assert member.unsubscribe(shared(brokers5)).codes == (0x11,)


@level5_statement("MQTT-3.3.4-9")
def test_a_members_receive_maximum_holds(brokers5: Bench5) -> None:
    slow = brokers5.client(properties=[(RECEIVE_MAXIMUM, 1)])
    slow.subscribe((shared(brokers5), 1))
    quick = brokers5.subscriber((shared(brokers5), 1))
    pub = brokers5.publisher()
    for number in range(10):
        pub.publish(brokers5.topic(), b"%d" % number, qos=1)
    held = slow.expect_publish()
    found = all_of([quick], 9)
    assert len(found[0]) == 9 and not slow.has_input(0)
    slow.acknowledge(held)


def test_members_of_both_levels(brokers5: Bench5) -> None:
    old = brokers5.older()
    old.subscribe((shared(brokers5), 1))
    new = brokers5.subscriber((shared(brokers5), 1))
    pub = brokers5.publisher()
    payloads: Counter[bytes] = Counter()
    for number in range(10):
        pub.publish(brokers5.topic(), b"%d" % number, qos=1)
    while payloads.total() < 10:
        while new.has_input(0.02):
            payloads[new.take(1)[0].payload] += 1
        while old.has_input(0.02):
            payloads[old.take(1)[0].payload] += 1
    assert payloads == Counter(b"%d" % number for number in range(10))


@level5_statement("MQTT-4.8.2-6")
@pytest.mark.parametrize("qos", [1, 2])
def test_a_refused_message_goes_to_no_other(brokers5: Bench5, qos: int) -> None:
    first = brokers5.subscriber((shared(brokers5), 2))
    pub = brokers5.publisher()
    pub.publish(brokers5.topic(), b"1", qos=qos)
    message = first.expect_publish(payload=b"1")
    second = brokers5.subscriber((shared(brokers5), 2))
    first.send(wire5.ack(wire5.PUBREC if qos == 2 else wire5.PUBACK, message.packet_id, 0x83))
    first.ping()
    first.close()
    brokers5.silence(second, pub)


def test_an_illegal_group_of_an_older_client_is_refused(broker5: Bench5) -> None:
    """SUBACK 0x80; a client of level 5 is disconnected."""
    client = broker5.older()
    for text in ("$share/g", "$share//a", "$share/+/a", "$share/g/"):
        packet_id = client.next_id()
        client.send(wire.subscribe(packet_id, (text, 1)))
        assert client.wait_for(wire.SUBACK, packet_id).codes == [0x80]


def test_a_client_in_two_groups_gets_a_copy_of_each(brokers5: Bench5) -> None:
    """Two names, and one name with two filters: each is a subscription of its own."""
    filters = [
        shared(brokers5, group="one"),
        shared(brokers5, group="two"),
        shared(brokers5, "x/#", group="one"),
    ]
    both = brokers5.subscriber(*[(text, qos) for text, qos in zip(filters, (0, 1, 2), strict=True)])
    other = brokers5.subscriber((filters[0], 0))
    pub = brokers5.publisher()
    for number in range(10):
        pub.publish(brokers5.topic(), b"%d" % number, qos=2)
    levels: Counter[int] = Counter()
    own: Counter[bytes] = Counter()
    while levels.total() < 30:
        for member in (both, other):
            while member.has_input(0.02):
                message = member.expect_publish()
                levels[message.qos] += 1
                own[message.payload] += 1
                member.acknowledge(message)
    assert levels == Counter({0: 10, 1: 10, 2: 10}) and set(own.values()) == {3}
    both.unsubscribe(filters[1])
    pub.publish(brokers5.topic(), b"last", qos=2)
    assert sorted(map(len, all_of([both, other], 2)))[1] >= 1
    brokers5.silence(both, pub)


@pytest.mark.parametrize("is_long", ["group", "filter"])
def test_a_filter_of_the_greatest_length(brokers5: Bench5, is_long: str) -> None:
    """A group of a session that is kept, with messages of QoS 1 and 2."""
    fill = "y" * (65_535 - len(shared(brokers5, "x", "")))
    group, rest = (fill, "x") if is_long == "group" else ("g", fill)
    text = shared(brokers5, rest, group)
    assert len(text) == 65_535
    name = unique()
    member = brokers5.client(name, expiry=60)
    member.subscribe((text, 2))
    pub = brokers5.publisher()
    for number in range(2):
        pub.publish(brokers5.topic(rest), b"%d" % number, qos=number % 2 + 1)
    assert member.expect_publish(payload=b"0").topic == brokers5.topic(rest)
    member.acknowledge(member.expect_publish(payload=b"1"))
    member.close()
    for number in range(2, 6):
        pub.publish(brokers5.topic(rest), b"%d" % number, qos=number % 2 + 1)
    member = brokers5.resume(name, expiry=60)
    found = [message.payload for message in member.take(5)]
    assert sorted(found) == [b"0", b"2", b"3", b"4", b"5"]
    member.unsubscribe(text)
