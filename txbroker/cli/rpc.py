"""`txbroker rpc`: publishes a request, and prints its response."""

from __future__ import annotations

import math
import os
import secrets
import time
from typing import Any

import click
import paho.mqtt.client as mqtt
from paho.mqtt.enums import MQTTProtocolVersion
from paho.mqtt.properties import Properties

from txbroker.cli.message_properties import property_lines, property_options, publish_properties
from txbroker.cli.mqtt_connection import ANSWER_TIMEOUT, Connection
from txbroker.cli.options import BadArgument, Topic, client_id, mqtt_address, quality
from txbroker.cli.output import payload_text
from txbroker.config import Address
from txbroker.model.topics import TopicError, validate_topic_name


@click.command(
    epilog="""
    Example:

    \b
      $ txbroker rpc 127.0.0.1:1883 -t home/kitchen/oven/get -m temperature
    """
)
@mqtt_address
@click.option("-t", "--topic", required=True, type=Topic(wildcards=False), help="Whom to ask.")
@click.option("-m", "--message", required=True, metavar="TEXT", help="The request.")
@quality(1)
@client_id()
@click.option("-v", "--verbose", is_flag=True, help="Print the response's properties, too.")
@property_options
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    metavar="SECONDS",
    help="How long to wait for the response (default 10).",
)
def rpc(
    address: Address,
    topic: str,
    message: str,
    qos: int,
    client_id: str | None,
    verbose: bool,
    response_topic: str | None,
    expiry: int | None,
    timeout: float,
    **given: Any,
) -> None:
    """
    Publish a request, wait for the response, and print its payload.

    HOST:PORT is the MQTT address of any node. The request has a response topic and random
    correlation data, as MQTT 5.0 defines them. Whoever answers publishes to that topic with the
    same data. The default topic is TOPIC/response/ID, so that the owner of the request's topic
    owns it, too. The request expires with the timeout, so that nobody acts on it later, unless
    --expiry gives another time. The status is 1 if no response comes in time.
    """
    name = client_id or f"txbroker-{secrets.token_hex(6)}"
    response_topic = response_topic or _default_topic(topic, name)
    correlation_data = secrets.token_hex(8).encode()
    properties = publish_properties(
        MQTTProtocolVersion.MQTTv5,
        response_topic=response_topic,
        correlation_data=correlation_data,
        expiry=math.ceil(timeout) if expiry is None else expiry,
        **given,
    )
    deadline = time.monotonic() + timeout
    connection = Connection(address, name, MQTTProtocolVersion.MQTTv5)
    connection.open(min(timeout, ANSWER_TIMEOUT))
    call = _Call(connection, response_topic, correlation_data)
    call.send(topic, os.fsencode(message), qos, properties)
    if not connection.run(lambda: call.response is not None, deadline):
        raise click.ClickException(f"{address}: no response in {timeout:g} s; {call.progress}")
    connection.close()
    assert call.response is not None
    click.echo(payload_text(call.response.payload))
    if verbose:
        for line in property_lines(call.response.properties):
            click.echo(line)


class _Call:
    """A request and its response."""

    def __init__(self, connection: Connection, response_topic: str, data: bytes) -> None:
        self.response: mqtt.MQTTMessage | None = None
        self.progress = f"the owner of {response_topic!r} may be away"
        self._connection = connection
        self._response_topic = response_topic
        self._data = data
        connection.client.on_message = self._on_message

    def send(self, topic: str, payload: bytes, qos: int, properties: Properties | None) -> None:
        """Subscribe to the response topic, then publish the request."""

        def subscribed(_: Properties | None) -> None:
            self.progress = f"the owner of {topic!r} has not acknowledged the request"
            self._connection.publish(
                topic, payload, qos, self._on_acknowledged, properties=properties
            )

        self._connection.subscribe([self._response_topic], qos, subscribed)

    def _on_acknowledged(self) -> None:
        self.progress = "nobody who answers may have got the request"

    def _on_message(self, client: mqtt.Client, _: Any, message: mqtt.MQTTMessage) -> None:
        data = getattr(message.properties, "CorrelationData", None)
        if self.response is None and data == self._data:
            self.response = message


def _default_topic(topic: str, name: str) -> str:
    response = f"{topic}/response/{name}"
    try:
        validate_topic_name(response)
    except TopicError as error:
        raise BadArgument(f"{response!r}: {error}; use --response-topic") from None
    return response
