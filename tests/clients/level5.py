"""
Client libraries of MQTT 5.0 behind one interface: what a program does with each of them.

Properties are keyword arguments with the names of pip's mqtt5: `message_expiry_interval`,
`content_type`, `response_topic`, `correlation_data`, `user_properties`.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from typing import Any, Protocol

import aiomqtt
import attrs
import gmqtt
import mqtt5
import paho.mqtt.client as paho
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

HOST = "127.0.0.1"


@attrs.frozen
class Message:
    """A message as published, or as it arrived."""

    topic: str
    payload: bytes
    qos: int = 1
    retain: bool = False
    properties: Mapping[str, Any] = attrs.field(factory=dict)


class Talker(Protocol):
    """A client of one library."""

    async def connect(
        self, port: int, name: str, *, expiry: int = 0, will: Message | None = None
    ) -> None:
        """Connect; with an expiry the client goes on with its session (clean start 0)."""

    async def subscribe(self, topic_filter: str) -> None:
        """Subscribe at QoS 1; return behind the SUBACK."""

    async def publish(self, message: Message) -> None:
        """Publish; return behind the acknowledgement."""

    async def receive(self) -> Message:
        """Return the next message."""

    async def leave(self) -> None:
        """Disconnect."""

    async def vanish(self) -> None:
        """Lose the connection, and connect no more."""


# paho-mqtt, and aiomqtt on top of it

_PAHO = {
    "message_expiry_interval": "MessageExpiryInterval",
    "content_type": "ContentType",
    "response_topic": "ResponseTopic",
    "correlation_data": "CorrelationData",
    "user_properties": "UserProperty",
}


def to_paho(given: Mapping[str, Any], packet: int = PacketTypes.PUBLISH) -> Properties:
    """As paho's properties."""
    properties = Properties(packet)
    for name, value in given.items():
        setattr(properties, _PAHO.get(name, name), value)
    return properties


def from_paho(topic: str, message: Any) -> Message:
    """From paho's, or aiomqtt's, message."""
    found = {name: getattr(message.properties, paho, None) for name, paho in _PAHO.items()}
    properties = {name: value for name, value in found.items() if value is not None}
    return Message(topic, bytes(message.payload), message.qos, bool(message.retain), properties)


def _expiry(seconds: int) -> Properties:
    return to_paho({"SessionExpiryInterval": seconds}, PacketTypes.CONNECT)


