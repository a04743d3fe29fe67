"""
The retained messages of a zone, of which there may be a million.

Each is its topic's name and one value, QoS and payload, which the store has, too; a long value lies
where the store keeps such. A `Message` is made for whoever asks, and shared by those who ask at the
same time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from weakref import WeakSet, WeakValueDictionary

from txbroker.core.retained_tree import RetainedTree
from txbroker.model.stored_value import StoredValue, in_memory
from txbroker.model.topics import matches
from txbroker.mqtt.wire.message import Message


def pack(message: Message) -> bytes:
    """What is kept of a message beside its topic."""
    return bytes((message.qos,)) + message.payload


class RetainedMessages:
    """The messages by topic; `size`: the bytes of topics and payloads; `keep`: where they are."""

    def __init__(self) -> None:
        self.size = 0
        self.keep: Callable[[StoredValue], StoredValue] = in_memory
        self._tree: RetainedTree[StoredValue] = RetainedTree()
        self._shown: WeakValueDictionary[bytes, Message] = WeakValueDictionary()
        self._gathered: WeakSet[RetainedCollection] = WeakSet()

    def __len__(self) -> int:
        return len(self._tree)

    def get(self, topic: str) -> Message | None:
        """The message of the topic."""
        found = self._tree.entry(topic.encode())
        return None if found is None else self._show(*found)

    def entry(self, topic: str) -> tuple[bytes, StoredValue] | None:
        """The topic's name and the packed message, as they are kept."""
        return self._tree.entry(topic.encode())

    def size_of(self, topic: str) -> int | None:
        """Bytes of the topic and its payload; None where it has no message."""
        found = self._tree.entry(topic.encode())
        return None if found is None else _size(*found)

    def set(self, message: Message) -> None:
        """The message is its topic's last one."""
        self.put(message.topic.encode(), pack(message))

    def put(self, name: bytes, packed: StoredValue) -> None:
        """The same, packed."""
        packed = self.keep(packed)
        before = self._tree.put(name, packed)
        self.size += _size(name, packed)
        if before is not None:
            self.size -= _size(name, before)
            self._shown.pop(name, None)
        for gathering in self._gathered:
            gathering.note(name)

    def remove(self, topic: str) -> None:
        """The topic has no message."""
        before = self._tree.remove(topic)
        if before is not None:
            name = topic.encode()
            self.size -= _size(name, before)
            self._shown.pop(name, None)
            for gathering in self._gathered:
                gathering.note(name)

    def match(self, topic_filter: str) -> Iterator[Message]:
        """Those that a new subscription to the filter is sent."""
        return (self._show(*found) for found in self._tree.find(topic_filter))

    def walk(self, topic_filter: str) -> Iterator[Message | None]:
        """The same step by step, each as it is at its step; None: a step has found nothing."""
        return (None if one is None else self._show(*one) for one in self._tree.walk(topic_filter))

    def ask(self, topic_filter: str) -> RetainedQuery:
        """They are asked for, in one way or the other."""
        return RetainedQuery(self, topic_filter)

    def gather(self, topic_filter: str) -> RetainedCollection:
        """The same as they are at one moment, though that takes many steps."""
        gathering = RetainedCollection(topic_filter, self._tree, self._show)
        self._gathered.add(gathering)
        return gathering

    def within(self, apex: str) -> Iterator[Message]:
        """Those at or below the apex; `""` gives all."""
        return (self._show(*found) for found in self._tree.find_within(apex))

    def topics(self, apex: str) -> Iterable[str]:
        """The topics at or below the apex that have one."""
        return (topic for topic, _ in self._tree.within(apex))

    def discard_within(self, apex: str) -> None:
        """Take out what is at or below the apex."""
        for topic in list(self.topics(apex)):
            self.remove(topic)

    def _show(self, name: bytes, packed: StoredValue) -> Message:
        message = self._shown.get(name)
        if message is None:
            data = bytes(packed)
            message = Message(name.decode(), data[1:], data[0], True)
            self._shown[name] = message
        return message


class RetainedQuery:
    """What is retained for a filter, for whoever asks: to go through, as `walk`, or to `gather`."""

    def __init__(self, retained: RetainedMessages, topic_filter: str) -> None:
        self._retained = retained
        self._filter = topic_filter

    def __iter__(self) -> Iterator[Message | None]:
        return self._retained.walk(self._filter)

    def gather(self) -> RetainedCollection:
        """All of them as at one moment, which is still to come."""
        return self._retained.gather(self._filter)


class RetainedCollection:
    """
    The retained messages for a filter, found in `steps`: as they are when the last step is done.

    A topic that changes meanwhile is looked at again. Of each, two places in lists are kept.
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
        self._names: list[bytes] = []  # in the order of their bytes
        self._packed: list[StoredValue | None] = []
        self._changed: set[bytes] = set()
        self._late: set[bytes] = set()
        self._count = 0
        self._is_whole = False

    def __len__(self) -> int:
        """How many there are, or are left, when all steps are done."""
        return self._count

    def steps(self) -> Iterator[None]:
        """Find them."""
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
        # New where the walk had passed, if they have not gone again.
        late = [self._tree.entry(name) for name in self._late if not self._has(name)]
        for name, packed in filter(None, late):
            self._names.append(name)
            self._packed.append(packed)
            self._count += 1
        self._names.reverse()
        self._packed.reverse()

    def take(self, count: int) -> list[Message]:
        """The next ones, so many at the most, each once."""
        taken: list[Message] = []
        while self._names and len(taken) < count:
            name, packed = self._names.pop(), self._packed.pop()
            if packed is not None:
                taken.append(self._show(name, packed))
        self._count -= len(taken)
        return taken

    def note(self, name: bytes) -> None:
        """What is retained of a topic has changed."""
        if not self._is_whole and matches(self._filter, name.decode()):
            self._changed.add(name)

    # internal

    def _look_again(self) -> None:
        """Those of which something is known; the others may still be found by the walk."""
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
