"""What a test of level 5 holds in its hand; as `tests/conformance/harness.py`."""

from __future__ import annotations

import itertools
from typing import Any

from tests.conformance.harness import unique
from tests.support import wire5
from tests.support.rawclient import Address, RawClient
from tests.support.rawclient5 import RawClient5

_numbers = itertools.count(1)


class Bench5:
    """
    One test's view of a broker: `pub` and `sub` are addresses (equal, or two nodes of a tree), and
    every topic that `topic()` gives lies in one zone.
    """

    def __init__(self, pub: Address, sub: Address, zone: str = "") -> None:
        self.pub = pub
        self.sub = sub
        self.base = f"{zone}/{unique()}" if zone else unique()
        self._clients: list[RawClient5 | RawClient] = []
        self._kept: set[tuple[Address, str | bytes]] = set()

    def topic(self, rest: str = "x") -> str:
        """`rest` below this test's own place in the zone."""
        return f"{self.base}/{rest}"

    def open(self, address: Address | None = None) -> RawClient5:
        """A TCP connection on which nothing has been sent, by default to the subscriber's side."""
        client = RawClient5(address or self.sub)
        self._clients.append(client)
        return client

    def client(
        self, client_id: str | bytes | None = None, *, at: Address | None = None, **options: Any
    ) -> RawClient5:
        """A client that is connected; options as for `wire5.connect`."""
        client = self.open(at)
        name = unique("c") if client_id is None else client_id
        if options.get("expiry"):
            self._kept.add((client.address, name))
        client.connect(name, **options)
        return client

    def resume(self, client_id: str, *, at: Address | None = None, **options: Any) -> RawClient5:
        """A client back with clean start 0; its session must be there."""
        client = self.client(client_id, at=at, clean=False, **options)
        assert client.connack.present, "the session is gone"
        return client

    def publisher(self, **options: Any) -> RawClient5:
        """A client on the publisher's side."""
        return self.client(at=self.pub, **options)

    def subscriber(self, *filters: tuple[str | bytes, int] | str, **options: Any) -> RawClient5:
        """A client on the subscriber's side with these subscriptions."""
        client = self.client(**options)
        if filters:
            client.subscribe(*filters)
        return client

    def older(self, address: Address | None = None, **options: Any) -> RawClient:
        """A client of MQTT 3.1.1 that is connected, by default on the subscriber's side."""
        client = RawClient(address or self.sub)
        self._clients.append(client)
        client.connect(unique("c"), **options)
        return client

    def older_session(self, client_id: str) -> RawClient:
        """A client of MQTT 3.1.1 with clean session 0; its session must be there."""
        client = RawClient(self.sub)
        self._clients.append(client)
        assert client.connect(client_id, clean=False), "the session is gone"
        return client

    def settle(self, pub: RawClient5) -> None:
        """All that `pub` has published at QoS 0 is with the owner of the zone."""
        pub.publish(self.topic("settled"), b"", qos=1)

    def silence(self, sub: RawClient5, pub: RawClient5 | None = None) -> None:
        """
        Nothing is on its way to `sub`: a marker published now, in the same zone by the same client,
        is the very next thing that it gets.
        """
        marker = self.topic(f"marker{next(_numbers)}")
        sub.subscribe(marker)
        (pub or self.publisher()).publish(marker, b"marker")
        sub.expect_publish(marker, b"marker")

    def will(self, rest: str = "will", **fields: Any) -> wire5.Will:
        """A will in this test's zone."""
        return wire5.Will(topic=self.topic(rest), **fields)

    def close(self) -> None:
        """Close all clients and end the sessions that would stay."""
        for client in self._clients:
            client.close()
        for address, client_id in self._kept:
            with RawClient5(address) as client:
                client.connect(client_id)
                client.disconnect()
