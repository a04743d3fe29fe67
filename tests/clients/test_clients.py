"""
Stock clients, unchanged, on every node, at MQTT 3.1.1 and 5.0: each sees one broker.

Three real nodes; each client library subscribes at one of them and publishes at another, on topics
that the subscriber's node owns, the publisher's node owns, and a third one owns.
"""

from __future__ import annotations

import asyncio
import json
import queue
import shutil
import subprocess
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from itertools import permutations
from pathlib import Path
from typing import Any

import aiomqtt
import gmqtt
import paho.mqtt.client as paho
import pytest

from tests.support.nodes import NodeProcess

TOPICS = ("plant/line/temperature", "a/room/temperature", "b/room/temperature")
QOS = (0, 1, 2)
EXPECTED = sorted((topic, f"q{qos}", qos) for topic in TOPICS for qos in QOS)
PAIRS = list(permutations(("root", "a", "b"), 2))

Got = list[tuple[str, str, int]]


def run_apart(roundtrip: Callable[[], Coroutine[Any, Any, Got]]) -> Got:
    """Run it on an event loop of its own; the tests' own thread is busy with Twisted's."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(asyncio.wait_for(roundtrip(), 20))).result()


@pytest.fixture(params=PAIRS, ids=["-to-".join(pair) for pair in PAIRS])
def ports(request: pytest.FixtureRequest, nodes: dict[str, NodeProcess]) -> tuple[int, int]:
    """(port of the publisher's node, port of the subscriber's)."""
    publisher, subscriber = request.param
    return nodes[publisher].mqtt[1], nodes[subscriber].mqtt[1]


@pytest.fixture(params=[4, 5], ids=["3.1.1", "5.0"])
def level(request: pytest.FixtureRequest) -> int:
    """The protocol level of both clients."""
    found = request.param
    assert isinstance(found, int)
    return found


needs_mosquitto = pytest.mark.skipif(
    shutil.which("mosquitto_sub") is None,
    reason="mosquitto_pub and mosquitto_sub are not installed (Debian: mosquitto-clients)",
)
needs_node = pytest.mark.skipif(
    shutil.which("node") is None or shutil.which("npm") is None,
    reason="node and npm are not installed (Debian: nodejs npm)",
)


def test_paho(ports: tuple[int, int], level: int) -> None:
    """paho-mqtt."""
    got: queue.Queue[tuple[str, str, int]] = queue.Queue()
    subscribed: queue.Queue[int] = queue.Queue()
    version = paho.CallbackAPIVersion.VERSION2
    protocol = paho.MQTTProtocolVersion(level)
    subscriber = paho.Client(version, protocol=protocol)
    subscriber.on_message = lambda _c, _u, m: got.put((m.topic, m.payload.decode(), m.qos))
    subscriber.on_subscribe = lambda _c, _u, mid, _r, _p: subscribed.put(mid)
    publisher = paho.Client(version, protocol=protocol)
    for client, port in ((publisher, ports[0]), (subscriber, ports[1])):
        client.connect("127.0.0.1", port)
        client.loop_start()
    try:
        subscriber.subscribe([(topic, 2) for topic in TOPICS])
        subscribed.get(timeout=10)
        for topic in TOPICS:
            for qos in QOS:
                publisher.publish(topic, f"q{qos}", qos).wait_for_publish(10)

        assert EXPECTED == sorted(got.get(timeout=10) for _ in EXPECTED)
        assert got.empty()
    finally:
        for client in (publisher, subscriber):
            client.disconnect()
            client.loop_stop()


def test_aiomqtt(ports: tuple[int, int], level: int) -> None:
    """aiomqtt."""

    async def roundtrip() -> Got:
        got: Got = []
        protocol = aiomqtt.ProtocolVersion(level)
        async with (
            aiomqtt.Client("127.0.0.1", ports[1], protocol=protocol) as subscriber,
            aiomqtt.Client("127.0.0.1", ports[0], protocol=protocol) as publisher,
        ):
            await subscriber.subscribe([(topic, 2) for topic in TOPICS])
            for topic in TOPICS:
                for qos in QOS:
                    await publisher.publish(topic, f"q{qos}", qos)
            async for message in subscriber.messages:
                got.append((str(message.topic), bytes(message.payload).decode(), message.qos))
                if len(got) == len(EXPECTED):
                    return got
        return got

    assert EXPECTED == sorted(run_apart(roundtrip))


def test_gmqtt(ports: tuple[int, int], level: int) -> None:
    """gmqtt."""

    async def roundtrip() -> Got:
        got: asyncio.Queue[tuple[str, str, int]] = asyncio.Queue()
        subscribed = asyncio.Event()
        subscriber, publisher = gmqtt.Client(""), gmqtt.Client("")
        subscriber.on_message = lambda _c, topic, payload, qos, _p: got.put_nowait(
            (topic, payload.decode(), qos)
        )
        subscriber.on_subscribe = lambda *_: subscribed.set()
        await publisher.connect("127.0.0.1", ports[0], version=level)
        await subscriber.connect("127.0.0.1", ports[1], version=level)
        subscriber.subscribe([gmqtt.Subscription(topic, qos=2) for topic in TOPICS])
        await subscribed.wait()
        for topic in TOPICS:
            for qos in QOS:
                publisher.publish(topic, f"q{qos}", qos=qos)
        received = [await got.get() for _ in EXPECTED]
        await publisher.disconnect()
        await subscriber.disconnect()
        return received

    assert EXPECTED == sorted(run_apart(roundtrip))


@needs_mosquitto
def test_mosquitto_clients(ports: tuple[int, int], level: int) -> None:
    """mosquitto_pub and mosquitto_sub."""
    version = {4: "311", 5: "5"}[level]
    address = ["-h", "127.0.0.1", "-V", version, "-p"]
    filters = [word for topic in TOPICS for word in ("-t", topic)]
    subscriber = subprocess.Popen(
        # `-d` prints the SUBACK, which tells when to publish.
        ["stdbuf", "-oL", "mosquitto_sub", *address, str(ports[1]), *filters]
        + ["-q", "2", "-C", str(len(EXPECTED)), "-W", "20", "-d", "-F", "got %t %p %q"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert subscriber.stdout is not None
    for line in subscriber.stdout:
        if line.startswith("Subscribed"):
            break
    for topic in TOPICS:
        for qos in QOS:
            command = ["mosquitto_pub", *address, str(ports[0]), "-t", topic, "-m", f"q{qos}"]
            subprocess.run([*command, "-q", str(qos)], check=True, timeout=20)
    output, _ = subscriber.communicate(timeout=25)

    words = [line.split() for line in output.splitlines() if line.startswith("got ")]
    assert EXPECTED == sorted((topic, payload, int(qos)) for _, topic, payload, qos in words)
    assert subscriber.returncode == 0


@needs_node
def test_mqttjs(ports: tuple[int, int], level: int, mqttjs: Path) -> None:
    """mqtt.js."""
    command = ["node", str(mqttjs / "roundtrip.js"), str(level), str(ports[1]), str(ports[0])]
    command += TOPICS
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)

    assert done.returncode == 0, done.stderr
    assert EXPECTED == sorted(
        (topic, payload, qos) for topic, payload, qos in json.loads(done.stdout)
    )
