"""
SHELL: publishes rows to an MQTT listener of a node, and awaits the answers; on Spark's workers.

`sink.py` explains the sessions and packet ids.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Self

import paho.mqtt.client as mqtt
import pyarrow as pa
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from txbroker.model.errors import PipelineError
from txbroker.model.topics import TopicError, validate_topic_name
from txbroker.pipeline.source.row_properties import LONGEST, publish_properties
from txbroker.pipeline.source.row_schema import PROPERTIES
from txbroker.pipeline.source.source_options import SinkOptions

PATIENCE = 60.0
"""Seconds that a node may give no answer: a restart, or a short network partition."""

PAUSE = 0.2
"""Seconds between two attempts to connect."""

SLICE = 200
"""Publishes between two checks for answers."""

QOS = 1
"""QoS of rows without the column `qos`, or with null in it."""

LAST_ID = 65_535
"""The highest packet id, and the receive maximum of a node that names none."""

REFUSED = 0x80
"""Lowest reason code of an answer that refuses a publish."""


class PublishRow(NamedTuple):
    """A publish of a row; None as its properties: it has none."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    properties: Properties | None = None


def rows_of(batches: Iterator[pa.RecordBatch]) -> list[PublishRow]:
    """
    Return the rows of a partition, sorted by topic; rows of one topic stay in their order.

    Spark may bring topics in another order when a task is repeated. After the sort, the same rows
    have the same places. Rows of one topic have to arrive in the same order. Raises
    `PipelineError`.
    """
    rows = [row for batch in batches for row in _rows(batch)]
    for topic in {row.topic for row in rows}:
        try:
            validate_topic_name(topic)
        except (TopicError, TypeError, AttributeError) as error:
            raise PipelineError(
                f"column topic: {topic!r} cannot be published to: {error}"
            ) from None
    rows.sort(key=lambda row: row.topic)
    return rows


def _rows(batch: pa.RecordBatch) -> Iterator[PublishRow]:
    count = batch.num_rows
    names = batch.schema.names
    qos = batch.column("qos").to_pylist() if "qos" in names else [QOS] * count
    retain = batch.column("retain").to_pylist() if "retain" in names else [False] * count
    payloads = batch.column("payload").cast(pa.binary()).to_pylist()
    topics = batch.column("topic").to_pylist()
    given = [name for name in PROPERTIES if name in names]
    properties = batch.select(given).to_pylist() if given else [{}] * count
    for topic, payload, level, flag, own in zip(
        topics, payloads, qos, retain, properties, strict=True
    ):
        chosen = QOS if level is None else level
        if chosen not in (0, 1, 2):
            raise PipelineError(f"column qos: {chosen!r} on topic {topic!r}; 0, 1 or 2 is wanted")
        yield PublishRow(topic, payload or b"", chosen, bool(flag), publish_properties(own, topic))


class RowPublisher:
    """Publishes the rows of one task to one node."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._address: tuple[str, int] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._address = None

    def publish(self, client_id: str, rows: Sequence[PublishRow]) -> None:
        """
        Publish all rows, each exactly once even if the call is repeated; raises `PipelineError`.
        """
        # Rows without properties also go to brokers that know no 5.0.
        is_level_5 = any(row.properties is not None for row in rows)
        session: _Session | None = None
        since, taken = time.monotonic(), 0
        while True:
            try:
                session = _Session(self._where(), client_id, clean=False, is_level_5=is_level_5)
                session.publish(rows)
                return
            except OSError as error:
                trouble = str(error) or type(error).__name__
            finally:
                if session is not None:
                    session.close()
            if session is not None and len(session.taken) > taken:
                since, taken = time.monotonic(), len(session.taken)
            elif time.monotonic() - since > PATIENCE:
                raise PipelineError(f"{self._name()} does not take what is published: {trouble}")
            time.sleep(PAUSE)

    def forget(self, client_id: str) -> bool:
        """End a session; return True if the node had it."""
        try:
            probe = _Session(self._where(), client_id, clean=False)
            probe.close()
            _Session(self._where(), client_id, clean=True).close()
            return probe.was_present
        except OSError:
            return False  # The session expires later.

    # internal

    def _where(self) -> tuple[str, int]:
        """Return the node's MQTT address; raises `PipelineError` or `OSError`."""
        if self._address is None:
            text = self._options.mqtt or mqtt_address(self._options.root)
            host, _, port = text.rpartition(":")
            self._address = (host.strip("[]"), int(port))
        return self._address

    def _name(self) -> str:
        if self._address is None:
            return f"the node at {self._options.root}"
        host, port = self._address
        return f"the node at {host}:{port}"


