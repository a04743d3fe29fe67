"""The properties of MQTT 5.0 through the source, the sink, an archive and a replay."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import paho.mqtt.client as mqtt
import pyarrow as pa
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.pipeline.rows import LISTED, NO_PROPERTIES, in_order, message, messages, plain
from tests.pipeline.site import house, until
from tests.pipeline.test_archive import frame
from tests.support.nodes import NodeProcess, topology
from txbroker.pipeline import archive, read_archive, replay
from txbroker.pipeline.archives.archives import write_batch
from txbroker.pipeline.archives.commits import Commits
from txbroker.pipeline.archives.upkeep import ArchiveUpkeep, KeepRules
from txbroker.pipeline.archives.writer import MESSAGES, FileLayout
from txbroker.pipeline.source.row_schema import MESSAGE_ARROW, PROPERTIES

PATIENCE = 60.0
PAIRS = [("b", "1"), ("a", "2"), ("b", "3")]
PLAIN = {name: plain(value) for name, value in LISTED.items()}
OLD = FileLayout(
    kind="messages",
    schema=pa.schema(
        [
            ("zone", pa.string()),
            ("epoch", pa.int64()),
            ("offset", pa.int64()),
            ("topic", pa.string()),
            ("payload", pa.binary()),
            ("qos", pa.int8()),
            ("retain", pa.bool_()),
            ("client_id", pa.string()),
            ("node", pa.string()),
            ("created", pa.timestamp("us", tz="UTC")),
        ]
    ),
)
"""What was written before there were properties."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("node"), topology("solo", zone="")) as running:
        yield running


class Client:
    """A client of MQTT 5.0, or of 3.1.1; `got` has the topics and properties that came."""

    def __init__(self, node: NodeProcess, level: int = 5) -> None:
        protocol = mqtt.MQTTv5 if level == 5 else mqtt.MQTTv311
        self.got: list[tuple[str, dict[str, Any]]] = []
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=protocol)
        self._client.on_message = self._on_message
        self._client.connect(*node.mqtt)
        self._client.loop_start()

    def subscribe(self, topics: str) -> Self:
        is_subscribed = threading.Event()
        self._client.on_subscribe = lambda *_: is_subscribed.set()
        self._client.subscribe(topics, 1)
        assert is_subscribed.wait(PATIENCE)
        return self

    def publish(self, topic: str, properties: Properties | None = None, **keys: Any) -> None:
        """With QoS 1, acknowledged."""
        sent = self._client.publish(topic, b"1", 1, properties=properties, **keys)
        sent.wait_for_publish(PATIENCE)
        assert sent.is_published()

    def wait_for(self, count: int) -> dict[str, dict[str, Any]]:
        """Properties by topic."""
        until(lambda: len(self.got) >= count, f"{count} messages")
        assert count == len(self.got)
        return dict(self.got)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def _on_message(self, client: object, data: object, got: mqtt.MQTTMessage) -> None:
        names = {
            "MessageExpiryInterval": "expiry",
            "PayloadFormatIndicator": "payload_format",
            "ContentType": "content_type",
            "ResponseTopic": "response_topic",
            "CorrelationData": "correlation_data",
            "UserProperty": "user_properties",
        }
        found = {ours: getattr(got.properties, name, None) for name, ours in names.items()}
        self.got.append((got.topic, found))


def every_property() -> Properties:
    made = Properties(PacketTypes.PUBLISH)
    made.MessageExpiryInterval = 4_000_000_000
    made.PayloadFormatIndicator = 1
    made.ContentType = "text/plain"
    made.ResponseTopic = "answers/ü"
    made.CorrelationData = b"\0\xff"
    made.UserProperty = PAIRS
    return made


def expiring(seconds: int) -> Properties:
    made = Properties(PacketTypes.PUBLISH)
    made.MessageExpiryInterval = seconds
    return made


def source(spark: SparkSession, node: NodeProcess, topics: str) -> DataFrame:
    return spark.read.format("txbroker").options(root=node.grpc, filter=topics).load()


