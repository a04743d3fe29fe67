"""
The retained messages of a zone, up to a million.

Each is stored as its topic's name and one value of QoS, properties and payload, which the store
shares; a long value stays in the store's value file. A `Message` is made per request, and
concurrent requests share it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from weakref import WeakSet, WeakValueDictionary

from txbroker.core.retained_tree import RetainedTree
from txbroker.model.stored_value import StoredValue, in_memory
from txbroker.model.topics import matches
from txbroker.mqtt.wire.message import Message
from txbroker.mqtt.wire.property_list import property_list, read_list

_LISTED = 0x80
"""Bit of the QoS byte of a stored value whose payload follows a property list."""


def pack(message: Message) -> bytes:
    """Return the stored value of a message: its QoS, its property list if any, and its payload."""
    if not message.properties:
        return bytes((message.qos,)) + message.payload
    listed = property_list(message.properties)
    return b"".join((bytes((message.qos | _LISTED,)), listed, message.payload))


def unpack(topic: str, packed: bytes) -> Message:
    """Return the retained message of a stored value."""
    properties, payload = b"", 1
    if packed[0] & _LISTED:
        properties, payload = read_list(packed, payload, len(packed))
    qos = packed[0] & ~_LISTED
    return Message(topic, packed[payload:], qos, True, properties=properties)


class RetainedMessages:
    """
    The retained messages by topic.

    `size`: the bytes of all topics and payloads. `keep`: returns a value as stored, in memory or,
    if long, in the value file.
    """

    def __init__(self) -> None:
        self.size = 0
        self.keep: Callable[[StoredValue], StoredValue] = in_memory
        self._tree: RetainedTree[StoredValue] = RetainedTree()
        self._shown: WeakValueDictionary[bytes, Message] = WeakValueDictionary()
        self._gathered: WeakSet[RetainedCollection] = WeakSet()

    def __len__(self) -> int:
        return len(self._tree)

    def get(self, topic: str) -> Message | None:
        """Return the message of the topic."""
        found = self._tree.entry(topic.encode())
        return None if found is None else self._show(*found)

    def entry(self, topic: str) -> tuple[bytes, StoredValue] | None:
        """Return the topic's stored name and value."""
        return self._tree.entry(topic.encode())

    def size_of(self, topic: str) -> int | None:
        """Return the bytes of the topic and its payload; None if the topic has no message."""
        found = self._tree.entry(topic.encode())
        return None if found is None else _size(*found)

    def set(self, message: Message) -> None:
        """Retain the message as its topic's last one."""
        self.put(message.topic.encode(), pack(message))

    def put(self, name: bytes, packed: StoredValue) -> None:
        """Retain a message in its stored form."""
        packed = self.keep(packed)
        before = self._tree.put(name, packed)
        self.size += _size(name, packed)
        if before is not None:
            self.size -= _size(name, before)
            self._shown.pop(name, None)
        for gathering in self._gathered:
            gathering.note(name)

    def remove(self, topic: str) -> None:
        """Remove the topic's message."""
        before = self._tree.remove(topic)
        if before is not None:
            name = topic.encode()
            self.size -= _size(name, before)
            self._shown.pop(name, None)
            for gathering in self._gathered:
                gathering.note(name)

    def match(self, topic_filter: str) -> Iterator[Message]:
        """Yield the messages that a new subscription to the filter gets."""
        return (self._show(*found) for found in self._tree.find(topic_filter))

    def walk(self, topic_filter: str) -> Iterator[Message | None]:
        """
        Yield the matching messages step by step, each as of its step; None: the step found none.
        """
        return (None if one is None else self._show(*one) for one in self._tree.walk(topic_filter))

    def ask(self, topic_filter: str) -> RetainedQuery:
        """Return a query for the filter, to walk or to gather."""
        return RetainedQuery(self, topic_filter)

    def gather(self, topic_filter: str) -> RetainedCollection:
        """Return a collection of the matching messages as of one moment, found in many steps."""
        gathering = RetainedCollection(topic_filter, self._tree, self._show)
        self._gathered.add(gathering)
        return gathering

    def within(self, apex: str) -> Iterator[Message]:
        """Yield the messages at or below the apex; `""` yields all."""
        return (self._show(*found) for found in self._tree.find_within(apex))

    def topics(self, apex: str) -> Iterable[str]:
        """Return the topics at or below the apex that have a message."""
        return (topic for topic, _ in self._tree.within(apex))

    def discard_within(self, apex: str) -> None:
        """Remove all messages at or below the apex."""
        for topic in list(self.topics(apex)):
            self.remove(topic)

    def _show(self, name: bytes, packed: StoredValue) -> Message:
        message = self._shown.get(name)
        if message is None:
            message = self._shown[name] = unpack(name.decode(), bytes(packed))
        return message


