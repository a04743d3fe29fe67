"""
What a test holds in its hand: clients at the publisher's and at the subscriber's broker, topics of
its own, and the proof that nothing came.
"""

from __future__ import annotations

import itertools
import os
from typing import Any, Generic, TypeVar

from tests.support.rawclient import Address, RawClient
from tests.support.rawclient5 import RawClient5
from tests.support.wire import Publish, Will

C = TypeVar("C", RawClient, RawClient5)

_numbers = itertools.count(1)
_run = os.urandom(3).hex()  # a broker that outlives this run keeps nothing of an earlier one


def unique(word: str = "t") -> str:
    """A name that no other test uses, of letters and digits, at most 23 bytes."""
    return f"{word}{_run}{next(_numbers)}"


class BrokerView(Generic[C]):
    """
    One test's view of a broker: `pub` and `sub` are addresses (equal, or two nodes of a tree), and
    every topic that `topic()` gives lies in one zone. Clients are closed and the sessions that stay
    removed at the end. `kind` is the class of the clients.
    """

    kind: type[C]

    def __init__(self, pub: Address, sub: Address, zone: str = "") -> None:
        self.pub = pub
        self.sub = sub
        self.zone = zone
        self.base = f"{zone}/{unique()}" if zone else unique()
        self._clients: list[RawClient | RawClient5] = []
        self._kept: set[tuple[Address, str | bytes]] = set()

    def topic(self, rest: str = "x") -> str:
        """`rest` below this test's own place in the zone."""
        return f"{self.base}/{rest}"

    def open(self, address: Address | None = None) -> C:
        """A TCP connection on which nothing has been sent, by default to the subscriber's side."""
        client = self.kind(address or self.sub)
        self._clients.append(client)
        return client

    def client(
        self, client_id: str | bytes | None = None, *, at: Address | None = None, **options: Any
    ) -> C:
        """A client that is connected; options as for its `connect`."""
        client = self.open(at)
        name = unique("c") if client_id is None else client_id
        if self.keeps(options):
            self._kept.add((client.address, name))
        client.connect(name, **options)
        return client

    def keeps(self, options: dict[str, Any]) -> bool:
        """True if the session stays when a client with these options is gone."""
        raise NotImplementedError

    def publisher(self, **options: Any) -> C:
        """A client on the publisher's side."""
        return self.client(at=self.pub, **options)

    def subscriber(self, *filters: tuple[str | bytes, int] | str, **options: Any) -> C:
        """A client on the subscriber's side with these subscriptions."""
        client = self.client(**options)
        if filters:
            client.subscribe(*filters)
        return client

    def settle(self, pub: C) -> None:
        """
        All that `pub` has published at QoS 0 is with the owner of the zone: a QoS 1 publish on the
        same path is acknowledged behind it.
        """
        pub.publish(self.topic("settled"), b"", qos=1)

    def silence(self, sub: C, pub: C | None = None, rest: str = "marker") -> None:
        """
        Nothing is on its way to `sub`: a marker published now, in the same zone by the same client,
        is the very next thing that it gets. Subscribes `sub` to the marker.
        """
        marker = self.topic(f"{rest}{next(_numbers)}")
        sub.subscribe(marker)
        (pub or self.publisher()).publish(marker, b"marker")
        sub.expect_publish(marker, b"marker")

    def close(self) -> None:
        """Close all clients and end the sessions that would stay."""
        for client in self._clients:
            client.close()
        for address, client_id in self._kept:
            with self.kind(address) as client:
                client.connect(client_id)
                client.disconnect()


class Bench(BrokerView[RawClient]):
    """A broker with clients of MQTT 3.1.1."""

    kind = RawClient

    def keeps(self, options: dict[str, Any]) -> bool:
        """True if the session is persistent."""
        return options.get("clean") is False

    def resume(self, client_id: str, *, at: Address | None = None, **options: Any) -> RawClient:
        """A client back with CleanSession 0; its session must be there."""
        client = self.client(client_id, at=at, clean=False, **options)
        assert client.session_present, "the session is gone"
        return client

    def until_marker(self, sub: RawClient, pub: RawClient) -> list[Publish]:
        """
        All that `sub` gets before a marker that `pub` publishes now, acknowledged.

        The marker has QoS 1: one with QoS 0 is not queued, so it may overtake, on its own topic,
        what is still read for a session that is back.
        """
        marker = self.topic(f"marker{next(_numbers)}")
        sub.subscribe((marker, 1))
        pub.publish(marker, b"marker", qos=1)
        return sub.take_until(lambda message: message.topic == marker)

    def will(self, rest: str = "will", **fields: Any) -> Will:
        """A will in this test's zone."""
        return Will(topic=self.topic(rest), **fields)
