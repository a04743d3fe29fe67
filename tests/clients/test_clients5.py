"""
What MQTT 5.0 adds, with stock clients, on one node and over two: properties, sessions that go on,
wills, requests and responses. Roundtrips at both levels are in test_clients.py.
"""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.support.nodes import NodeProcess

from .level5 import Aiomqtt, Gmqtt, Message, Mqtt5, Paho, Talker
from .test_clients import needs_mosquitto, needs_node, run_apart

LIBRARIES: dict[str, type[Talker]] = {
    "paho": Paho,
    "aiomqtt": Aiomqtt,
    "gmqtt": Gmqtt,
    "mqtt5": Mqtt5,
}
EVERYTHING = {
    "message_expiry_interval": 3600,
    "content_type": "text/plain",
    "response_topic": "answers/here",
    "correlation_data": b"\x00\xff",
    "user_properties": [("room", "kitchen"), ("a", "b"), ("room", "hall")],
}


@attrs.frozen
class Place:
    """Two nodes, as ports, and a topic that nobody else uses."""

    first: int
    second: int
    topic: str

    def name(self, who: str) -> str:
        """A client id: a client that a failed test left behind must not take it over."""
        return f"{who}-{self.topic[-8:]}"


@pytest.fixture(params=["one node", "two nodes, the owner a third", "two nodes, one the owner"])
def place(request: pytest.FixtureRequest, nodes: dict[str, NodeProcess]) -> Place:
    """Where the clients are, and the topic's owner."""
    first, second, zone = {
        "one node": ("a", "a", "a"),
        "two nodes, the owner a third": ("a", "b", "plant"),
        "two nodes, one the owner": ("root", "b", "b"),
    }[request.param]
    topic = f"{zone}/{uuid.uuid4().hex[:8]}"
    return Place(nodes[first].mqtt[1], nodes[second].mqtt[1], topic)


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> type[Talker]:
    """Each library."""
    return LIBRARIES[request.param]


def run(conversation: Callable[[], Awaitable[None]]) -> None:
    """On a loop of its own."""

    async def whole() -> Any:
        await conversation()

    run_apart(whole)


def but_expiry(message: Message) -> Message:
    """With its expiry taken out, which is what is left of it."""
    properties = dict(message.properties)
    left = properties.pop("message_expiry_interval", None)
    assert left is None or 3500 < left <= 3600
    return attrs.evolve(message, properties=properties)


def test_properties_arrive_as_they_left(library: type[Talker], place: Place) -> None:
    """All of them, live and retained; user properties in their order."""

    async def conversation() -> None:
        sent = Message(place.topic, b"21.5", retain=True, properties=EVERYTHING)
        there, here, late = library(), library(), library()
        await there.connect(place.first, place.name("there"))
        await there.subscribe(f"{place.topic}/#")
        await here.connect(place.second, place.name("here"))
        await here.publish(sent)

        found = await there.receive()
        assert found.properties["message_expiry_interval"] > 3500
        assert but_expiry(attrs.evolve(sent, retain=False)) == but_expiry(found)

        await late.connect(place.second, place.name("late"))
        await late.subscribe(f"{place.topic}/#")
        assert but_expiry(sent) == but_expiry(await late.receive())
        for talker in (there, here, late):
            await talker.leave()

    run(conversation)


def test_a_session_goes_on(library: type[Talker], place: Place) -> None:
    """At the other node too: what came meanwhile arrives, with its properties."""

    async def conversation() -> None:
        name = place.name("kept")
        before, publisher, after = library(), library(), library()
        await before.connect(place.first, name, expiry=300)
        await before.subscribe(place.topic)
        await before.leave()
        await publisher.connect(place.first, place.name("publisher"))
        sent = [Message(place.topic, b"%d" % n, properties=EVERYTHING) for n in range(3)]
        for message in sent:
            await publisher.publish(message)

        await after.connect(place.second, name, expiry=300)

        assert [but_expiry(m) for m in sent] == [but_expiry(await after.receive()) for _ in sent]
        await after.leave()
        await publisher.leave()

    run(conversation)


def test_a_will_has_properties(library: type[Talker], place: Place) -> None:
    """It is published when the connection is lost."""

    async def conversation() -> None:
        will = Message(place.topic, b"gone", properties={"user_properties": [("why", "lost")]})
        watcher, mortal = library(), library()
        await watcher.connect(place.first, place.name("watcher"))
        await watcher.subscribe(place.topic)
        await mortal.connect(place.second, place.name("mortal"), will=will)
        await mortal.vanish()

        assert will == await watcher.receive()
        await watcher.leave()

    run(conversation)


