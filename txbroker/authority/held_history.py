"""
The history that a zone holds for its first subscriber (`hold_first` in the topology).

A held filter is *untouched* until somebody subscribes to a filter that meets it. That first answer
to an interest brings the history. The history has records of QoS 1 and 2 that match both filters,
in order, from the present part of the journal. From then on the held filter means nothing; that is
durable.

An edge may come with interests that it asks nothing for: their sessions subscribed before. A filter
that such an interest meets for two looks in a row is touched, too, without history. An edge with a
subscription of which it still awaits the answer asks for it meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from txbroker.authority.edge_peers import EdgePeers
from txbroker.authority.retained_messages import RetainedCollection, RetainedQuery
from txbroker.journal.zone_journal import ZoneJournal
from txbroker.model.topics import matches, may_meet
from txbroker.mqtt.wire.message import Message

EXPIRED = b"\x02\0\0\0\0"
"""Properties of a message that stands for a record that retention removed between two readings."""


class HeldHistory:
    """The held filters of one zone; `delivered` gives the offset up to which records count."""

    def __init__(
        self, journal: ZoneJournal, peers: EdgePeers, delivered: Callable[[], int]
    ) -> None:
        self._journal = journal
        self._peers = peers
        self._delivered = delivered
        self._held: tuple[str, ...] = ()
        self._untouched: set[str] = set()
        self._met: set[str] = set()

    def set(self, filters: Iterable[str]) -> None:
        """Replace the held filters; one that was touched under an earlier list stays so."""
        self._held = tuple(filters)
        self.open()

    def open(self) -> None:
        """Begin with what is durable."""
        self._untouched = set(self._held) - self._journal.touched()
        self._met.clear()

    def take(self, topic_filter: str, retained: RetainedQuery | None) -> RetainedQuery | None:
        """Return what the answer to an interest brings: `retained`, with the history if due."""
        if not self._untouched:
            return retained
        met = tuple(held for held in self._held if self._meets(held, topic_filter))
        if not met:
            return retained
        self._touch(met)
        return HeldQuery(_Reader(self._journal, self._delivered, met, topic_filter), retained)

    def has_for(self, topic_filter: str) -> bool:
        """True if a subscriber to the filter is the first one."""
        untouched = self._untouched
        return bool(untouched) and any(self._meets(held, topic_filter) for held in untouched)

    def look(self) -> None:
        """Look for interests that nobody asks for; called now and then."""
        met = {held for held in self._untouched if self._peers.has_interest(held)}
        self._touch(met & self._met)
        self._met = met

    def _meets(self, held: str, topic_filter: str) -> bool:
        return held in self._untouched and may_meet(held, topic_filter)

    def _touch(self, filters: Iterable[str]) -> None:
        news = set(filters)
        if news:
            self._untouched -= news
            self._journal.store_touched(news)


class _Reader:
    """Reads the records that match `topic_filter` and one of the held filters."""

    def __init__(
        self,
        journal: ZoneJournal,
        delivered: Callable[[], int],
        held: tuple[str, ...],
        topic_filter: str,
    ) -> None:
        self.delivered = delivered
        self._journal = journal
        self._held = held
        self._filter = topic_filter

    def read(self, after: int, through: int) -> Iterator[Message | None]:
        """Yield the messages above `after`, up to `through`; None: a chunk is read."""
        while after < through:
            chunk = self._journal.read(after, through)
            for record in chunk.records:
                topic = record.message.topic
                if matches(self._filter, topic) and any(matches(h, topic) for h in self._held):
                    yield record.message
            after = chunk.through
            yield None


class HeldQuery(RetainedQuery):
    """The history of a filter, and its retained messages behind."""

    def __init__(self, reader: _Reader, retained: RetainedQuery | None) -> None:
        self._reader = reader
        self._rest = retained

    def __iter__(self) -> Iterator[Message | None]:
        history = self._reader.read(0, self._reader.delivered())
        return history if self._rest is None else chain(history, self._rest)

    def gather(self) -> HeldCollection:
        """Return a collection of the messages as of one future moment."""
        return HeldCollection(self._reader, None if self._rest is None else self._rest.gather())


class HeldCollection(RetainedCollection):
    """
    The history and the retained messages as of the moment when the last of the `steps` is done.

    The history is read twice: how many messages there are must be known before the first leaves.
    """

    def __init__(self, reader: _Reader, retained: RetainedCollection | None) -> None:
        self._reader = reader
        self._rest = retained
        self._through = 0
        self._left = 0
        self._topic = ""
        self._history: Iterator[Message | None] = iter(())

    def __len__(self) -> int:
        return self._left + (0 if self._rest is None else len(self._rest))

    def steps(self) -> Iterator[None]:
        """Count the history, then find the retained messages, one step at a time."""
        yield from self._count_history()
        if self._rest is not None:
            yield from self._rest.steps()
        for _ in self._count_history():
            pass  # what came meanwhile, up to this moment
        self._history = self._reader.read(0, self._through)

    def _count_history(self) -> Iterator[None]:
        while self._through < (through := self._reader.delivered()):
            for message in self._reader.read(self._through, through):
                if message is None:
                    yield
                else:
                    self._left += 1
                    self._topic = message.topic
            self._through = through

    def next_batch(self, count: int) -> list[Message]:
        """Return the next messages, `count` at most; each is returned once."""
        taken: list[Message] = []
        while self._left and len(taken) < count:
            message = next((one for one in self._history if one is not None), None)
            taken.append(message or Message(self._topic, b"", properties=EXPIRED))
            self._left -= 1
        if self._rest is not None and len(taken) < count:
            taken += self._rest.next_batch(count - len(taken))
        return taken

    def mark_changed(self, name: bytes) -> None:
        """Do nothing: the collection of the retained messages notes that itself."""
