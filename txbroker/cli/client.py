"""`txbroker pub` and `txbroker sub`: a small MQTT client for tests and inspection."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from typing import Any

import click
import paho.mqtt.client as mqtt
from paho.mqtt.reasoncodes import ReasonCode

from txbroker.cli.mqtt_connection import Connection
from txbroker.cli.options import BadArgument, HostPort, Topic
from txbroker.cli.output import one_line
from txbroker.config import Address

ANSWER_TIMEOUT = 10.0
"""Seconds in which a node must accept a connection."""
RELEASE_TIMEOUT = 1.0
"""Seconds to complete half-received QoS 2 messages when the command ends."""
MAX_ID_BYTES = 65_535


def _check_id(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is None:
        return None
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        size = 0
    if not 0 < size <= MAX_ID_BYTES:
        raise BadArgument(f"ID: {value!r}: a client id is 1 to {MAX_ID_BYTES} bytes of UTF-8")
    return value


mqtt_address = click.argument("address", metavar="HOST:PORT", type=HostPort())


@click.command(
    epilog="""
    Example:

    \b
      $ txbroker pub 127.0.0.1:1883 -t home/kitchen/light -m on -q 1 -r
    """
)
@mqtt_address
@click.option("-t", "--topic", required=True, type=Topic(wildcards=False), help="Where to.")
@click.option("-m", "--message", required=True, metavar="TEXT", help="The payload.")
@click.option(
    "-q", "--qos", type=click.IntRange(0, 2), default=0, metavar="N", help="0 (default), 1 or 2."
)
@click.option("-r", "--retain", is_flag=True, help="Keep it as the topic's last value.")
@click.option("-i", "--id", "client_id", callback=_check_id, metavar="ID", help="Client id.")
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
    timeout: float,
) -> None:
    """
    Publish one message.

    HOST:PORT is the MQTT address of any node. With QoS 1 and 2 the command waits for the
    acknowledgement: the topic's owner has then accepted the message. With QoS 0 the command ends
    when the message is sent.
    """
    deadline = time.monotonic() + timeout
    connection = Connection(address, client_id)
    connection.open(min(timeout, ANSWER_TIMEOUT))
    client = connection.client
    published = []
    client.on_publish = lambda _client, _userdata, mid, _code, _properties: published.append(mid)
    client.publish(topic, os.fsencode(message), qos, retain)
    if not connection.run(lambda: bool(published), deadline):
        raise click.ClickException(
            f"{address}: no acknowledgement in {timeout:g} s; the owner of {topic!r} may be away,"
            " and take the message later"
        )
    connection.close()


@click.command(
    epilog="""
    Example:

    \b
      $ txbroker sub 127.0.0.1:1883 -t 'home/+/temperature' -t '$SYS/#' -n 10
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
@click.option(
    "-q", "--qos", type=click.IntRange(0, 2), default=0, metavar="N", help="0 (default), 1 or 2."
)
@click.option(
    "-n", "--count", type=click.IntRange(min=1), metavar="COUNT", help="End after so many messages."
)
@click.option(
    "-i",
    "--id",
    "client_id",
    callback=_check_id,
    metavar="ID",
    help="Client id; the node then keeps the session, and messages for it, between two runs.",
)
def sub(
    address: Address,
    filters: tuple[str, ...],
    qos: int,
    count: int | None,
    client_id: str | None,
) -> None:
    """
    Print messages, a line each: the topic, a space and the payload.

    HOST:PORT is the MQTT address of any node. Control characters are spelled out as in \\n, and a
    payload that is not UTF-8 is printed in hexadecimal digits. Ends on Ctrl-C.
    """
    connection = Connection(address, client_id, clean=client_id is None)
    printer = _Printer(connection, count)
    printer.listen_for_signals()
    connection.open(ANSWER_TIMEOUT)
    printer.subscribe(filters, qos)
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

    def __init__(self, connection: Connection, limit: int | None) -> None:
        self._connection = connection
        self._limit = limit
        self._printed = 0
        self._is_last_printed = False
        self._received: set[int] = set()  # packet ids of QoS 2 messages that wait for PUBREL
        self._filters: tuple[str, ...] = ()
        self._is_stopping = False
        self._is_writing = False
        self._output = sys.stdout.fileno()
        self._wake, self._woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        client = connection.client
        client.may_take = self._may_take
        client.on_message = self._on_message
        client.on_subscribe = self._on_subscribe

    def listen_for_signals(self) -> None:
        """Make SIGINT and SIGTERM end `run`; before `run`, and in a full pipe, the command."""
        signal.set_wakeup_fd(self._woken)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: self._stop())

    def subscribe(self, filters: tuple[str, ...], qos: int) -> None:
        """Subscribe to the filters."""
        self._filters = filters
        self._connection.client.subscribe([(topic_filter, qos) for topic_filter in filters])

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
            self._write(f"{one_line(message.topic)} {_text(message.payload)}\n".encode())
            self._printed += 1

    def _write(self, line: bytes) -> None:
        # A buffer of sys.stdout could still hold lines when the command ends.
        self._is_writing = True
        while line:
            line = line[os.write(self._output, line) :]
        self._is_writing = False

    def _on_subscribe(
        self, client: mqtt.Client, userdata: Any, mid: int, codes: list[ReasonCode], properties: Any
    ) -> None:
        for topic_filter, code in zip(self._filters, codes, strict=False):
            if code.is_failure:
                raise click.ClickException(f"the node refused the filter {topic_filter!r}")


def _text(payload: bytes | bytearray) -> str:
    try:
        return one_line(payload.decode())
    except UnicodeDecodeError:
        return payload.hex()
