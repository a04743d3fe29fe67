"""
What can be seen from outside, as values. A history is a list of events in the order in which they
happened: one process sees them all, so no clocks are compared.

`at` is in seconds since the start of the tree, for people. `connection` numbers the connections of
all clients; packets count only for the connection that carried them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs

event = attrs.frozen(kw_only=True)


@attrs.frozen(kw_only=True)
class Event:
    """Something that happened."""

    at: float


# of the run


@event
class Faulted(Event):
    """A fault begins or ends. From here to the next `Calm` some nodes may not be reachable."""

    what: str


@event
class Healed(Event):
    """All faults have ended and every node has been started."""


@event
class Calm(Event):
    """All is caught up: every zone reachable, nothing unacknowledged, nothing undelivered."""


@event
class Overdue(Event):
    """Too long after `Healed` it was not yet calm; `what` is missing."""

    what: str


@event
class Reclaimed(Event):
    """An operator took the zone from its dead node; what only that had comes later, or never."""

    zone: str


@event
class Ruined(Event):
    """
    A node is gone with its disk. `zones` are those that it served, and those of `nodes`: that node
    and all that may have given it what they had, since the last calm. Those `kept` are of others.
    `is_void`: it is the root, and comes back with an empty disk.
    """

    node: str
    zones: tuple[str, ...]
    kept: tuple[str, ...]
    nodes: tuple[str, ...]
    is_void: bool = False


@event
class Discarded(Event):
    """The client connects with clean session 1, or has left: nothing of it is anywhere."""

    client: str


@event
class Believed(Event):
    """A node was started with damaged data, or they were repaired, and nobody named the damage."""

    node: str
    what: str


@event
class Granted(Event):
    """
    A node logged that it owns the zone at this epoch. What is logged enters the history at the end
    of a round, in the order in which it was logged.
    """

    node: str
    zone: str
    epoch: int


@event
class Returned(Event):
    """A node logged that its child has given the zone back."""

    node: str
    zone: str


@event
class Ended(Event):
    """A node has ended that nobody had ended."""

    node: str
    status: int


@event
class Down(Event):
    """The process of a node has ended, whoever ended it; it did nothing after that."""

    node: str


@event
class Stuck(Event):
    """A node that was told to end, by this order, went on running."""

    node: str
    order: str


# of every client


@event
class Connecting(Event):
    """
    A client sends CONNECT, clean session 0; with a will for the topic `will` unless that is "". The
    will's payload names the connection: see `payloads.of_will`.
    """

    client: str
    connection: int
    node: str
    will: str = ""
    will_qos: int = 0


@event
class Connected(Event):
    """CONNACK."""

    client: str
    connection: int
    code: int
    session_present: bool


@event
class Disconnected(Event):
    """
    The connection has ended, or the client has given it up. `why` begins with `illegal` when the
    node sent what a server must not.
    """

    client: str
    connection: int
    why: str


@event
class Haunted(Event):
    """A connection that the client abandoned when it went elsewhere is open in the calm."""

    client: str
    connection: int


# of publishers


@event
class Sent(Event):
    """PUBLISH from a client. `number` counts the messages of this client, resends keep it."""

    client: str
    connection: int
    number: int
    topic: str
    qos: int
    retain: bool = False
    dup: bool = False


@event
class Acknowledged(Event):
    """PUBACK, PUBREC or PUBCOMP (`kind`) for a message; `number` None: nobody asked for it."""

    client: str
    connection: int
    number: int | None
    kind: str


# of subscribers


@event
class SubscribeSent(Event):
    """SUBSCRIBE for these (filter, QoS)."""

    client: str
    connection: int
    filters: tuple[tuple[str, int], ...]


@event
class Subscribed(Event):
    """SUBACK for all of these, each granted at the QoS that is given."""

    client: str
    connection: int
    filters: tuple[tuple[str, int], ...]


@event
class Delivered(Event):
    """
    PUBLISH to a client. `publisher` and `number` are read from the payload; `is_fresh` is False for
    a QoS 2 packet identifier whose PUBREL is still to come, which the receiver does not take again;
    `is_intact` says that topic and payload are as they were sent.
    """

    client: str
    connection: int
    publisher: str
    number: int
    topic: str
    qos: int
    packet_id: int
    dup: bool = False
    retain: bool = False
    is_fresh: bool = True
    is_intact: bool = True


@event
class Settled(Event):
    """
    The subscriber has answered the delivery of this packet identifier (PUBACK, PUBCOMP), and by a
    later PINGRESP it knows that the node has read that.
    """

    client: str
    connection: int
    packet_id: int


@event
class Processed(Event):
    """PUBLISH to a member of a group; the fields are those of `Delivered`."""

    client: str
    connection: int
    publisher: str
    number: int
    qos: int
    is_fresh: bool


# of the calm


@event
class Remembered(Event):
    """Who subscribed anew got these retained messages: (topic, publisher, number)."""

    values: tuple[tuple[str, str, int], ...]


@event
class Copied(Event):
    """
    A message published in the calm crossed the network between two nodes `count` times. `edge` is
    the publisher's node, `owner` the owner of the topic, `holders` hold sessions that want it.
    """

    publisher: str
    number: int
    source: str
    target: str
    count: int
    edge: str
    owner: str
    holders: tuple[str, ...]


KINDS: dict[str, type[Event]] = {
    kind.__name__: kind
    for kind in (
        Faulted,
        Healed,
        Calm,
        Overdue,
        Reclaimed,
        Ruined,
        Discarded,
        Believed,
        Granted,
        Returned,
        Ended,
        Down,
        Stuck,
        Connecting,
        Connected,
        Disconnected,
        Haunted,
        Sent,
        Acknowledged,
        SubscribeSent,
        Subscribed,
        Delivered,
        Settled,
        Processed,
        Remembered,
        Copied,
    )
}


def write(history: Iterable[Event], path: Path) -> None:
    """One JSON object a line."""
    with path.open("w") as file:
        for each in history:
            file.write(json.dumps({"event": type(each).__name__, **attrs.asdict(each)}) + "\n")


def read(path: Path) -> Iterator[Event]:
    """A history that `write` has written."""
    with path.open() as file:
        for line in file:
            fields = {name: _tuples(value) for name, value in json.loads(line).items()}
            yield KINDS[fields.pop("event")](**fields)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
