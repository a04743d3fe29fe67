"""
The MQTT clients of the demo, stock paho, and a `Tally` that they write into. A client of MQTT 5.0
publishes readings through one node, with an expiry: nobody gets a reading that is too old to say
anything. At another node one of MQTT 3.1.1 subscribes to all of them, one of MQTT 5.0 to a few.

Threads: each paho client has one of its own, which calls back; `run` is called in a third; the
display reads in a fourth. The threads meet in `Tally` (one lock) and in the
publisher's queue of acknowledgements.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterable
from typing import Any

import attrs
import paho.mqtt.client as mqtt
from accounting import Count, Ledger
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from readings import Reading, decode, encode

WINDOW = 500  # QoS 1 publishes that may be unacknowledged
MAX_LAG = 5_000  # acknowledged readings on their way: half of what a node queues for a session
CONNECT_TIMEOUT = 30.0
PATIENCE = 10.0  # seconds without progress after which waiting for the rest makes no sense
QUIET = 0.3  # seconds of silence after which no late duplicate is expected any more

Address = tuple[str, int]


class ReplayError(Exception):
    """
    The replay cannot go on; the text is one line.
    """


@attrs.frozen(kw_only=True, slots=True)
class Snapshot:
    """
    The state to show at one moment. `latest` has the last reading of each topic and when it came
    (monotonic seconds); `foreign` counts messages that no replay of ours has published.
    """

    latest: dict[str, tuple[Reading, float]]
    counts: dict[str, Count]
    issued: int
    foreign: int

    @property
    def total(self) -> Count:
        """
        All zones together.
        """
        return sum(self.counts.values(), Count())


class Tally:
    """
    The ledger of this run, shared between threads, with the last reading of each topic.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ledger = Ledger()
        self._issued: dict[str, int] = {}
        self._latest: dict[str, tuple[Reading, float]] = {}
        self._foreign = 0
        self._last_arrival = time.monotonic()

    # from the publisher

    def issue(self, topic: str) -> int:
        """
        The next sequence number of a topic, counted from 1.
        """
        with self._lock:
            self._issued[topic] = seq = self._issued.get(topic, 0) + 1
            return seq

    def acknowledged(self, topic: str, seq: int) -> None:
        """
        See `LedgerLog.acknowledged`.
        """
        with self._lock:
            self._ledger.acknowledged(topic, seq)

    # from the subscriber

    def received(self, topic: str, payload: bytes | bytearray) -> None:
        """
        Count a message that arrived. Messages that somebody else publishes by hand are told apart
        by their form, or by a number that was never issued.
        """
        decoded = decode(topic, payload)
        with self._lock:
            self._last_arrival = time.monotonic()
            if decoded is None or not 1 <= decoded[0] <= self._issued.get(topic, 0):
                self._foreign += 1
                return
            seq, reading = decoded
            self._ledger.received(topic, seq)
            self._latest[topic] = (reading, self._last_arrival)

    # from whoever waits or shows

    def lag(self) -> int:
        """
        See `LedgerLog.lag`.
        """
        with self._lock:
            return self._ledger.lag()

    def silence(self) -> float:
        """
        Seconds since anything arrived.
        """
        with self._lock:
            return time.monotonic() - self._last_arrival

    def lost(self) -> list[tuple[str, int]]:
        """
        See `LedgerLog.lost`; final only after `settle`.
        """
        with self._lock:
            return self._ledger.lost()

    def snapshot(self, zones: Iterable[str]) -> Snapshot:
        """
        A copy of everything, the counts by zone.
        """
        with self._lock:
            return Snapshot(
                latest=dict(self._latest),
                counts=self._ledger.by_zone(zones),
                issued=sum(self._issued.values()),
                foreign=self._foreign,
            )

    def settle(self, abort: threading.Event, patience: float = PATIENCE) -> None:
        """
        Wait until all that was acknowledged has arrived and the line is quiet. The wait also ends
        when nothing has arrived for `patience` seconds, or for `abort`.
        """
        begun = time.monotonic()
        while not abort.wait(0.05):
            silence = min(self.silence(), time.monotonic() - begun)
            if silence > patience or (silence > QUIET and not self.lost()):
                return


