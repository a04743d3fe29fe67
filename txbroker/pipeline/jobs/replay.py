"""
SHELL: publishes a range of an archive again.

The rows come to this process in the order in which the zones received them. A single MQTT client
publishes them with QoS 1, so messages of a topic stay in order. At most `WINDOW` messages are
unacknowledged. The progress is the place of the last message up to which all are acknowledged. An
interrupted replay resumes there: some messages may be published twice, but none is left out.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import attrs

from txbroker.model.errors import PipelineError
from txbroker.model.topics import TopicError, validate_topic_name
from txbroker.pipeline.archives.archives import microseconds, read_archive
from txbroker.pipeline.source.row_properties import publish_properties
from txbroker.pipeline.source.row_publisher import PublishRow, mqtt_address
from txbroker.pipeline.source.row_schema import PROPERTIES
from txbroker.pipeline.spark.journal_jobs import Report, no_report

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WINDOW = 500
"""Maximum number of unacknowledged messages."""
PATIENCE = 60.0
"""Seconds without any acknowledgement after which a replay fails."""

_ROWS_AT_ONCE = 20_000
_SAVE_EVERY = 1.0
_LOOK = 0.2

Place = tuple[int, str, int, int]
"""Due time (microseconds since 1970), zone, epoch and offset: the order of a replay."""


def replay(
    spark: SparkSession,
    *,
    archive: str | os.PathLike[str],
    root: str | None = None,
    mqtt: str | None = None,
    filter: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    prefix: str = "",
    speed: float | None = 1.0,
    retain: bool = False,
    resume: str | os.PathLike[str] | None = None,
    report: Report = no_report,
    is_stopping: Callable[[], bool] = lambda: False,
) -> int:
    """
    Publish the messages of an archive again; return the number of acknowledged messages.

    `filter`, `since` and `until` (exclusive) select the messages. A `prefix` is put before each
    topic. The messages go through the node at `root` (gRPC address) or at `mqtt` (MQTT address).
    With `speed` 2 the replay is twice as fast as the original, with None as fast as possible.
    Without `retain` no message is published as retained. Properties of MQTT 5.0 are published
    again. A message expiry interval begins anew, and `prefix` is put before response topics, too.
    `resume` names a file for the progress, which is created, read if it exists, and deleted at the
    end. Raises `PipelineError`, and Spark's errors.
    """
    _check(prefix, speed)
    address = mqtt or _address(root)
    told = {
        "archive": str(Path(archive).resolve()),
        "filter": filter,
        "since": microseconds(since),
        "until": microseconds(until),
        "prefix": prefix,
    }
    progress = _Progress(None if resume is None else Path(resume), told)
    rows = read_archive(spark, archive, filter=filter, since=since, until=until)
    total, are_listed = _counted(rows)
    report("begin", {"messages": total})
    with _Publisher(address, progress, is_level_5=are_listed) as publisher:
        pace = _Pace(speed, is_stopping)
        for row in ordered_rows(rows, total, progress.place).toLocalIterator(True):
            if not pace.wait_for(row.due):
                break
            place = (row.due, row.zone, row.epoch, row.offset)
            publisher.publish(place, _publish(row, prefix, retain=retain))
            report("published", {"messages": publisher.count})
        publisher.drain()
        report("acknowledged", {"messages": publisher.count})
    if not is_stopping():
        progress.finish()
    return publisher.count


def ordered_rows(rows: DataFrame, count: int, after: Place | None) -> DataFrame:
    """
    Return the rows of a replay in order: `due, zone, epoch, offset, topic, payload, retain`, and
    the columns of properties.

    About `count` rows are split into partitions small enough for one process. A message is due at
    the time of its receipt, but never before an earlier message of its zone. Clocks are set back
    sometimes, offsets never.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    places = ("due", "zone", "epoch", "offset")
    before = _until_here(Window.partitionBy("zone").orderBy("epoch", "offset"))
    due = F.max(F.unix_micros("created")).over(before)
    found = rows.withColumn("due", due).select(*places, "topic", "payload", "retain", *PROPERTIES)
    if after is not None:
        due_at, zone, *place = after
        last = [F.lit(due_at).cast("long"), F.lit(zone), *(F.lit(n).cast("long") for n in place)]
        found = found.where(F.struct(*places) > F.struct(*last))
    parts = count // _ROWS_AT_ONCE + 1
    return found.repartitionByRange(parts, *places).sortWithinPartitions(*places)


