"""Runs of messages for tests (`txbroker.model.publish_run.PublishRun`)."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from txbroker.core import Run
from txbroker.mqtt.wire.encoder import encode_publish
from txbroker.mqtt.wire.message import Message
from txbroker.mqtt.wire.packets import Publish


def messages_in(item: Publish | Run) -> list[Message]:
    """What a reader of links gave, one by one."""
    if isinstance(item, Publish):
        return [Message(item.topic, item.payload, item.qos, item.retain)]
    return [item.message(index) for index in range(item.count)]


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
    packets = [
        encode_publish(
            one.topic,
            one.payload,
            one.qos,
            False,
            one.qos > 0 and number % 3 == 0,
            number if one.qos else None,
        )
        for number, one in enumerate(messages, 1)
    ]
    return PlainRun(
        count=len(messages),
        size=sum(one.size for one in messages),
        qos=int(any(one.qos for one in messages)),
        clients=clients,
        places=[clients.index(one.client_id) for one in messages] if len(clients) > 1 else None,
        raw=b"".join(packets),
        edge=edge,
    )