class _Client:
    """
    A paho client that connects at once, says so, and reconnects by itself later on.
    """

    def __init__(self, name: str, level: MQTTProtocolVersion, clean: bool | None = None) -> None:
        self.up = threading.Event()
        self._paho = mqtt.Client(CallbackAPIVersion.VERSION2, name, clean, protocol=level)
        self._paho.reconnect_delay_set(1, 1)
        self._paho.on_connect = self._on_connect
        self._paho.on_disconnect = self._on_disconnect

    def start(self, address: Address) -> None:
        """
        Connect to a node and wait until it has accepted; ReplayError if it does not.
        """
        try:
            self._paho.connect(*address)
        except OSError as error:
            raise ReplayError(f"no connection to {address[0]}:{address[1]}: {error}") from error
        self._paho.loop_start()
        if not self.up.wait(CONNECT_TIMEOUT):
            self.stop()
            raise ReplayError(f"{address[0]}:{address[1]} did not accept the client")

    def stop(self) -> None:
        """
        Disconnect politely; returns when the client's thread has ended.
        """
        self._paho.disconnect()
        self._paho.loop_stop()

    def _on_connect(
        self, client: mqtt.Client, data: Any, flags: Any, reason: ReasonCode, properties: Any
    ) -> None:
        if not reason.is_failure:
            self.up.set()

    def _on_disconnect(self, *details: Any) -> None:
        self.up.clear()


class _Subscriber(_Client):
    """
    A client that subscribes to one filter at QoS 1, and again after a lost connection.
    """

    def __init__(
        self,
        name: str,
        topic_filter: str,
        level: MQTTProtocolVersion,
        clean: bool | None = None,
    ) -> None:
        super().__init__(name, level, clean)
        self._filter = topic_filter
        self._granted = threading.Event()
        self._paho.on_message = self._on_message
        self._paho.on_subscribe = self._on_subscribe

    def start(self, address: Address) -> None:
        """
        Connect and wait for the SUBACK: from then on every publish must arrive.
        """
        super().start(address)
        if not self._granted.wait(CONNECT_TIMEOUT):
            self.stop()
            raise ReplayError(f"{address[0]}:{address[1]} did not grant {self._filter} at QoS 1")

    def _on_connect(self, client: mqtt.Client, *details: Any) -> None:
        super()._on_connect(client, *details)
        client.subscribe(self._filter, qos=1)

    def _on_subscribe(
        self, client: mqtt.Client, data: Any, mid: int, codes: list[ReasonCode], properties: Any
    ) -> None:
        if codes[0].value == 1:
            self._granted.set()

    def _on_message(self, client: mqtt.Client, data: Any, message: mqtt.MQTTMessage) -> None:
        raise NotImplementedError


class Subscriber(_Subscriber):
    """
    Tells the tally all that arrives. Messages published while it had no connection are counted as
    lost, but with `is_lasting`. The session then outlives the connection, and what it gets is in
    the ledger.
    """

    def __init__(self, tally: Tally, topic_filter: str, *, is_lasting: bool = False) -> None:
        super().__init__("home-table", topic_filter, mqtt.MQTTv311, not is_lasting)
        self._tally = tally

    def _on_message(self, client: mqtt.Client, data: Any, message: mqtt.MQTTMessage) -> None:
        self._tally.received(message.topic, message.payload)


class Panel(_Subscriber):
    """
    Counts the readings that arrive, and those that say the rest of their expiry, which a client of
    MQTT 5.0 is told.
    """

    def __init__(self, topic_filter: str) -> None:
        super().__init__("home-panel", topic_filter, mqtt.MQTTv5)
        self.received = self.expiring = 0

    def settle(self, count: int, abort: threading.Event, patience: float = PATIENCE) -> None:
        """
        Wait until so many have arrived, for `patience` seconds, or for `abort`.
        """
        deadline = time.monotonic() + patience
        while self.received < count and time.monotonic() < deadline and not abort.wait(0.05):
            pass

    def _on_message(self, client: mqtt.Client, data: Any, message: mqtt.MQTTMessage) -> None:
        self.expiring += hasattr(message.properties, "MessageExpiryInterval")
        self.received += 1


