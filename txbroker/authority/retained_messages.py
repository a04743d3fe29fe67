"""
The retained messages of a zone, up to a million.

A retained message is stored as its topic's name and one value of QoS, properties and payload. The
store shares equal values, and keeps a long value in its value file. A `Message` is made per
request, and concurrent requests share it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from struct import Struct
from weakref import WeakSet, WeakValueDictionary

from txbroker.core.retained_tree import RetainedTree
from txbroker.model.stored_value import StoredValue, in_memory
from txbroker.model.topics import matches
from txbroker.mqtt.wire.message import Message
from txbroker.mqtt.wire.message_expiry import with_expiry
from txbroker.mqtt.wire.property_list import property_list, read_list

_LISTED = 0x80
"""Bit of the QoS byte of a stored value whose payload follows a property list."""

_EXPIRES = 0x40
"""Bit of the QoS byte of a stored value that has its `_END` before the property list."""

_END = Struct(">Q")
"""The reading of the node's message clock at which a message expires, in microseconds."""

_SECOND = 1_000_000

FEW_ENDS = 1_000
"""Ends of earlier values that may stay in the heap, beside as many as there are messages."""


def pack(message: Message, now: int = 0) -> bytes:
    """
    Return the stored value: QoS, the end of its expiry interval and its property list if any,
    payload.

    `now` is the reading of the node's message clock when the message arrived.
    """
    if not message.properties:
        return bytes((message.qos,)) + message.payload
    first, end = message.qos | _LISTED, b""
    expiry = message.expiry
    if expiry is not None:
        first, end = first | _EXPIRES, _END.pack(now + expiry * _SECOND)
    listed = property_list(message.properties)
    return b"".join((bytes((first,)), end, listed, message.payload))


def unpack(topic: str, packed: bytes, now: int = 0) -> Message:
    """Return the retained message of a stored value, with what is left of its interval."""
    properties, at, end = b"", 1, end_of(packed)
    if end is not None:
        at += _END.size
    if packed[0] & _LISTED:
        properties, at = read_list(packed, at, len(packed))
    if end is not None:
        properties = with_expiry(properties, (end - now) / _SECOND)
    return Message(topic, packed[at:], packed[0] & 3, True, properties=properties)


def end_of(packed: bytes) -> int | None:
    """Return the reading of the clock at which a stored message expires; None: never."""
    end: int | None = _END.unpack_from(packed, 1)[0] if packed[0] & _EXPIRES else None
    return end


class RetainedMessages:
    """
    The retained messages by topic.

    `size`: the bytes of all topics and payloads. `keep`: returns a value as stored, in memory or,
    if long, in the value file. `now`: the node's message clock, in microseconds. A message whose
    interval has passed is shown with an interval of 0 until `take_expired` removes it.
    """

    def __init__(self) -> None:
        self.size = 0
        self.keep: Callable[[StoredValue], StoredValue] = in_memory
        self.now: Callable[[], int] = lambda: 0
        self._ends: list[tuple[int, bytes]] = []  # a heap; entries of earlier values stay in it
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
        self.retain(message.topic.encode(), pack(message, self.now()))

    def retain(self, name: bytes, packed: StoredValue) -> None:
        """Retain a message in its stored form."""
        kept = self.keep(packed)
        before = self._tree.put(name, kept)
        self._note_end(name, packed)
        packed = kept
        self.size += _size(name, packed)
        if before is not None:
            self.size -= _size(name, before)
            self._shown.pop(name, None)
        for gathering in self._gathered:
            gathering.mark_changed(name)

    def take_expired(self) -> list[str]:
        """Remove the messages whose interval has passed, and return their topics."""
        now, expired = self.now(), []
        while self._ends and self._ends[0][0] <= now:
            end, name = heappop(self._ends)
            if self._is_end(end, name):
                expired.append(name.decode())
                self.remove(expired[-1])
        return expired

    def _note_end(self, name: bytes, packed: StoredValue) -> None:
        # A long value is in the value file: a start must not read all of them. Such a message is
        # noted when it is shown.
        end = end_of(packed) if isinstance(packed, bytes) else None
        if end is None:
            return
        heappush(self._ends, (end, name))
        if len(self._ends) > 2 * len(self._tree) + FEW_ENDS:
            # A topic that is published each second would fill the heap with its earlier values.
            self._ends = [one for one in self._ends if self._is_end(*one)]
            heapify(self._ends)

    def _is_end(self, end: int, name: bytes) -> bool:
        found = self._tree.entry(name)
        return found is not None and end_of(bytes(found[1])) == end

    def remove(self, topic: str) -> None:
        """Remove the topic's message."""
        before = self._tree.remove(topic)
        if before is not None:
            name = topic.encode()
            self.size -= _size(name, before)
            self._shown.pop(name, None)
            for gathering in self._gathered:
                gathering.mark_changed(name)

    def match(self, topic_filter: str) -> Iterator[Message]:
        """Yield the messages that a new subscription to the filter gets."""
        return (self._show(*found) for found in self._tree.find(topic_filter))

    def walk(self, topic_filter: str) -> Iterator[Message | None]:
        """
        Yield the matching messages step by step, each as of its step; None: the step found none.
        """
        return (None if one is None else self._show(*one) for one in self._tree.walk(topic_filter))

    def query(self, topic_filter: str) -> RetainedQuery:
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
            data = bytes(packed)
            message = unpack(name.decode(), data, self.now())
            end = end_of(data)
            if end is None:
                self._shown[name] = message
            elif message.expiry == 0:
                heappush(self._ends, (end, name))
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
                self._refresh_changed()
            yield
        self._refresh_changed()
        self._is_whole = True
        # New topics that the walk had already passed, unless they were removed again.
        late = [self._tree.entry(name) for name in self._late if not self._has(name)]
        for name, packed in filter(None, late):
            self._names.append(name)
            self._packed.append(packed)
            self._count += 1
        self._names.reverse()
        self._packed.reverse()

    def next_batch(self, count: int) -> list[Message]:
        """Return the next messages, `count` at most; each is returned once."""
        taken: list[Message] = []
        while self._names and len(taken) < count:
            name, packed = self._names.pop(), self._packed.pop()
            if packed is not None:
                taken.append(self._show(name, packed))
        self._count -= len(taken)
        return taken

    def mark_changed(self, name: bytes) -> None:
        """Note that the retained message of a topic has changed."""
        if not self._is_whole and matches(self._filter, name.decode()):
            self._changed.add(name)

    # internal

    def _refresh_changed(self) -> None:
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
