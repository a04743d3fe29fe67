"""
Home Assistant and zigbee2mqtt, as docs/home-assistant.md sets them up.

At the root is paho, set up as Home Assistant does it; at another node, which owns `zigbee2mqtt`, a
client that says what zigbee2mqtt says.
"""

from __future__ import annotations

import json
import queue
import socket
import threading
import time
from collections.abc import Iterator
from typing import Self

import paho.mqtt.client as paho
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.support.nodes import NodeProcess, topology

TIMEOUT = 20.0
CONFIG = "homeassistant/sensor/0x00158d/temperature/config"
STATUS = "homeassistant/status"
STATE = "zigbee2mqtt/kitchen sensor"
BRIDGE = "zigbee2mqtt/bridge/state"
MARKER = "zigbee2mqtt/marker"


class Client:
    """
    A client of MQTT 5.0: clean start 0, no session expiry, a will, and a birth message.

    Its messages are (topic, payload, retain).
    """

    def __init__(self, node: NodeProcess, name: str, status: str, *, retain: bool) -> None:
        self.messages: queue.Queue[tuple[str, str, bool]] = queue.Queue()
        self.expiries: dict[str, int] = {}
        self.present: bool | None = None
        self._node, self._status, self._retain = node, status, retain
        self._connected, self._subscribed = threading.Event(), threading.Event()
        self._gone = threading.Event()
        client = paho.Client(
            paho.CallbackAPIVersion.VERSION2,
            name,
            protocol=paho.MQTTv5,
            reconnect_on_failure=False,
        )
        client.on_connect = self._on_connect
        client.on_disconnect = lambda *_: self._gone.set()
        client.on_subscribe = lambda *_: self._subscribed.set()
        client.on_message = self._on_message
        client.will_set(status, "offline", 0, retain)
        self._client = client

    def __enter__(self) -> Self:
        self._client.connect("127.0.0.1", self._node.mqtt[1], clean_start=False)
        self._client.loop_start()
        assert self._connected.wait(TIMEOUT)
        return self

    def __exit__(self, *_: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def subscribe(self, *filters: str) -> None:
        """At QoS 0, as Home Assistant does it unless told otherwise; behind the SUBACK."""
        self._subscribed.clear()
        self._client.subscribe([(topic_filter, 0) for topic_filter in filters])
        assert self._subscribed.wait(TIMEOUT)

    def publish(
        self, topic: str, payload: str, *, retain: bool = True, expiry: int | None = None
    ) -> None:
        """At QoS 1; behind the acknowledgement."""
        properties = Properties(PacketTypes.PUBLISH)
        if expiry is not None:
            properties.MessageExpiryInterval = expiry
        self._client.publish(topic, payload, 1, retain, properties).wait_for_publish(TIMEOUT)

    def give_birth(self) -> None:
        """Say that it is there."""
        self.publish(self._status, "online", retain=self._retain)

    def take(self) -> tuple[str, str, bool]:
        """The next message."""
        return self.messages.get(timeout=TIMEOUT)

    def vanish(self) -> None:
        """Lose the connection."""
        own = self._client.socket()
        assert own is not None
        own.shutdown(socket.SHUT_RDWR)
        assert self._gone.wait(TIMEOUT)

    def _on_connect(self, _c: object, _u: object, flags: paho.ConnectFlags, *_: object) -> None:
        self.present = flags.session_present
        self._connected.set()

    def _on_message(self, _c: object, _u: object, message: paho.MQTTMessage) -> None:
        left = getattr(message.properties, "MessageExpiryInterval", None)
        if left is not None:
            self.expiries[message.topic] = left
        self.messages.put((message.topic, message.payload.decode(), message.retain))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NodeProcess, NodeProcess]]:
    """The nodes of the page."""
    folder = tmp_path_factory.mktemp("home_assistant")
    house = NodeProcess(folder, topology("house", zone=""))
    attic = NodeProcess(folder, topology("attic", zone="zigbee2mqtt", parent=house.grpc))
    with house, attic:
        attic.wait_event("join.granted")
        yield house, attic


@pytest.fixture
def home_assistant(site: tuple[NodeProcess, NodeProcess]) -> Client:
    """It subscribes to what it discovers once it is connected."""
    return Client(site[0], "home-assistant", STATUS, retain=False)


@pytest.fixture
def zigbee(site: tuple[NodeProcess, NodeProcess]) -> Iterator[Client]:
    """zigbee2mqtt, connected; its retained messages are gone at the end."""
    with Client(site[1], "zigbee2mqtt", BRIDGE, retain=True) as client:
        client.give_birth()
        yield client
    with Client(site[1], "cleaner", MARKER, retain=False) as client:
        for topic in (CONFIG, STATE, BRIDGE):
            client.publish(topic, "")