class Publisher(_Client):
    """
    Publishes readings at QoS 1 with a window of its own. At most `window` publishes wait for their
    acknowledgement, and at most `max_lag` acknowledged ones for their arrival. So neither paho nor
    a node has to queue without bound, whatever the machine's speed. Readings expire after `expiry`
    seconds (0: never).
    """

    def __init__(
        self, tally: Tally, window: int = WINDOW, max_lag: int = MAX_LAG, expiry: int = 0
    ) -> None:
        super().__init__("home-replay", mqtt.MQTTv5)
        self._properties = Properties(PacketTypes.PUBLISH)
        if expiry:
            self._properties.MessageExpiryInterval = expiry
        self._tally = tally
        self._window = window
        self._max_lag = max_lag
        self._in_flight: dict[int, tuple[str, int]] = {}
        self._acks: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._last_ack = time.monotonic()
        # Both of paho's own limits are off. The window here is the limit, and paho's costs a walk
        # over all messages in flight at each acknowledgement.
        self._paho.max_inflight_messages_set(0)
        self._paho.max_queued_messages_set(0)
        # Paho's thread calls, perhaps before publish() has returned the packet id. So the id only
        # goes into a queue, and the thread that published looks it up.
        self._paho.on_publish = lambda client, data, mid, *details: self._acks.put(mid)

    def run(
        self, readings: Iterable[Reading], rate: float, stop: threading.Event, patience: float
    ) -> None:
        """
        Publish readings until they end or `stop` is set, `rate` a second (0: as fast as the
        window allows). ReplayError if nothing moves any more for `patience` seconds.
        """
        due = time.monotonic()
        for count, reading in enumerate(readings):
            if rate:
                due = max(due + 1 / rate, time.monotonic() - 0.5)  # catches up half a second
                stop.wait(max(0.0, due - time.monotonic()))
            if stop.is_set() or not self._wait_for_room(stop, patience):
                return
            if count % 100 == 0 and not self._wait_for_arrivals(stop, patience):
                return
            self._send(reading)

    def drain(self, abort: threading.Event, patience: float = PATIENCE) -> int:
        """
        Wait for the acknowledgements that are still due, until none has come for `patience`
        seconds or `abort` is set. Returns how many never came.
        """
        self._last_ack = time.monotonic()
        while self._in_flight and not abort.is_set() and self._since_ack() < patience:
            self._take_ack()
        return len(self._in_flight)

    def _send(self, reading: Reading) -> None:
        seq = self._tally.issue(reading.topic)
        payload = encode(reading, seq)
        while True:
            sent = self._paho.publish(reading.topic, payload, 1, properties=self._properties)
            if sent.rc != mqtt.MQTT_ERR_QUEUE_SIZE:
                break  # else: this packet id is still in use, after a wrap; the next one, then
        self._in_flight[sent.mid] = (reading.topic, seq)

    def _wait_for_room(self, stop: threading.Event, patience: float) -> bool:
        while not self._acks.empty():
            self._take_ack()
        while len(self._in_flight) >= self._window or not self.up.is_set():
            if stop.is_set():
                return False
            if self._since_ack() > patience:
                waiting = len(self._in_flight)
                raise ReplayError(f"no acknowledgement for {patience:.0f} s, {waiting} are due")
            self._take_ack()
        return True

    def _wait_for_arrivals(self, stop: threading.Event, patience: float) -> bool:
        while (lag := self._tally.lag()) > self._max_lag:
            if self._tally.silence() > patience:
                raise ReplayError(f"nothing arrived for {patience:.0f} s, {lag} readings are due")
            if stop.wait(0.01):
                return False
        return True

    def _take_ack(self) -> None:
        try:
            mid = self._acks.get(timeout=0.1)
        except queue.Empty:
            return
        self._last_ack = time.monotonic()
        self._tally.acknowledged(*self._in_flight.pop(mid))

    def _since_ack(self) -> float:
        return time.monotonic() - self._last_ack
