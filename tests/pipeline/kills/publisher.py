"""One client that publishes all the time, whatever happens to its node."""

from __future__ import annotations

import queue
import random
import threading
import time

from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.support.nodes import Address

WINDOW = 200  # publishes that wait for an acknowledgement
TOPICS = ("a/x", "a/y/z", "a/b/x", "b/x", "b/ü", "c")


class Publisher:
    """
    Publishes numbered payloads at every QoS, some with properties; `acknowledged` has those of QoS
    1 and 2.
    """

    def __init__(self, address: Address, seed: int, *, pause: float = 0.002) -> None:
        self.acknowledged: set[bytes] = set()
        self._chance = random.Random(seed)
        self._pause = pause
        self._open: dict[int, bytes] = {}
        # paho holds a lock of its own when it tells of an acknowledgement, perhaps before
        # `publish` has returned the packet id: so the id goes into a queue, and nothing else.
        self._acknowledgements: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._is_stopping = threading.Event()
        self._client = Client(
            CallbackAPIVersion.VERSION2, client_id="publisher", protocol=MQTTProtocolVersion.MQTTv5
        )
        self._client.reconnect_delay_set(0.1, 0.5)
        self._client.on_publish = lambda client, data, mid, *rest: self._acknowledgements.put(mid)
        lasting = Properties(PacketTypes.CONNECT)
        lasting.SessionExpiryInterval = 3600
        self._client.connect_async(*address, clean_start=False, properties=lasting)
        self._client.loop_start()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self, timeout: float = 60.0) -> None:
        """Publish no more and wait for all acknowledgements; raises `TimeoutError`."""
        self._is_stopping.set()
        self._thread.join()
        deadline = time.monotonic() + timeout
        while self._open:
            self._take_acknowledgements()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(self._open)} publishes are not acknowledged")
            time.sleep(0.05)
        self._client.disconnect()
        self._client.loop_stop()

    # internal

    def _run(self) -> None:
        number = 0
        chance = self._chance
        while not self._is_stopping.wait(self._pause):
            self._take_acknowledgements()
            if len(self._open) >= WINDOW or not self._client.is_connected():
                continue
            number += 1
            payload = b"%d:" % number + chance.randbytes(chance.choice((0, 10, 300)))
            qos = chance.choice((0, 1, 1, 2))
            is_retained = chance.random() < 0.1
            properties = self._properties() if chance.random() < 0.3 else None
            topic = chance.choice(TOPICS)
            sent = self._client.publish(topic, payload, qos, is_retained, properties)
            if qos:
                self._open[sent.mid] = payload

    def _properties(self) -> Properties:
        chance = self._chance
        made = Properties(PacketTypes.PUBLISH)
        if chance.random() < 0.5:
            made.MessageExpiryInterval = chance.randrange(1000, 1 << 32)
        made.CorrelationData = chance.randbytes(chance.choice((0, 10, 300)))
        made.UserProperty = [("n", str(n)) for n in range(chance.randrange(4))]
        return made

    def _take_acknowledgements(self) -> None:
        while not self._acknowledgements.empty():
            payload = self._open.pop(self._acknowledgements.get(), None)
            if payload is not None:  # else of QoS 0
                self.acknowledged.add(payload)
