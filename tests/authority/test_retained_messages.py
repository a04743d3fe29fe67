"""The retained messages of a zone: what is kept of each, and what is shown of it."""

from __future__ import annotations

import gc

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.property_lists import plain_properties
from txbroker.authority.retained_messages import RetainedMessages, pack
from txbroker.mqtt.wire.message import Message


def retained(topic: str, payload: bytes, qos: int = 1) -> Message:
    return Message(topic, payload, qos, True)


def test_size_is_that_of_topics_and_payloads() -> None:
    """In bytes, however often a message is replaced or removed."""
    messages = RetainedMessages()
    messages.set(retained("ä", b"123"))
    messages.set(retained("ä", b"1"))
    messages.set(retained("b/c", b"12"))
    assert (3, 8, 2) == (messages.size_of("ä"), messages.size, len(messages))

    messages.remove("ä")
    messages.remove("ä")
    assert (None, 5, 1) == (messages.size_of("ä"), messages.size, len(messages))
    messages.discard_within("b")
    assert (0, 0) == (messages.size, len(messages))


@settings(deadline=None)
@given(plain_properties, st.binary(max_size=200), st.integers(0, 2))
def test_message_is_shown_with_its_properties(properties: bytes, payload: bytes, qos: int) -> None:
    """Without any, its value is that of a version which knows of none."""
    messages = RetainedMessages()
    message = Message("a", payload, qos, True, properties=properties)
    messages.retain(b"a", pack(message))

    shown = messages.get("a")
    assert shown is not None
    assert (payload, properties, qos) == (shown.payload, shown.properties, shown.qos)
    if not properties:
        assert bytes((qos,)) + payload == pack(message)


def test_message_is_shared_while_it_is_shown() -> None:
    """Until it is replaced: who has the old one keeps that."""
    messages = RetainedMessages()
    messages.set(retained("a", b"old", 2))
    (first,), second = messages.match("#"), messages.get("a")
    assert first is second
    assert ("a", b"old", 2, True) == (first.topic, first.payload, first.qos, first.retain)

    messages.set(retained("a", b"new"))
    (third,) = messages.within("a")
    assert (b"old", b"new") == (first.payload, third.payload)
    messages.remove("a")
    assert messages.get("a") is None

    del first, second, third
    gc.collect()
    assert not messages._shown


def test_what_is_kept_is_what_was_put() -> None:
    """The store has the same bytes objects: each is in memory once."""
    messages, name, packed = RetainedMessages(), b"some/topic", pack(retained("x", b"payload"))
    messages.retain(name, packed)
    entry = messages.entry("some/topic")

    assert entry is not None
    assert entry[0] is name and entry[1] is packed


texts = st.lists(st.sampled_from(["a", "b", "a!", "", "$x"]), min_size=1, max_size=3)
topics = texts.map("/".join).filter(bool)
filters = st.sampled_from(["#", "+", "+/#", "a/#", "+/b", "a", "a/+", "+/+/a", "$x/#", "/#"])


@given(
    put=st.lists(topics, max_size=12),
    changes=st.lists(st.tuples(st.integers(0, 12), topics, st.booleans()), max_size=8),
    topic_filter=filters,
)
def test_what_is_gathered_is_as_at_its_end(
    put: list[str], changes: list[tuple[int, str, bool]], topic_filter: str
) -> None:
    """Whatever came or went between any two steps, in front of the walk or behind it."""
    messages = RetainedMessages()
    for topic in put:
        messages.set(retained(topic, b"old"))
    gathering = messages.gather(topic_filter)
    step = 0
    for step, _ in enumerate(gathering.steps()):
        for number, (at, topic, is_new) in enumerate(changes):
            if at == step:
                if is_new:
                    messages.set(retained(topic, b"%d" % number))
                else:
                    messages.remove(topic)
    expected = sorted((one.topic, one.payload) for one in messages.match(topic_filter))
    count = len(gathering)
    messages.discard_within("")
    messages.set(retained("a", b"later"))
    found = [*gathering.next_batch(2), *gathering.next_batch(1_000)]

    assert (len(expected), 0) == (count, len(gathering))
    assert expected == sorted((one.topic, one.payload) for one in found)


def test_what_is_gathered_costs_little() -> None:
    """Nothing is made of a message before its turn, and nothing is kept of it behind that."""
    messages = RetainedMessages()
    for number in range(1_000):
        messages.set(retained(f"t/{number}", b"x"))
    gathering = messages.gather("#")
    list(gathering.steps())
    assert 0 == len(messages._shown)
    first = gathering.next_batch(10)
    assert 10 == len(messages._shown) == len(first)
    del gathering
    gc.collect()
    assert not messages._gathered