def mqtt_address(root: str) -> str:
    """
    Ask the node at `root` for its MQTT address.

    Raises `PipelineError` if the node names none, and `OSError` if it does not answer.
    """
    import grpc

    from txbroker.pipeline.source.nodes import Stubs
    from txbroker.rpc.channels import CALL_TIMEOUT, why
    from txbroker.v1.control_pb2 import StatusRequest

    try:
        with Stubs() as stubs:
            reply = stubs.control(root).Status(StatusRequest(), timeout=CALL_TIMEOUT)
    except grpc.RpcError as error:
        raise OSError(why(root, error)) from None
    if not reply.mqtt:
        raise PipelineError(
            f"the node at {root} does not say where MQTT clients connect; add the option mqtt"
        )
    return reply.mqtt


class _Client(mqtt.Client):
    """Paho's client, which releases no packet id. The overridden method has paho's name."""

    on_answer: Callable[[int, int], None]

    def _send_pubrel(self, mid: int) -> MQTTErrorCode:
        # Paho passes over the reason code, which is behind the packet id.
        packet = bytes(self._in_packet["packet"])
        self.on_answer(mid, packet[2] if len(packet) > 2 else 0)
        return MQTTErrorCode.MQTT_ERR_SUCCESS


class _Session:
    """A connection of a client; failures are `OSError`."""

    def __init__(
        self, address: tuple[str, int], client_id: str, *, clean: bool, is_level_5: bool = False
    ) -> None:
        self.taken: set[int] = set()
        self.was_present = False
        self._refused: str | None = None
        self._is_open = False
        self._receive_maximum = LAST_ID
        self._client = _Client(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            clean_session=None if is_level_5 else clean,
            protocol=mqtt.MQTTv5 if is_level_5 else mqtt.MQTTv311,
            reconnect_on_failure=False,
        )
        self._client.on_answer = self._on_answer
        self._client.on_connect = self._on_connect
        self._client.max_inflight_messages_set(0)
        self._client.connect_timeout = PATIENCE / 4
        if is_level_5:
            properties = Properties(PacketTypes.CONNECT)
            properties.SessionExpiryInterval = LONGEST
            self._client.connect(*address, clean_start=clean, properties=properties)
        else:
            self._client.connect(*address)
        self._run(lambda: self._is_open)

    def publish(self, rows: Sequence[PublishRow]) -> None:
        """
        Send all rows, row n with packet id n, and await the answers for QoS 1 and 2.

        Raises `PipelineError` for rows that the node cannot take at once, and `OSError`.
        """
        numbered = sum(row.qos > 0 for row in rows)
        if numbered > self._receive_maximum:
            raise PipelineError(
                f"the node takes {self._receive_maximum} publishes of a client at a time, and"
                f" {numbered} are needed; set its limits.receive_maximum to {LAST_ID}"
            )
        for place, row in enumerate(rows, start=1):
            # Only QoS 2 to the node prevents duplicates. QoS 0 promises nothing and has no answer.
            qos = 2 if row.qos else 0
            sent = self._client.publish(row.topic, row.payload, qos, row.retain, row.properties)
            if sent.mid != place:
                raise PipelineError(f"paho numbers its publishes {sent.mid}, not {place}")
            if place % SLICE == 0:
                self._work(0.0)
        self._run(lambda: len(self.taken) >= numbered and not self._client.want_write())

    def close(self) -> None:
        """Send DISCONNECT; the node keeps the session."""
        self._client.disconnect()
        while self._client.want_write() and self._client.loop(PAUSE) == 0:
            pass

    # internal

    def _on_answer(self, packet_id: int, reason_code: int) -> None:
        if reason_code >= REFUSED:
            self._refused = f"a publish is refused with reason code {reason_code:#04x}"
        else:
            self.taken.add(packet_id)

    def _on_connect(
        self,
        client: object,
        data: object,
        flags: mqtt.ConnectFlags,
        code: object,
        properties: Properties | None,
    ) -> None:
        if getattr(code, "is_failure", False):
            self._refused = f"the connection is refused: {code}"
        self._receive_maximum = getattr(properties, "ReceiveMaximum", LAST_ID)
        self._is_open = True
        self.was_present = flags.session_present

    def _run(self, is_done: Callable[[], bool]) -> None:
        since, seen = time.monotonic(), 0
        while not is_done():
            self._work(PAUSE)
            if self._refused is not None:
                raise OSError(self._refused)
            if len(self.taken) > seen:
                since, seen = time.monotonic(), len(self.taken)
            elif time.monotonic() - since > PATIENCE:
                raise OSError("no answer in time")

    def _work(self, timeout: float) -> None:
        code = self._client.loop(timeout)
        if code != MQTTErrorCode.MQTT_ERR_SUCCESS:
            raise OSError(self._refused or f"the connection is lost ({mqtt.error_string(code)})")
