"""`txbroker pub` and `txbroker sub`: a small MQTT client, to look and to try."""

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
"""Seconds that a node has to accept a connection."""
RELEASE_TIMEOUT = 1.0
"""Seconds for QoS 2 messages that are half received when the command ends."""
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
@click.option("-q", "--qos", type=click.IntRange(0, 2), default=0, help="0 (default), 1 or 2.")
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
    acknowledgement, which comes when the node that owns the topic has taken the message; with QoS 0
    it is done when the message is sent.
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
            f"{address}: no acknowledgement in {timeout:g} s; the owner of {topic!r} may be away"
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
@click.option("-q", "--qos", type=click.IntRange(0, 2), default=0, help="0 (default), 1 or 2.")
@click.option("-n", "--count", type=click.IntRange(min=1), help="End after so many messages.")
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
        # The reader has had enough. Nothing more can be written, not even at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    connection.close()


class _Printer:
    """
    Prints what arrives, up to `limit` messages, and lets nothing beyond that be acknowledged: a
    message that was not printed comes again when the session does.
    """

    def __init__(self, connection: Connection, limit: int | None) -> None:
        self._connection = connection
        self._limit = limit
        self._printed = 0
        self._is_last_printed = False
        self._received: set[int] = set()  # identifiers of QoS 2 messages that wait for PUBREL
        self._refused = False
        self._wake, self._woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._output = click.get_binary_stream("stdout")
        client = connection.client
        client.may_take = self._may_take
        client.on_message = self._on_message
        client.on_subscribe = self._on_subscribe

    def listen_for_signals(self) -> None:
        """SIGINT and SIGTERM end it, with status 0; before there is a connection at once."""
        signal.set_wakeup_fd(self._woken)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: self._stop())

    def subscribe(self, filters: tuple[str, ...], qos: int) -> None:
        """Ask for messages; the answer is looked at in `run`."""
        self._connection.client.subscribe([(topic_filter, qos) for topic_filter in filters])

    def run(self) -> None:
        """
        Until the limit is reached or a signal came; raises `BrokenPipeError` when nobody reads, and
        `click.ClickException` when the connection or a subscription fails.
        """
        output = self._output.fileno()
        reader = select.poll()
        reader.register(output, 0)
        watch = ((self._wake, select.POLLIN), (output, 0))

        def is_done() -> bool:
            if any(event & select.POLLERR for _, event in reader.poll(0)):
                raise BrokenPipeError
            return self._is_done()

        self._connection.run(is_done, watch=watch)
