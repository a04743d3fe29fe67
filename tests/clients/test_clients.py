"""
Stock clients, unchanged, on every node: each sees one broker.

Three real nodes; each client library subscribes at one of them and publishes at another, on topics
that the subscriber's node owns, the publisher's node owns, and a third one owns.
"""

from __future__ import annotations

import asyncio
import json
import queue
import shutil
import subprocess
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import permutations
from pathlib import Path
from typing import Any

import aiomqtt
import gmqtt
import paho.mqtt.client as paho
import pytest

from tests.support.nodes import NodeProcess, topology

MQTTJS = Path(__file__).with_name("mqttjs")
TOPICS = ("plant/line/temperature", "a/room/temperature", "b/room/temperature")
QOS = (0, 1, 2)
EXPECTED = sorted((topic, f"q{qos}", qos) for topic in TOPICS for qos in QOS)
PAIRS = list(permutations(("root", "a", "b"), 2))

Got = list[tuple[str, str, int]]


def run_apart(roundtrip: Callable[[], Coroutine[Any, Any, Got]]) -> Got:
    """Run it on an event loop of its own; the tests' own thread is busy with Twisted's."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(asyncio.wait_for(roundtrip(), 20))).result()


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, NodeProcess]]:
    """A root and two children, each joined."""
    folder = tmp_path_factory.mktemp("clients")
    root = NodeProcess(folder, topology("root", zone=""))
    children = [
        NodeProcess(folder, topology(name, zone=name, parent=root.grpc)) for name in ("a", "b")
    ]
    with root, children[0], children[1]:
        for child in children:
            child.wait_event("join.granted")
        yield {"root": root, "a": children[0], "b": children[1]}


@pytest.fixture(params=PAIRS, ids=["-to-".join(pair) for pair in PAIRS])
def ports(request: pytest.FixtureRequest, nodes: dict[str, NodeProcess]) -> tuple[int, int]:
    """(port of the publisher's node, port of the subscriber's)."""
    publisher, subscriber = request.param
    return nodes[publisher].mqtt[1], nodes[subscriber].mqtt[1]


def test_paho(ports: tuple[int, int]) -> None:
    """paho-mqtt."""
    got: queue.Queue[tuple[str, str, int]] = queue.Queue()
    subscribed: queue.Queue[int] = queue.Queue()
    subscriber = paho.Client(paho.CallbackAPIVersion.VERSION2)
    subscriber.on_message = lambda _c, _u, m: got.put((m.topic, m.payload.decode(), m.qos))
    subscriber.on_subscribe = lambda _c, _u, mid, _r, _p: subscribed.put(mid)
    publisher = paho.Client(paho.CallbackAPIVersion.VERSION2)
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


def test_aiomqtt(ports: tuple[int, int]) -> None:
    """aiomqtt."""

    async def roundtrip() -> Got:
        got: Got = []
        async with (
            aiomqtt.Client("127.0.0.1", ports[1]) as subscriber,
            aiomqtt.Client("127.0.0.1", ports[0]) as publisher,
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


def test_gmqtt(ports: tuple[int, int]) -> None:
    """gmqtt, which asks for MQTT 5 first if it is let, and is told to speak 3.1.1 here."""

    async def roundtrip() -> Got:
        got: asyncio.Queue[tuple[str, str, int]] = asyncio.Queue()
        subscribed = asyncio.Event()
        subscriber, publisher = gmqtt.Client(""), gmqtt.Client("")
        subscriber.on_message = lambda _c, topic, payload, qos, _p: got.put_nowait(
            (topic, payload.decode(), qos)
        )
        subscriber.on_subscribe = lambda *_: subscribed.set()
        version = gmqtt.constants.MQTTv311
        await publisher.connect("127.0.0.1", ports[0], version=version)
        await subscriber.connect("127.0.0.1", ports[1], version=version)
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


@pytest.mark.skipif(
    shutil.which("mosquitto_sub") is None,
    reason="mosquitto_pub and mosquitto_sub are not installed (Debian: mosquitto-clients)",
)
def test_mosquitto_clients(ports: tuple[int, int]) -> None:
    """mosquitto_pub and mosquitto_sub."""
    address = ["-h", "127.0.0.1", "-p"]
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


@pytest.mark.skipif(
    shutil.which("node") is None or shutil.which("npm") is None,
    reason="node and npm are not installed (Debian: nodejs npm)",
)
def test_mqttjs(ports: tuple[int, int], mqttjs: Path) -> None:
    """mqtt.js."""
    command = ["node", str(mqttjs / "roundtrip.js"), str(ports[1]), str(ports[0]), *TOPICS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)

    assert done.returncode == 0, done.stderr
    assert EXPECTED == sorted(
        (topic, payload, qos) for topic, payload, qos in json.loads(done.stdout)
    )


@pytest.fixture(scope="session")
def mqttjs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """mqtt.js, installed by npm into a temporary folder."""
    folder = tmp_path_factory.mktemp("mqttjs")
    for file in MQTTJS.iterdir():
        shutil.copy(file, folder)
    command = ["npm", "install", "--silent", "--no-audit", "--no-fund"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder
