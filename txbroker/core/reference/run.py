"""Publishes that came together and go on together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from txbroker.core.reference.flows import Flows
from txbroker.core.reference.packet_writer import PacketWriter
from txbroker.core.reference.packets import Entry
from txbroker.model.publish_run import Octets
from txbroker.mqtt.wire.message import OVERHEAD, Message


class Run:
    """
    PUBLISH packets of one source, in the order in which they came; none of them has RETAIN.

    All are of QoS 0 (`qos` 0), or all of QoS 1 or 2 (`qos` 1). `clients` published them: `places`
    has the index of each one's client, None where there is only one. `edge` is the node that they
    came in on, "" for this one. `size` is what they count for in queues (`Message.size`). `session`
    is that of the client, where it is here, with its `flows` and the `packet_writer` of the
    connection that they came on; `serial` tells its runs apart. Where they lie in a journal say
    `offsets`, or `first`, where the others follow it (0: nowhere).
    """

    __slots__ = (
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
        self.offsets: Sequence[int] | None = None
        self.size = sum(one.end - one.payload + one.topic_end - one.topic for one in entries)
        self.size += OVERHEAD * len(entries)

    @property
    def count(self) -> int:
        """How many messages there are."""
        return len(self.entries)

    @property
    def raw(self) -> Octets:
        """The packets as they came, one behind the other."""
        return b"".join([self.data[one.start : one.end] for one in self.entries])

    def offset(self, index: int) -> int:
        """Where one of them lies; 0: nowhere."""
        if self.offsets is not None:
            return self.offsets[index]
        return self.first and self.first + index

    def ranges(self) -> list[tuple[int, int]]:
        """Where they lie: the first offset and how many follow each other from there on."""
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
        """Of each message."""
        return [self.data[one.topic : one.topic_end].decode() for one in self.entries]

    @property
    def packet_ids(self) -> list[int]:
        """Of each message; 0 for QoS 0."""
        return [one.packet_id for one in self.entries]

    def message(self, index: int) -> Message:
        """One of them by itself."""
        one = self.entries[index]
        return Message(
            self.data[one.topic : one.topic_end].decode(),
            self.data[one.payload : one.end],
            one.qos,
            False,
            self.clients[0 if self.places is None else self.places[index]],
            edge=self.edge,
        )

    @property
    def last(self) -> int:
        """Where the last one lies; 0: nowhere."""
        return self.offset(self.count - 1)

    @property
    def client_id(self) -> str:
        """Who published it, where that is one client."""
        return self.clients[0]

    def cut(self, count: int) -> tuple[Run, Run]:
        """So many at its beginning, and the rest."""
        return self.select(range(count)), self.select(range(count, self.count))

    def select(self, indices: Iterable[int]) -> Run:
        """Some of them, at least one, in this order."""
        chosen = list(indices)
        places = None if self.places is None else [self.places[index] for index in chosen]
        run = Run(
            self.data,
            [self.entries[index] for index in chosen],
            clients=self.clients,
            places=places,
            edge=self.edge,
            session=self.session,
            serial=self.serial,
        )
        run.flows, run.packet_writer = self.flows, self.packet_writer
        if self.first or self.offsets is not None:
            run.offsets = [self.offset(index) for index in chosen]
        return run