def discover(client: Client) -> str:
    """What Home Assistant does with a discovery message: the topic that has the state."""
    client.subscribe("homeassistant/#")
    topic, payload, retain = client.take()
    assert (CONFIG, True) == (topic, retain)
    found = json.loads(payload)["state_topic"]
    assert isinstance(found, str)
    return found


def announce(zigbee: Client) -> None:
    """A device and its state, which is good for an hour."""
    zigbee.publish(CONFIG, json.dumps({"state_topic": STATE, "unique_id": "0x00158d"}))
    zigbee.publish(STATE, "21.5", expiry=3600)


def test_devices_are_discovered_and_their_states_read(
    home_assistant: Client, zigbee: Client
) -> None:
    """Retained messages of both zones, the state with what is left of its expiry; then live."""
    announce(zigbee)
    with home_assistant as client:
        assert client.present is False
        assert STATE == discover(client)
        client.subscribe(STATE, BRIDGE)
        first = sorted(client.take() for _ in range(2))
        assert [(BRIDGE, "online", True), (STATE, "21.5", True)] == first
        assert 3500 < client.expiries[STATE] <= 3600
        zigbee.publish(STATE, "22.0", expiry=3600)
        assert (STATE, "22.0", False) == client.take()


def test_birth_and_will_reach_each_other(
    site: tuple[NodeProcess, NodeProcess], home_assistant: Client, zigbee: Client
) -> None:
    """zigbee2mqtt hears that Home Assistant comes and goes, and the other way round."""
    zigbee.subscribe(STATUS)
    with home_assistant as client:
        client.subscribe(BRIDGE)
        assert (BRIDGE, "online", True) == client.take()
        client.give_birth()
        assert (STATUS, "online", False) == zigbee.take()
        zigbee.vanish()
        assert (BRIDGE, "offline", False) == client.take()
        with Client(site[1], "zigbee2mqtt", BRIDGE, retain=True) as back:
            back.subscribe(STATUS)
            back.give_birth()
            assert (BRIDGE, "online", False) == client.take()
            client.vanish()
            assert (STATUS, "offline", False) == back.take()


def test_a_restart_begins_anew(
    site: tuple[NodeProcess, NodeProcess], home_assistant: Client, zigbee: Client
) -> None:
    """The session ends with the connection: no message twice, none of an old subscription."""
    announce(zigbee)
    with home_assistant as client:
        discover(client)
        client.subscribe(STATE)
        assert (STATE, "21.5", True) == client.take()
        client.vanish()
    zigbee.publish(STATE, "23.0", expiry=3600)

    again = Client(site[0], "home-assistant", STATUS, retain=False)
    with again as client:
        assert client.present is False
        assert STATE == discover(client)
        client.subscribe(STATE)
        assert (STATE, "23.0", True) == client.take()
        zigbee.publish(STATE, "24.0", expiry=3600)
        assert (STATE, "24.0", False) == client.take()
        assert client.messages.empty()
    reason = "ends at disconnect: expiry 0"
    site[0].wait_event("session.not_kept", client_id="home-assistant", reason=reason)


def test_a_stale_state_is_missing(home_assistant: Client, zigbee: Client) -> None:
    """A retained reading that is too old is not given to whoever subscribes."""
    announce(zigbee)
    with home_assistant as client:
        zigbee.publish(STATE, "20.0", expiry=1)
        deadline = time.monotonic() + TIMEOUT
        while found := read(client, zigbee):
            assert [(STATE, "20.0", True)] == found
            assert time.monotonic() < deadline, "the state does not expire"
            time.sleep(0.1)


def read(client: Client, zigbee: Client) -> list[tuple[str, str, bool]]:
    """What a subscription to the state brings, up to a message that surely comes behind it."""
    client.subscribe(STATE, MARKER)
    zigbee.publish(MARKER, "", retain=False)
    found = []
    while (message := client.take())[0] != MARKER:
        found.append(message)
    return found


@pytest.mark.parametrize("level", [4, 5])
def test_clients_of_both_levels_read_the_states(
    site: tuple[NodeProcess, NodeProcess], level: int
) -> None:
    """Clients of 3.1.1 may stay: they get the same, without what is left of an expiry."""
    node = site[0]
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=paho.MQTTProtocolVersion(level))
    got: queue.Queue[str] = queue.Queue()
    client.on_message = lambda _c, _u, message: got.put(message.payload.decode())
    client.on_connect = lambda c, *_: c.subscribe("zigbee2mqtt/other")
    client.connect("127.0.0.1", node.mqtt[1])
    client.loop_start()
    with Client(site[1], "other", BRIDGE, retain=True) as zigbee:
        zigbee.publish("zigbee2mqtt/other", "7", expiry=3600)
        assert "7" == got.get(timeout=TIMEOUT)
        zigbee.publish("zigbee2mqtt/other", "")
        zigbee.publish(BRIDGE, "")
    client.disconnect()
    client.loop_stop()
