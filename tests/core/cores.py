"""The core twice: its reference and the compiled one, and packets to give to both."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from txbroker.core.reference.accept import accept
from txbroker.core.reference.columns import Columns, Sieve
from txbroker.core.reference.flows import Flows
from txbroker.core.reference.link import LinkReader
from txbroker.core.reference.packet_reader import PacketReader
from txbroker.core.reference.packet_writer import PacketWriter
from txbroker.core.reference.packets import encode_length
from txbroker.core.reference.records import StoredRecords
from txbroker.core.reference.router import Apexes, Router, Target
from txbroker.core.reference.run import Run
from txbroker.core.subscription_index import SubscriptionIndex

REFERENCE: Any = SimpleNamespace(
    Apexes=Apexes,
    Columns=Columns,
    Router=Router,
    Flows=Flows,
    PacketReader=PacketReader,
    LinkReader=LinkReader,
    PacketWriter=PacketWriter,
    Run=Run,
    Sieve=Sieve,
    StoredRecords=StoredRecords,
    Target=Target,
    Tree=SubscriptionIndex,
    accept=accept,
)
COMPILED: Any = None
if os.environ.get("TXBROKER_PURE") != "1":
    from txbroker.core import compiled

    COMPILED = compiled

CORES = [REFERENCE] if COMPILED is None else [REFERENCE, COMPILED]

both = pytest.mark.parametrize("core", CORES, ids=["reference", "compiled"][: len(CORES)])
needs_compiled = pytest.mark.skipif(COMPILED is None, reason="TXBROKER_PURE=1")


def publish(
    topic: bytes,
    payload: bytes = b"",
    qos: int = 0,
    packet_id: int = 1,
    flags: int = 0,
    properties: bytes | None = None,
) -> bytes:
    """
    A PUBLISH; `flags` are more bits of its first byte. Unless `properties` are None it has a list.
    """
    listed = b"" if properties is None else encode_length(len(properties)) + properties
    head = len(topic).to_bytes(2) + topic + (packet_id.to_bytes(2) if qos else b"")
    body = head + listed + payload
    return bytes((0x30 | qos << 1 | flags,)) + encode_length(len(body)) + body


def stored(packet: bytes) -> bytes:
    """The stored form of a PUBLISH that has a list."""
    return bytes((packet[0] | 0xC0,)) + packet[1:]


def answer(first_byte: int, packet_id: int) -> bytes:
    """A PUBACK, PUBREC, PUBREL or PUBCOMP."""
    return bytes((first_byte, 2)) + packet_id.to_bytes(2)


class Session:
    """Whoever has one; the name is for messages of failed tests."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


class Client:
    """A client that is here: all that a core has of it."""

    def __init__(
        self,
        core: Any,
        router: Any,
        name: str = "client",
        *,
        clean: bool = True,
        max_packet: int = 1024 * 1024,
        level: int = 4,
    ) -> None:
        self.session = Session(name)
        self.router = router
        self.packet_writer = router.make_packet_writer()
        self.packet_writer.is_direct = True
        self.packet_writer.level = level
        self.packet_reader = router.make_packet_reader(self.packet_writer, max_packet)
        self.flows = core.Flows()
        self.packet_reader.open(self.session, name, self.flows, clean=clean, level=level)
        self.packet_reader.takes_qos12 = True

    def step(self, data: bytes) -> Any:
        """What the packet reader makes of these bytes, up to a packet for others."""
        self.packet_reader.feed(data)
        return self.packet_reader.step()

    def subscribe(self, topic_filter: str, qos: int = 0, key: Any = None) -> Any:
        """A target, through which live messages come at once."""
        target = self.router.make_target(self.session, None, self.packet_writer)
        target.qos = qos
        target.is_plain = True
        self.router.targets.add(topic_filter, key or self.session, target)
        return target


def pairs(left: list[tuple[Any, range]]) -> list[tuple[Any, int]]:
    """What `fan_out` left, one by one: the cores need not have the same ranges."""
    return [(session, index) for session, indices in left for index in indices]


def a_client(core: Any, name: str = "client", **keys: Any) -> Client:
    """One that has an exchange for itself."""
    return Client(core, core.Router(lambda: None), name, **keys)


def a_run(core: Any, *packets: bytes, level: int = 4) -> Any:
    """The run that these publishes make, all of QoS 0 or none."""
    client = a_client(core, level=level)
    assert client.step(b"".join(packets)) is None
    run = client.packet_reader.qos0 or client.packet_reader.qos12
    assert run is not None and run.count == len(packets)
    return run