class RetainedQuery:
    """A query for a filter's retained messages: iterate over it, as `walk`, or `gather` them."""

    def __init__(self, retained: RetainedMessages, topic_filter: str) -> None:
        self._retained = retained
        self._filter = topic_filter

    def __iter__(self) -> Iterator[Message | None]:
        return self._retained.walk(self._filter)

    def gather(self) -> RetainedCollection:
        """Return a collection of the messages as of one future moment."""
        return self._retained.gather(self._filter)


class RetainedCollection:
    """
    The retained messages for a filter as of the moment when the last of its `steps` is done.

    A topic that changes meanwhile is looked up again. Each message costs one place in each of two
    lists.
    """

    def __init__(
        self,
        topic_filter: str,
        tree: RetainedTree[StoredValue],
        show: Callable[[bytes, StoredValue], Message],
    ) -> None:
        self._filter = topic_filter
        self._tree = tree
        self._show = show
        self._names: list[bytes] = []  # in byte order
        self._packed: list[StoredValue | None] = []
        self._changed: set[bytes] = set()
        self._late: set[bytes] = set()
        self._count = 0
        self._is_whole = False

    def __len__(self) -> int:
        """Return the number of messages, or of the rest, when all steps are done."""
        return self._count

    def steps(self) -> Iterator[None]:
        """Find the messages, one step at a time."""
        for found in self._tree.walk(self._filter):
            if found is not None:
                self._names.append(found[0])
                self._packed.append(found[1])
                self._count += 1
            if self._changed:
                self._look_again()
            yield
        self._look_again()
        self._is_whole = True
        # New topics that the walk had already passed, unless they were removed again.
        late = [self._tree.entry(name) for name in self._late if not self._has(name)]
        for name, packed in filter(None, late):
            self._names.append(name)
            self._packed.append(packed)
            self._count += 1
        self._names.reverse()
        self._packed.reverse()

    def take(self, count: int) -> list[Message]:
        """Return the next messages, `count` at most; each is returned once."""
        taken: list[Message] = []
        while self._names and len(taken) < count:
            name, packed = self._names.pop(), self._packed.pop()
            if packed is not None:
                taken.append(self._show(name, packed))
        self._count -= len(taken)
        return taken

    def note(self, name: bytes) -> None:
        """Note that the retained message of a topic has changed."""
        if not self._is_whole and matches(self._filter, name.decode()):
            self._changed.add(name)

    # internal

    def _look_again(self) -> None:
        """Update changed topics that the walk has found; the walk may still find the others."""
        changed, self._changed = self._changed, set()
        for name in changed:
            if not self._has(name):
                self._late.add(name)
                continue
            place = bisect_left(self._names, name)
            entry = self._tree.entry(name)
            packed = None if entry is None else entry[1]
            self._count += (packed is not None) - (self._packed[place] is not None)
            self._packed[place] = packed

    def _has(self, name: bytes) -> bool:
        place = bisect_left(self._names, name)
        return place < len(self._names) and self._names[place] == name


def _size(name: bytes, packed: StoredValue) -> int:
    return len(name) + len(packed) - 1