# internal


def _counted(rows: DataFrame) -> tuple[int, bool]:
    """Return the number of rows, and whether one has a property of MQTT 5.0."""
    from pyspark.sql import functions as F

    has_property = F.expr(" OR ".join(f"{name} IS NOT NULL" for name in PROPERTIES))
    total, are_listed = rows.agg(F.count("*"), F.bool_or(has_property)).collect()[0]
    return total, bool(are_listed)


def _publish(row: Any, prefix: str, *, retain: bool) -> PublishRow:
    """Return what a row is published as; raises `PipelineError`."""
    topic = row.topic
    properties = {name: row[name] for name in PROPERTIES}
    if prefix:
        topic = f"{prefix}/{topic}"
        if properties["response_topic"] is not None:
            # Answers to what is replayed are no business of those who asked long ago.
            properties["response_topic"] = f"{prefix}/{properties['response_topic']}"
    return PublishRow(
        topic, bytes(row.payload), 1, retain and row.retain, publish_properties(properties, topic)
    )


def _until_here(window: Any) -> Any:
    from pyspark.sql import Window

    return window.rowsBetween(Window.unboundedPreceding, Window.currentRow)


def _address(root: str | None) -> str:
    if root is None:
        raise PipelineError("replay needs a node: its gRPC address as root or its MQTT address")
    try:
        return mqtt_address(root)
    except OSError as error:
        raise PipelineError(str(error)) from None


def _check(prefix: str, speed: float | None) -> None:
    if speed is not None and not 0 < speed < float("inf"):
        raise PipelineError(f"speed {speed:g}: a number above 0 is wanted; 2 is twice as fast")
    if prefix:
        try:
            validate_topic_name(prefix)
        except TopicError as error:
            raise PipelineError(f"prefix {prefix!r}: {error}") from None


class _Pace:
    """The times at which messages are due to leave."""

    def __init__(self, speed: float | None, is_stopping: Callable[[], bool]) -> None:
        self._speed = speed
        self._is_stopping = is_stopping
        self._begin: tuple[float, int] | None = None

    def wait_for(self, due: int) -> bool:
        """Wait until a message is due; return False if the replay must stop."""
        if self._speed is None:
            return not self._is_stopping()
        if self._begin is None:
            self._begin = (time.monotonic(), due)
        began, first = self._begin
        leaves = began + (due - first) / 1_000_000 / self._speed
        while not self._is_stopping():
            left = leaves - time.monotonic()
            if left <= 0:
                return True
            time.sleep(min(left, _LOOK))
        return False