def test_a_request_is_answered(library: type[Talker], place: Place) -> None:
    """By its response topic and correlation data."""

    async def conversation() -> None:
        answers, data = f"{place.topic}/answers", b"\x00n1"
        asker, oven = library(), library()
        await oven.connect(place.first, place.name("oven"))
        await oven.subscribe(place.topic)
        await asker.connect(place.second, place.name("asker"))
        await asker.subscribe(answers)
        asked = {"response_topic": answers, "correlation_data": data}
        await asker.publish(Message(place.topic, b"on", properties=asked))

        request = await oven.receive()
        given = {"correlation_data": request.properties["correlation_data"]}
        topic = request.properties["response_topic"]
        await oven.publish(Message(topic, request.payload.upper(), properties=given))

        expected = Message(answers, b"ON", properties={"correlation_data": data})
        assert expected == await asker.receive()
        await oven.leave()
        await asker.leave()

    run(conversation)


# programs


@needs_mosquitto
def test_mosquitto_rr_gets_an_answer_of_mosquitto_clients(place: Place) -> None:
    """mosquitto_rr asks; mosquitto_sub shows what is to be answered, mosquitto_pub answers."""
    answers = f"{place.topic}/answers"
    address = ["-h", "127.0.0.1", "-V", "5", "-q", "1", "-p"]
    shown = "%R %D %p"  # response topic, correlation data, payload
    oven = subprocess.Popen(
        ["stdbuf", "-oL", "mosquitto_sub", *address, str(place.first), "-t", place.topic]
        + ["-C", "1", "-W", "20", "-d", "-F", f"got {shown}"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert oven.stdout is not None
    next(line for line in oven.stdout if line.startswith("Subscribed"))
    command = ["mosquitto_rr", *address, str(place.second), "-t", place.topic, "-e", answers]
    command += ["-m", "on", "-W", "20", "-D", "publish", "correlation-data", "n1"]
    asker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    got = next(line.split() for line in oven.stdout if line.startswith("got "))
    assert ["got", answers, "n1", "on"] == got
    answer = ["mosquitto_pub", *address, str(place.first), "-t", got[1], "-m", "ON"]
    subprocess.run([*answer, "-D", "publish", "correlation-data", got[2]], check=True, timeout=20)

    assert ("ON\n", None) == asker.communicate(timeout=25)
    assert (0, 0) == (asker.returncode, oven.wait(25))
    oven.stdout.close()


@needs_mosquitto
def test_a_session_of_mosquitto_sub_goes_on(place: Place) -> None:
    """With -x; the properties are those of mosquitto_pub."""
    name = place.name("kept")

    def sub(port: int, *options: str) -> str:
        command = ["mosquitto_sub", "-h", "127.0.0.1", "-V", "5", "-p", str(port), "-i", name]
        command += ["-c", "-x", "300", "-q", "1", "-t", place.topic, *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=25)
        assert 0 == done.returncode, done.stderr
        return done.stdout

    sub(place.first, "-E")
    pub = ["mosquitto_pub", "-h", "127.0.0.1", "-V", "5", "-p", str(place.first), "-q", "1"]
    pub += ["-t", place.topic, "-m", "p", "-D", "publish", "user-property", "room", "hall"]
    pub += ["-D", "publish", "message-expiry-interval", "3600"]
    subprocess.run([*pub, "-D", "publish", "content-type", "t"], check=True, timeout=20)

    found = sub(place.second, "-C", "1", "-W", "20", "-F", "%p %C %P %E").split()

    assert ["p", "t", "room:hall"] == found[:3]
    assert 3500 < int(found[3]) <= 3600


@needs_node
def test_mqttjs_at_level_5(place: Place, mqttjs: Path) -> None:
    """mqtt.js: properties, a session that goes on, a will, a request and its response."""
    script = str(mqttjs / "level5.js")
    command = ["node", script, str(place.first), str(place.second), place.topic]
    done = subprocess.run(command, capture_output=True, text=True, timeout=40)

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert 3500 < found["properties"].pop("messageExpiryInterval") <= 3600
    assert {
        "properties": {"contentType": "text/plain", "userProperties": {"room": ["hall", "den"]}},
        "kept": {"present": True, "payload": "kept"},
        "will": {"payload": "gone", "userProperties": {"why": "lost"}},
        "response": {"payload": "ON", "correlationData": "n1"},
    } == found
