"""`txbroker pub` and `txbroker sub`: a small MQTT client for tests and inspection."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from typing import Any

import click
import paho.mqtt.client as mqtt
from paho.mqtt.enums import MQTTProtocolVersion
from paho.mqtt.properties import Properties

from txbroker.cli.message_properties import (
    correlation_data,
    property_lines,
    property_options,
    publish_properties,
)
from txbroker.cli.mqtt_connection import ANSWER_TIMEOUT, Connection
from txbroker.cli.options import BadArgument, Topic, client_id, mqtt_address, mqtt_level, quality
from txbroker.cli.output import one_line, payload_text, zone_name
from txbroker.config import Address

RELEASE_TIMEOUT = 1.0
"""Seconds to complete half-received QoS 2 messages when the command ends."""
PENDING_ZONE = "pending-zone"
"""Name of SUBACK's user property with a zone that has not confirmed."""


@click.command(
    epilog="""
    Examples:

    \b
      $ txbroker pub 127.0.0.1:1883 -t home/kitchen/light -m on -q 1 -r
      $ txbroker pub 127.0.0.1:1883 -t home/kitchen/motion -m yes -r -V 5 --expiry 60
    """
)
@mqtt_address
@click.option("-t", "--topic", required=True, type=Topic(wildcards=False), help="Where to.")
@click.option("-m", "--message", required=True, metavar="TEXT", help="The payload.")
@quality(0)
@click.option("-r", "--retain", is_flag=True, help="Keep it as the topic's last value.")
@client_id()
@mqtt_level
@property_options
@correlation_data
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=30.0,
    metavar="SECONDS",
    help="How long to wait for the acknowledgement (default 30).",
)
def pub(
    address: Address,
    topic: str,
    message: str,
    qos: int,
    retain: bool,
    client_id: str | None,
    level: MQTTProtocolVersion,
    timeout: float,
    **given: Any,
) -> None:
    """
    Publish one message.

    Properties need MQTT 5.0: -V 5.

    HOST:PORT is the MQTT address of any node. With QoS 1 and 2 the command waits for the
    acknowledgement: the topic's owner has then accepted the message. With QoS 0 the command ends
    when the message is sent.
    """
    properties = publish_properties(level, **given)
    deadline = time.monotonic() + timeout
    connection = Connection(address, client_id, level)
    connection.open(min(timeout, ANSWER_TIMEOUT))
    done = threading.Event()
    connection.publish(
        topic, os.fsencode(message), qos, done.set, retain=retain, properties=properties
    )
    if not connection.run(done.is_set, deadline):
        raise click.ClickException(
            f"{address}: no acknowledgement in {timeout:g} s; the owner of {topic!r} may be away,"
            " and take the message later"
        )
    connection.close()


@click.command(
    epilog="""
    Examples:

    \b
      $ txbroker sub 127.0.0.1:1883 -t 'home/+/temperature' -t '$SYS/#' -n 10
      $ txbroker sub 127.0.0.1:1883 -t 'home/#' -V 5 -v
    """
)
@mqtt_address
@click.option(
    "-t",
    "--topic",
    "filters",
    required=True,
    multiple=True,
    type=Topic(wildcards=True),
    help="What to listen for; may be given several times.",
)
@quality(0)
@click.option(
    "-n", "--count", type=click.IntRange(min=1), metavar="COUNT", help="End after so many messages."
)
@client_id("Client id; the node then keeps the session, and messages for it, between two runs.")
@mqtt_level
@click.option("-v", "--verbose", is_flag=True, help="Print properties, too; needs -V 5.")
def sub(
    address: Address,
    filters: tuple[str, ...],
    qos: int,
    count: int | None,
    client_id: str | None,
    level: MQTTProtocolVersion,
    verbose: bool,
) -> None:
    """
    Print messages, a line each: the topic, a space and the payload.

    With -v the properties of each message follow, an indented line each. With -V 5 the command
    names on stderr the zones that have not confirmed the filters yet.

    HOST:PORT is the MQTT address of any node. Control characters are spelled out as in \\n, and a
    payload that is not UTF-8 is printed in hexadecimal digits. Ends on Ctrl-C.
    """
    if verbose and level != MQTTProtocolVersion.MQTTv5:
        raise BadArgument("-v: properties are of MQTT 5.0; add -V 5")
    connection = Connection(address, client_id, level, clean=client_id is None)
    printer = _Printer(connection, count, is_verbose=verbose)
    printer.listen_for_signals()
    connection.open(ANSWER_TIMEOUT)
    connection.subscribe(filters, qos, _name_pending)
    try:
        printer.run()
    except BrokenPipeError:
        pass  # The reader of the pipe has closed it.
    connection.close()


