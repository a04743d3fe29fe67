"""Represents a run: publishes of one source that came together and go on together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from txbroker.core.reference.flows import Flows
from txbroker.core.reference.packet_writer import PacketWriter
from txbroker.core.reference.packets import Entry, publish_head
from txbroker.model.publish_run import Octets
from txbroker.mqtt.wire.message import OVERHEAD, Message
from txbroker.mqtt.wire.message_expiry import expiry_of
from txbroker.mqtt.wire.property_list import LISTED


class Run:
    """
    PUBLISH packets of one source, in the order of arrival; none of them has RETAIN.

    `data` has them in the wire form, with or without property lists (`has_properties`).

    - `qos`: 0 if all have QoS 0; 1 if all have QoS 1 or 2.
    - `clients`: the publishers; `places` has the index of each message's client, or is None for a
      single client.
    - `edge`: the node at which the packets arrived; "" for this node.
    - `size`: the size in queues (`Message.size`).
    - `session`: the session of a client that is connected to this node. The session has its `flows`
      and the `packet_writer` of its connection. `serial` distinguishes the runs of a session.
    - `came`: the time at which a run came that `expires`; None: it expires never, or waits nowhere.
    - `offsets`: the offsets in a journal; or `first`, if the others follow it (0: not in a
      journal).
    """

    __slots__ = (
        "came",
        "clients",
        "data",
        "edge",
        "entries",
        "first",
        "flows",
        "offsets",
        "packet_writer",
        "places",
        "qos",
        "serial",
        "session",
        "size",
    )

    def __init__(
        self,
        data: bytes,
        entries: list[Entry],
        *,
        clients: tuple[str, ...],
        places: Sequence[int] | None = None,
        edge: str = "",
        session: Any = None,
        serial: int = 0,
    ) -> None:
        self.data = data
        self.entries = entries
        self.qos = int(entries[0].qos > 0)
        self.clients = clients
        self.places = places
        self.edge = edge
        self.session = session
        self.serial = serial
        self.flows: Flows | None = None
        self.packet_writer: PacketWriter | None = None
        self.first = 0
        self.came: float | None = None
        self.offsets: Sequence[int] | None = None
        self.size = sum(one.end - one.payload + one.topic_end - one.topic for one in entries)
        self.size += sum(one.payload - one.properties for one in entries)
        self.size += OVERHEAD * len(entries)

    @property
    def count(self) -> int:
        """Number of messages."""
        return len(self.entries)

    @property
    def has_properties(self) -> bool:
        """True if any packet has a property list, which may be empty."""
        return any(one.has_list for one in self.entries)

    @property
    def expires(self) -> bool:
        """True if a message has an expiry interval."""
        return any(expiry_of(self.properties(index)) is not None for index in range(self.count))

    @property
    def is_qos1(self) -> bool:
        """True if all messages have QoS 1."""
        return all(one.qos == 1 for one in self.entries)

    @property
    def raw(self) -> Octets:
        """The packets in their stored form, concatenated."""
        data, pieces = self.data, []
        for one in self.entries:
            if one.has_list:
                pieces.append(bytes((data[one.start] | LISTED,)))
                pieces.append(data[one.start + 1 : one.end])
            else:
                pieces.append(data[one.start : one.end])
        return b"".join(pieces)

    def offset(self, index: int) -> int:
        """Return the offset of a message; 0 if it is not in a journal."""
        if self.offsets is not None:
            return self.offsets[index]
        return self.first and self.first + index

    def ranges(self) -> list[tuple[int, int]]:
        """Return the offsets as ranges: first offset and number of consecutive offsets."""
        if self.offsets is None:
            return [(self.first, self.count)]
        found: list[tuple[int, int]] = []
        for offset in self.offsets:
            if found and found[-1][0] + found[-1][1] == offset:
                found[-1] = found[-1][0], found[-1][1] + 1
            else:
                found.append((offset, 1))
        return found

    def topics(self) -> list[str]:
        """Return the topic of each message."""
        return [self.data[one.topic : one.topic_end].decode() for one in self.entries]

    @property
    def packet_ids(self) -> list[int]:
        """Packet id of each message; 0 for QoS 0."""
        return [one.packet_id for one in self.entries]

    def message(self, index: int) -> Message:
        """Return one message."""
        one = self.entries[index]
        return Message(
            self.data[one.topic : one.topic_end].decode(),
            self.data[one.payload : one.end],
            one.qos,
            False,
            self.clients[0 if self.places is None else self.places[index]],
            edge=self.edge,
            properties=self.properties(index),
        )

    def properties(self, index: int) -> bytes:
        """Return the properties of a message, without their length."""
        one = self.entries[index]
        return self.data[one.properties : one.payload]

    def without_properties(self) -> Run:
        """Return the run as a node gets it that knows of no properties."""
        if not self.has_properties:
            return self
        data, entries = bytearray(), []
        for one in self.entries:
            topic, rest = self.data[one.topic : one.topic_end], self.data[one.payload : one.end]
            rest = self.data[one.topic_end : one.list_start] + rest
            start, flags = len(data), self.data[one.start] & 0x0F
            head = publish_head(flags, topic, len(rest))
            data += head + rest
            topic_end = start + len(head)
            entries.append(
                one._replace(
                    start=start,
                    topic=topic_end - len(topic),
                    topic_end=topic_end,
                    payload=topic_end + one.list_start - one.topic_end,
                    end=len(data),
                )
            )
        return self._remade(bytes(data), entries)

    @property
    def last(self) -> int:
        """Offset of the last message; 0 if it is not in a journal."""
        return self.offset(self.count - 1)

    @property
    def client_id(self) -> str:
        """The client that published the run, if there is only one."""
        return self.clients[0]

    def cut(self, count: int) -> tuple[Run, Run]:
        """Split the run into its first `count` messages and the rest."""
        return self.select(range(count)), self.select(range(count, self.count))

    def select(self, indices: Iterable[int]) -> Run:
        """Return a run of the messages at `indices`, at least one, in this order."""
        chosen = list(indices)
        run = self._remade(self.data, [self.entries[index] for index in chosen])
        if self.places is not None:
            run.places = [self.places[index] for index in chosen]
        if self.offsets is not None:
            run.offsets = [self.offset(index) for index in chosen]
        elif self.first and all(after == before + 1 for before, after in pairwise(chosen)):
            run.first = self.first + chosen[0]
        elif self.first:
            run.first, run.offsets = 0, [self.first + index for index in chosen]
        return run

    def _remade(self, data: bytes, entries: list[Entry]) -> Run:
        run = Run(
            data,
            entries,
            clients=self.clients,
            places=self.places,
            edge=self.edge,
            session=self.session,
            serial=self.serial,
        )
        run.flows, run.packet_writer = self.flows, self.packet_writer
        run.first, run.offsets, run.came = self.first, self.offsets, self.came
        return run