def refusal(rows: DataFrame, node: NodeProcess) -> str:
    """The last line of the error of rows that cannot be published."""
    with pytest.raises(PySparkException) as raised:
        rows.write.format("txbroker").mode("append").option("root", node.grpc).save()
    return "".join(traceback.format_exception(raised.value)).splitlines()[-1]


def properties_of(rows: DataFrame) -> dict[str, dict[str, Any]]:
    """By topic."""
    found = rows.select("topic", *PROPERTIES).collect()
    return {row.topic: {name: plain(row[name]) for name in PROPERTIES} for row in found}


def test_rows_have_the_properties_of_publishes(spark: SparkSession, node: NodeProcess) -> None:
    """Null where there are none, as in all that 3.1.1 brings; of use in a query."""
    with Client(node) as client, Client(node, 4) as older:
        client.publish("source/all", every_property())
        client.publish("source/none")
        older.publish("source/older")

    rows = source(spark, node, "source/#")
    expected = {
        "source/all": PLAIN,
        "source/none": NO_PROPERTIES,
        "source/older": NO_PROPERTIES,
    }
    assert expected == properties_of(rows)
    assert ["source/all"] == [
        row.topic for row in rows.where("expiry > 100 AND user_properties[1].value = '2'").collect()
    ]
    assert 2 == rows.where("content_type IS NULL").count()


def test_what_has_expired_is_in_the_history(spark: SparkSession, node: NodeProcess) -> None:
    """With the interval that it came with, though no client gets it any more."""
    with Client(node) as client:
        client.publish("expired/retained", expiring(1), retain=True)
        client.publish("expired/at-once", expiring(0))

        def is_forgotten() -> bool:
            client.publish("expired/mark", retain=True)
            with Client(node).subscribe("expired/#") as other:
                until(lambda: any(topic == "expired/mark" for topic, _ in other.got), "the mark")
                return "expired/retained" not in dict(other.got)

        until(is_forgotten, "the retained message is forgotten")

    found = properties_of(source(spark, node, "expired/#"))
    assert (1, 0, None) == tuple(
        found[f"expired/{name}"]["expiry"] for name in ("retained", "at-once", "mark")
    )


def test_the_interval_is_what_came_to_the_owner(spark: SparkSession, tmp_path: Path) -> None:
    """The time in an outbox is taken off; the time in the journal is not."""
    with house(tmp_path) as (root, kitchen):
        with Client(root) as client:
            client.publish("home/kitchen/first")  # the way to the owner is known
            kitchen.kill()
            began = time.monotonic()
            client.publish("home/kitchen/waited", expiring(1000))
            time.sleep(1.2)
            kitchen.start()
            root.wait_event("outbox.drained")
            held = time.monotonic() - began
            client.publish("home/kitchen/last", expiring(1000))
        found = properties_of(source(spark, root, "home/kitchen/#"))

    assert 1000 - held <= found["home/kitchen/waited"]["expiry"] < 1000
    assert 1000 == found["home/kitchen/last"]["expiry"]


def test_the_sink_publishes_the_columns(spark: SparkSession, node: NodeProcess) -> None:
    """Each row once, also with properties; those are in the history again."""
    fields = ("topic", "payload", *PROPERTIES)
    rows = spark.createDataFrame(
        pa.Table.from_pylist(
            [message("sink", n) for n in range(6)],
            schema=pa.schema([MESSAGE_ARROW.field(name) for name in fields]),
        )
    ).coalesce(1)
    rows = rows.selectExpr(
        "concat('sink/', CAST(payload AS STRING)) AS topic", "payload", *PROPERTIES
    )
    with Client(node).subscribe("sink/#") as client:
        for _ in range(2):
            writer = rows.write.format("txbroker").mode("append")
            writer.options(root=node.grpc, query="properties").save()
        got = client.wait_for(6)

    expected = {f"sink/{n}": PLAIN if n in (2, 5) else NO_PROPERTIES for n in range(6)}
    assert expected == properties_of(source(spark, node, "sink/#"))
    left = [properties.pop("expiry") for properties in got.values() if properties["expiry"]]
    assert 2 == len(left)
    assert all(3_999_999_000 < one <= 4_000_000_000 for one in left)
    without = {name: value for name, value in PLAIN.items() if name != "expiry"}
    assert [without] * 2 == [got["sink/2"], got["sink/5"]]