class Paho:
    """paho-mqtt with its thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        self._connected, self._subscribed = asyncio.Event(), asyncio.Event()

    def _call(self, action: Any, *arguments: Any) -> None:
        self._loop.call_soon_threadsafe(action, *arguments)

    async def connect(
        self, port: int, name: str, *, expiry: int = 0, will: Message | None = None
    ) -> None:
        client = paho.Client(paho.CallbackAPIVersion.VERSION2, name, protocol=paho.MQTTv5)
        client.on_connect = lambda *_: self._call(self._connected.set)
        client.on_subscribe = lambda *_: self._call(self._subscribed.set)
        client.on_message = lambda _c, _u, message: self._call(
            self._messages.put_nowait, from_paho(message.topic, message)
        )
        if will is not None:
            properties = to_paho(will.properties, PacketTypes.WILLMESSAGE)
            client.will_set(will.topic, will.payload, will.qos, will.retain, properties)
        client.connect(HOST, port, clean_start=not expiry, properties=_expiry(expiry))
        client.loop_start()
        self._client = client
        await self._connected.wait()

    async def subscribe(self, topic_filter: str) -> None:
        self._client.subscribe(topic_filter, 1)
        await self._subscribed.wait()

    async def publish(self, message: Message) -> None:
        properties = to_paho(message.properties)
        sent = self._client.publish(
            message.topic, message.payload, message.qos, message.retain, properties
        )
        await asyncio.to_thread(sent.wait_for_publish, 20)

    async def receive(self) -> Message:
        return await self._messages.get()

    async def leave(self) -> None:
        self._client.disconnect()
        await asyncio.to_thread(self._client.loop_stop)

    async def vanish(self) -> None:
        await asyncio.to_thread(self._client.loop_stop)
        own = self._client.socket()
        assert own is not None
        own.shutdown(socket.SHUT_RDWR)


class Aiomqtt:
    """aiomqtt."""

    async def connect(
        self, port: int, name: str, *, expiry: int = 0, will: Message | None = None
    ) -> None:
        last = None
        if will is not None:
            properties = to_paho(will.properties, PacketTypes.WILLMESSAGE)
            last = aiomqtt.Will(will.topic, will.payload, will.qos, will.retain, properties)
        self._client = aiomqtt.Client(
            HOST,
            port,
            identifier=name,
            protocol=aiomqtt.ProtocolVersion.V5,
            clean_start=not expiry,
            properties=_expiry(expiry),
            will=last,
        )
        await self._client.__aenter__()

    async def subscribe(self, topic_filter: str) -> None:
        await self._client.subscribe(topic_filter, 1)

    async def publish(self, message: Message) -> None:
        await self._client.publish(
            message.topic,
            message.payload,
            message.qos,
            message.retain,
            to_paho(message.properties),
        )

    async def receive(self) -> Message:
        async for message in self._client.messages:
            return from_paho(str(message.topic), message)
        raise AssertionError

    async def leave(self) -> None:
        await self._client.__aexit__(None, None, None)

    async def vanish(self) -> None:
        own = self._client._client.socket()
        assert own is not None
        own.shutdown(socket.SHUT_RDWR)
        try:
            await self.leave()
        except aiomqtt.MqttError:
            pass  # it has noticed


# gmqtt


class Gmqtt:
    """gmqtt, whose property of that name is `user_property`."""

    def __init__(self) -> None:
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        self._subscribed = asyncio.Event()
        self._acknowledged = asyncio.Event()

    async def connect(
        self, port: int, name: str, *, expiry: int = 0, will: Message | None = None
    ) -> None:
        last = None if will is None else self._message(will)
        client = gmqtt.Client(
            name, clean_session=not expiry, session_expiry_interval=expiry, will_message=last
        )
        client.on_message = self._on_message
        client.on_subscribe = lambda *_: self._subscribed.set()
        self._client = client
        await client.connect(HOST, port, version=gmqtt.constants.MQTTv50)

    @staticmethod
    def _message(message: Message) -> gmqtt.Message:
        given = dict(message.properties)
        if "user_properties" in given:
            given["user_property"] = given.pop("user_properties")
        return gmqtt.Message(message.topic, message.payload, message.qos, message.retain, **given)

    def _on_message(
        self, client: Any, topic: str, payload: bytes, qos: int, found: dict[str, Any]
    ) -> int:
        retain = bool(found.pop("retain"))
        properties = {
            name: values[0]
            for name, values in found.items()
            if name not in ("dup", "user_property")
        }
        if "user_property" in found:
            properties["user_properties"] = found["user_property"]
        self._messages.put_nowait(Message(topic, bytes(payload), qos, retain, properties))
        return 0

    async def subscribe(self, topic_filter: str) -> None:
        self._client.subscribe(gmqtt.Subscription(topic_filter, qos=1))
        await self._subscribed.wait()

    async def publish(self, message: Message) -> None:
        self._client.publish(self._message(message))

    async def receive(self) -> Message:
        return await self._messages.get()

    async def leave(self) -> None:
        await self._client.disconnect()

    async def vanish(self) -> None:
        self._client._is_active = False
        self._client._connection._transport.abort()


# mqtt5: packets alone, so a client is made here


class Mqtt5:
    """pip's mqtt5 on a stream of asyncio."""

    def __init__(self) -> None:
        self._buffer = b""
        self._waiting: list[mqtt5.PublishPacket] = []
        self._next_id = 0

    async def connect(
        self, port: int, name: str, *, expiry: int = 0, will: Message | None = None
    ) -> None:
        self._reader, self._writer = await asyncio.open_connection(HOST, port)
        last = None
        if will is not None:
            last = mqtt5.Will(
                will.topic,
                payload=will.payload,
                qos=mqtt5.QoS(will.qos),
                retain=will.retain,
                **will.properties,
            )
        packet = mqtt5.ConnectPacket(
            name, clean_start=not expiry, session_expiry_interval=expiry, will=last
        )
        connack = await self._ask(packet, mqtt5.ConnAckPacket)
        assert connack.reason_code == mqtt5.ConnAckReasonCode.SUCCESS

    async def subscribe(self, topic_filter: str) -> None:
        asked = mqtt5.TopicFilter(
            topic_filter, max_qos=mqtt5.QoS.AT_LEAST_ONCE, retain_as_published=False
        )
        suback = await self._ask(mqtt5.SubscribePacket(self._id(), [asked]), mqtt5.SubAckPacket)
        assert [mqtt5.SubAckReasonCode.GRANTED_QOS_AT_LEAST_ONCE] == suback.reason_codes

    async def publish(self, message: Message) -> None:
        assert message.qos == 1
        packet = mqtt5.PublishPacket(
            message.topic,
            message.payload,
            qos=mqtt5.QoS.AT_LEAST_ONCE,
            retain=message.retain,
            packet_id=self._id(),
            **message.properties,
        )
        puback = await self._ask(packet, mqtt5.PubAckPacket)
        good = mqtt5.PubAckReasonCode.SUCCESS, mqtt5.PubAckReasonCode.NO_MATCHING_SUBSCRIBERS
        assert puback.reason_code in good

    async def receive(self) -> Message:
        while not self._waiting:
            await self._read()
        found = self._waiting.pop(0)
        names = ("message_expiry_interval", "content_type", "response_topic", "correlation_data")
        values = {name: getattr(found, name) for name in names}
        properties = {name: value for name, value in values.items() if value is not None}
        if found.user_properties:
            properties["user_properties"] = found.user_properties
        return Message(found.topic, found.payload, int(found.qos), found.retain, properties)

    async def leave(self) -> None:
        self._writer.write(mqtt5.DisconnectPacket().write())
        assert b"" == await self._reader.read()
        self._writer.close()

    async def vanish(self) -> None:
        self._writer.transport.abort()

    def _id(self) -> int:
        self._next_id += 1
        return self._next_id

    async def _ask(self, packet: Any, kind: Any) -> Any:
        self._writer.write(packet.write())
        while not isinstance(found := await self._read(), kind):
            pass
        return found

    async def _read(self) -> Any:
        """The next packet; a PUBLISH is acknowledged and kept for `receive`."""
        while True:
            try:
                packet, size = mqtt5.read(memoryview(self._buffer))
                break
            except IndexError:  # not whole yet
                data = await self._reader.read(65_536)
                assert data, "the node has closed the connection"
                self._buffer += data
        self._buffer = self._buffer[size:]
        if isinstance(packet, mqtt5.PublishPacket):
            if packet.packet_id is not None:
                self._writer.write(mqtt5.PubAckPacket(packet.packet_id).write())
            self._waiting.append(packet)
        return packet
