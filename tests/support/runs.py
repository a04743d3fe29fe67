"""Runs of messages for tests (`txbroker.model.publish_run.PublishRun`)."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from txbroker.core import Run, StoredRecords
from txbroker.journal.store.record_format import to_batch
from txbroker.mqtt.wire.encoder import publish_head
from txbroker.mqtt.wire.message import Message
from txbroker.mqtt.wire.packets import Publish
from txbroker.mqtt.wire.property_list import LISTED, property_list


def messages_in(item: Publish | Run) -> list[Message]:
    """The publishes that a reader of links gave, one by one."""
    if isinstance(item, Publish):
        return [
            Message(item.topic, item.payload, item.qos, item.retain, properties=item.properties)
        ]
    return [item.message(index) for index in range(item.count)]


def _stored(one: Message, number: int) -> bytes:
    """In the stored form, with this packet id."""
    listed = property_list(one.properties) if one.properties else b""
    head = publish_head(
        one.topic,
        len(listed) + len(one.payload),
        one.qos,
        dup=one.qos > 0 and number % 3 == 0,
    )
    packet_id = number.to_bytes(2) if one.qos else b""
    first_byte = head[0] | LISTED if listed else head[0]
    return b"".join((bytes((first_byte,)), head[1:], packet_id, listed, one.payload))


def read_run(messages: Sequence[Message], first: int) -> Run:
    """Messages of QoS 1 as they are read from a journal, where they lie from offset `first` on."""
    stored = StoredRecords()
    offsets = range(first, first + len(messages))
    stored.add(*to_batch(offsets, b"".join(one.link_packet for one in messages)))
    run, _ = stored.run(["#"], 0, offsets[-1], most=len(messages), room=1 << 30)
    assert run is not None and run.count == len(messages)
    return run


@attrs.frozen(kw_only=True)
class PlainRun:
    """A run that was made before."""

    count: int
    size: int
    qos: int
    clients: tuple[str, ...]
    places: Sequence[int] | None
    raw: bytes
    edge: str


def run_of(messages: Sequence[Message], edge: str = "") -> PlainRun:
    """The messages as clients send them: with packet ids that grow, some of them DUP."""
    clients = tuple(dict.fromkeys(one.client_id for one in messages))
    packets = [_stored(one, number) for number, one in enumerate(messages, 1)]
    return PlainRun(
        count=len(messages),
        size=sum(one.size for one in messages),
        qos=int(any(one.qos for one in messages)),
        clients=clients,
        places=[clients.index(one.client_id) for one in messages] if len(clients) > 1 else None,
        raw=b"".join(packets),
        edge=edge,
    )