class _Progress:
    """The progress of a replay, in a file if wanted."""

    def __init__(self, path: Path | None, told: Mapping[str, Any]) -> None:
        """Read the file if it exists; raises `PipelineError`."""
        self.place: Place | None = None
        self._path = path
        self._told = dict(told)
        self._saved = time.monotonic()
        if path is None or not path.exists():
            return
        try:
            value = json.loads(path.read_text())
            due, zone, epoch, offset = value.pop("place")
        except (OSError, ValueError, AttributeError, KeyError, TypeError):
            raise PipelineError(f"{path}: not the state of a replay; name another file") from None
        if value != self._told:
            raise PipelineError(
                f"{path}: the state of another replay (other archive, filter, range or prefix);"
                " name another file, or delete this one to begin anew"
            )
        self.place = (int(due), str(zone), int(epoch), int(offset))

    def save(self, *, now: bool = False) -> None:
        """Write the progress every `_SAVE_EVERY` seconds, or `now`; raises `PipelineError`."""
        if self._path is None or self.place is None:
            return
        if now or time.monotonic() - self._saved > _SAVE_EVERY:
            self._saved = time.monotonic()
            beside = self._path.with_name(f"{self._path.name}.tmp")
            try:
                beside.write_text(json.dumps({**self._told, "place": self.place}))
                beside.replace(self._path)
            except OSError as error:
                raise PipelineError(
                    f"{self._path}: {error.strerror}; name a file that can be written"
                ) from None

    def finish(self) -> None:
        """Delete the file of a finished replay."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)


@attrs.define(eq=False)
class _Sent:
    """A published message."""

    place: Place
    is_acknowledged: bool = False


class _Publisher:
    """
    A client that publishes in order.

    Paho's thread reads acknowledgements; everything else runs in the caller's thread.
    """

    def __init__(self, address: str, progress: _Progress, *, is_level_5: bool) -> None:
        import paho.mqtt.client as paho
        from paho.mqtt.enums import CallbackAPIVersion

        self.count = 0
        self._address = address
        self._progress = progress
        self._changed = threading.Condition()
        self._sent: deque[_Sent] = deque()  # in order
        self._open: dict[int, _Sent] = {}  # by packet id
        self._early: set[int] = set()  # ids acknowledged before `publish` returned them
        self._refused = ""
        self._window = 0  # no message may leave before CONNACK names the receive maximum
        self._client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=f"txbroker-replay-{secrets.token_hex(6)}",
            # Messages without properties also go to brokers that know no 5.0.
            protocol=paho.MQTTv5 if is_level_5 else paho.MQTTv311,
        )
        self._client.max_inflight_messages_set(WINDOW)
        self._client.reconnect_delay_set(1, 1)
        self._client.on_connect = self._on_connect
        self._client.on_publish = self._on_publish

    def __enter__(self) -> Self:
        host, _, port = self._address.rpartition(":")
        try:
            self._client.connect(host.strip("[]"), int(port))
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise PipelineError(
                f"{self._address}: cannot be reached: {reason}; is it a node's MQTT address?"
            ) from None
        self._client.loop_start()
        return self

    def __exit__(self, *_: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()
        self._settle(now=True)

    def publish(self, place: Place, row: PublishRow) -> None:
        """Publish a row as soon as the window has room; raises `PipelineError`."""
        self._wait(lambda: len(self._open) < self._window)
        sent = _Sent(place)
        self._sent.append(sent)
        packet_id = self._client.publish(*row).mid
        with self._changed:
            if packet_id in self._early:
                self._early.discard(packet_id)
                sent.is_acknowledged = True
            else:
                self._open[packet_id] = sent
        self._settle()

    def drain(self) -> None:
        """Wait for all acknowledgements; raises `PipelineError`."""
        self._wait(lambda: not self._open)
        self._settle()

    # internal

    def _settle(self, *, now: bool = False) -> None:
        while self._sent and self._sent[0].is_acknowledged:
            self._progress.place = self._sent.popleft().place
            self.count += 1
        self._progress.save(now=now)

    def _wait(self, is_done: Callable[[], bool]) -> None:
        """Wait for acknowledgements until a condition holds; raises `PipelineError`."""
        with self._changed:
            open_before, since = len(self._open), time.monotonic()
            while not is_done():
                self._changed.wait(_LOOK)
                if len(self._open) < open_before:
                    open_before, since = len(self._open), time.monotonic()
                if self._refused or time.monotonic() - since > PATIENCE:
                    why = self._refused or f"no acknowledgement in {PATIENCE:g} s"
                    raise PipelineError(
                        f"{self._address}: {why}; {self.count} messages were acknowledged"
                    )

    def _on_connect(self, client: Any, data: Any, flags: Any, code: Any, properties: Any) -> None:
        with self._changed:
            self._window = min(WINDOW, getattr(properties, "ReceiveMaximum", WINDOW))
            self._refused = f"connection refused: {code}" if code.is_failure else ""
            self._changed.notify_all()

    def _on_publish(self, client: Any, data: Any, packet_id: int, code: Any, _: Any) -> None:
        with self._changed:
            if code.is_failure:
                self._refused = f"a message is refused: {code}"
                self._changed.notify_all()
                return
            sent = self._open.pop(packet_id, None)
            if sent is None:
                self._early.add(packet_id)
            else:
                sent.is_acknowledged = True
            self._changed.notify_all()