class _Printer:
    """
    Prints up to `limit` messages, and leaves all later messages unacknowledged.

    The node sends an unprinted message again when the session resumes.
    """

    def __init__(
        self, connection: Connection, limit: int | None, *, is_verbose: bool = False
    ) -> None:
        self._connection = connection
        self._is_verbose = is_verbose
        self._limit = limit
        self._printed = 0
        self._is_last_printed = False
        self._received: set[int] = set()  # packet ids of QoS 2 messages that wait for PUBREL
        self._is_stopping = False
        self._is_writing = False
        self._output = sys.stdout.fileno()
        self._wake, self._woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        client = connection.client
        client.may_take = self._may_take
        client.on_message = self._on_message

    def listen_for_signals(self) -> None:
        """Make SIGINT and SIGTERM end `run`; before `run`, and in a full pipe, the command."""
        signal.set_wakeup_fd(self._woken)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: self._stop())

    def run(self) -> None:
        """
        Print messages until the limit is reached or a signal arrives.

        Raises `BrokenPipeError` when the pipe has no reader, and `click.ClickException` when the
        connection or a subscription fails.
        """
        watch = ((self._wake, select.POLLIN), (self._output, 0))
        self._connection.run(lambda: self._is_stopping or self._is_finished(), watch=watch)
        # A half-received message would be lost: the node has PUBREC and never sends PUBLISH again.
        self._limit = self._printed + len(self._received)
        self._connection.run(self._is_finished, time.monotonic() + RELEASE_TIMEOUT)

    # internal

    def _stop(self) -> None:
        if self._is_writing or not self._connection.is_open:
            sys.exit(0)
        self._is_stopping = True

    def _is_finished(self) -> bool:
        output = select.poll()
        output.register(self._output, 0)
        if any(event & select.POLLERR for _, event in output.poll(0)):
            raise BrokenPipeError
        return self._printed == self._limit

    def _has_room(self) -> bool:
        return self._limit is None or self._printed + len(self._received) < self._limit

    # from the connection

    def _may_take(self, qos: int, packet_id: int) -> bool:
        if qos == 1:
            return self._is_last_printed  # Paho calls this directly after `_on_message`.
        if packet_id not in self._received and not self._has_room():
            return False
        self._received.add(packet_id)
        return True

    def _on_message(self, client: mqtt.Client, userdata: Any, message: mqtt.MQTTMessage) -> None:
        if message.qos == 2:
            self._received.discard(message.mid)
        self._is_last_printed = self._has_room()
        if self._is_last_printed:
            lines = [f"{one_line(message.topic)} {payload_text(message.payload)}"]
            if self._is_verbose:
                lines += property_lines(message.properties)
            self._write("".join(f"{line}\n" for line in lines).encode())
            self._printed += 1

    def _write(self, line: bytes) -> None:
        # A buffer of sys.stdout could still hold lines when the command ends.
        self._is_writing = True
        while line:
            line = line[os.write(self._output, line) :]
        self._is_writing = False


def _name_pending(properties: Properties | None) -> None:
    for name, value in getattr(properties, "UserProperty", ()):
        if name == PENDING_ZONE:
            said = f"{zone_name(value)} has not confirmed yet; its messages may come later"
            click.echo(said, err=True)