@pytest.mark.parametrize(
    ("column", "line"),
    [
        ("'1' AS expiry", "column expiry is of type string; bigint or int or smallint or tinyint"),
        (
            "map('a', 'b') AS user_properties",
            "column user_properties is of type map<string,string>;"
            " array<struct<name:string,value:string>> is wanted",
        ),
        ("-1 AS expiry", "column expiry: -1 on topic 't'; 0 to 4294967295 seconds are wanted"),
        ("'a/#' AS response_topic", "column response_topic: 'a/#' on topic 't'; no client can"),
    ],
)
def test_the_sink_tells_mistakes_in_a_line(
    spark: SparkSession, node: NodeProcess, column: str, line: str
) -> None:
    rows = spark.range(1).selectExpr("'t' AS topic", "'1' AS payload", column)
    assert refusal(rows, node).startswith(f"txbroker: {line}")


def test_a_node_that_takes_too_few_at_a_time(spark: SparkSession, tmp_path: Path) -> None:
    """The sink releases no packet id, so the node must take a whole chunk."""
    few = topology("few", zone="", limits={"receive_maximum": 5})
    with NodeProcess(tmp_path, few) as node:
        rows = spark.range(6).selectExpr("'t' AS topic", "'1' AS payload", "9 AS expiry")
        said = refusal(rows.coalesce(1), node)

    line = "txbroker: the node takes 5 publishes of a client at a time, and 6 are needed;"
    assert said.startswith(line)


def test_an_archive_is_replayed_with_properties(
    spark: SparkSession, node: NodeProcess, tmp_path: Path
) -> None:
    """Answers to what is replayed stay below the prefix, too."""
    with Client(node) as client, Client(node, 4) as older:
        client.publish("replay/all", every_property())
        older.publish("replay/older")
    archive(spark, root=node.grpc, archive=tmp_path, filter="replay/#", once=True)
    expected = {"replay/all": PLAIN, "replay/older": NO_PROPERTIES}
    assert expected == properties_of(read_archive(spark, tmp_path))

    with Client(node).subscribe("again/#") as listener:
        assert 2 == replay(spark, archive=tmp_path, root=node.grpc, prefix="again", speed=None)
        got = listener.wait_for(2)

    assert NO_PROPERTIES == got["again/replay/older"]
    assert 3_999_999_000 < got["again/replay/all"].pop("expiry") <= 4_000_000_000
    assert got["again/replay/all"] == {
        **{name: value for name, value in PLAIN.items() if name != "expiry"},
        "response_topic": "again/answers/ü",
    }


def test_a_replay_keeps_to_the_receive_maximum(spark: SparkSession, tmp_path: Path) -> None:
    """More messages than the node takes at a time."""
    write_batch(frame(spark, messages(["home"], range(50))), tmp_path / "archive", "q", 0)
    few = topology("few", zone="", limits={"receive_maximum": 5})
    with NodeProcess(tmp_path, few) as node:
        assert 50 == replay(spark, archive=tmp_path / "archive", root=node.grpc, speed=None)
        assert 50 == source(spark, node, "home/#").count()


def test_an_archive_of_an_older_version(spark: SparkSession, tmp_path: Path) -> None:
    """Its rows have nulls; new ones are added and merged with them into one file."""
    old = messages(["home"], range(20), **NO_PROPERTIES)
    new = messages(["home"], range(20, 40))
    write_batch(frame(spark, old).select(*OLD.schema.names), tmp_path, "q", 0, OLD)

    assert in_order(old) == in_order(read_archive(spark, tmp_path).collect())
    write_batch(frame(spark, new), tmp_path, "q", 1)
    assert in_order(old + new) == in_order(read_archive(spark, tmp_path).collect())
    forever = KeepRules(age=timedelta(days=100_000))
    merged = ArchiveUpkeep(spark, Commits(tmp_path), MESSAGES, forever).all().merged
    assert merged > 0
    assert in_order(old + new) == in_order(read_archive(spark, tmp_path).collect())
    assert 7 == read_archive(spark, tmp_path).where("expiry = 4000000000").count()
