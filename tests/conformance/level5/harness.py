"""What a test of level 5 holds in its hand; as `tests/conformance/harness.py`."""

from __future__ import annotations

from typing import Any

from tests.conformance.harness import BrokerView, unique
from tests.support import wire5
from tests.support.rawclient import Address, RawClient
from tests.support.rawclient5 import RawClient5


class Bench5(BrokerView[RawClient5]):
    """A broker with clients of MQTT 5.0, and some of MQTT 3.1.1."""

    kind = RawClient5

    def keeps(self, options: dict[str, Any]) -> bool:
        """True if the session has an expiry."""
        return bool(options.get("expiry"))

    def resume(self, client_id: str, *, at: Address | None = None, **options: Any) -> RawClient5:
        """A client back with clean start 0; its session must be there."""
        client = self.client(client_id, at=at, clean=False, **options)
        assert client.connack.present, "the session is gone"
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

    def will(self, rest: str = "will", **fields: Any) -> wire5.Will:
        """A will in this test's zone."""
        return wire5.Will(topic=self.topic(rest), **fields)
