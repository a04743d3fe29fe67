"""
Runs a client's connection to a node in the calling thread.

Paho implements the protocol. The connection waits for events, and a signal or a closed pipe ends
the wait at once. Its client decides which messages are acknowledged.
"""

from __future__ import annotations

import os
import secrets
import select
import struct
import time
from collections.abc import Callable, Iterable
from typing import Any

import click
import paho.mqtt.client as mqtt
from paho.mqtt import MQTTException
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from txbroker.cli.output import one_line
from txbroker.config import Address

ANSWER_TIMEOUT = 10.0
"""Seconds in which a node must accept a connection."""
FAREWELL = 1.0
"""Seconds that DISCONNECT has to reach the node."""
MISC_EVERY = 1.0
"""Seconds between checks of the keep-alive."""
FOREVER = 2**32 - 1
"""Session expiry of a session that ends by the node's limit alone, as at level 3.1.1."""


class Client(mqtt.Client):
    """
    Paho's client with a check before each PUBACK and PUBREC: `may_take`.

    Overridden methods have paho's names. The node sends an unanswered message again in the next
    session.
    """

    may_take: Callable[[int, int], bool] = staticmethod(lambda qos, packet_id: True)
    """Returns True to acknowledge the message of this QoS and packet id."""

    def _send_puback(self, mid: int) -> MQTTErrorCode:
        return super()._send_puback(mid) if self.may_take(1, mid) else MQTTErrorCode(0)

    def _send_pubrec(self, mid: int) -> MQTTErrorCode:
        return super()._send_pubrec(mid) if self.may_take(2, mid) else MQTTErrorCode(0)


class Connection:
    """A connection; every failure is a `click.ClickException` of one line."""

    def __init__(
        self,
        address: Address,
        client_id: str | None,
        level: MQTTProtocolVersion = MQTTProtocolVersion.MQTTv311,
        *,
        clean: bool = True,
    ) -> None:
        self.is_open = False
        self._is_clean = clean
        self._has_properties = level == MQTTProtocolVersion.MQTTv5
        self.client = Client(
            CallbackAPIVersion.VERSION2,
            client_id=client_id or f"txbroker-{secrets.token_hex(6)}",
            clean_session=None if self._has_properties else clean,
            protocol=level,
        )
        self.client.on_connect = self._on_connect
        self.client.on_disconnect = self._on_disconnect
        self._address = address
        self._refused: str | None = None

    def open(self, timeout: float) -> None:
        """Connect within `timeout` seconds."""
        deadline = time.monotonic() + timeout
        self.client.connect_timeout = timeout
        try:
            self._connect()
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise self._failure(f"cannot be reached: {reason}") from None
        if not self.run(lambda: self.is_open, deadline):
            raise self._failure(f"no answer in {timeout:g} s; is it an MQTT address?")

    def subscribe(
        self, filters: Iterable[str], qos: int, confirmed: Callable[[Properties | None], object]
    ) -> None:
        """Subscribe; `confirmed` gets the properties of the SUBACK that grants all filters."""
        asked = list(filters)

        def on_subscribe(
            client: mqtt.Client, _: Any, mid: int, codes: list[ReasonCode], properties: Any
        ) -> None:
            for topic_filter, code in zip(asked, codes, strict=False):
                if code.is_failure:
                    reason = _explained(code, properties)
                    raise click.ClickException(
                        f"the node refused the filter {topic_filter!r}: {reason}"
                    )
            confirmed(properties)

        self.client.on_subscribe = on_subscribe
        self.client.subscribe([(topic_filter, qos) for topic_filter in asked])

    def publish(
        self,
        topic: str,
        payload: bytes,
        qos: int,
        acknowledged: Callable[[], object],
        *,
        retain: bool = False,
        properties: Properties | None = None,
    ) -> None:
        """
        Publish a message; `acknowledged` is called when the node has acknowledged the message.

        A QoS 0 message counts as acknowledged when paho has sent it.
        """

        def on_publish(
            client: mqtt.Client, _: Any, mid: int, code: ReasonCode, properties: Any
        ) -> None:
            if code.is_failure:
                reason = _explained(code, properties)
                raise self._failure(f"the node refused the message on {topic!r}: {reason}")
            acknowledged()

        self.client.on_publish = on_publish
        self.client.publish(topic, payload, qos, retain, properties)

    def run(
        self,
        is_done: Callable[[], bool],
        deadline: float | None = None,
        watch: Iterable[tuple[int, int]] = (),
    ) -> bool:
        """
        Run the connection until `is_done`; return False if `deadline` (of `time.monotonic`) passes.

        Events on a `watch` pair (file descriptor, poll mask) only end the wait for the next check.
        """
        while not is_done():
            wait = MISC_EVERY
            if deadline is not None:
                wait = min(wait, deadline - time.monotonic())
                if wait <= 0:
                    return False
            waiting_for = self.client.socket()
            if waiting_for is None:
                raise self._failure(self._refused or self._lost())
            poll = select.poll()
            write = select.POLLOUT if self.client.want_write() else 0
            poll.register(waiting_for, select.POLLIN | write)
            for descriptor, mask in watch:
                poll.register(descriptor, mask)
            poll.poll(wait * 1000)
            self._work()
        return True

    def close(self) -> None:
        """Send DISCONNECT, and wait until the node closes, which proves that it received it."""
        deadline = time.monotonic() + FAREWELL
        own = self.client.socket()
        if own is None:
            return
        # Paho closes right after DISCONNECT. A close with unread input is a reset, which may lose
        # the last packets that were sent.
        with os.fdopen(os.dup(own.fileno()), "rb", buffering=0) as rest:
            self.client.disconnect()
            try:
                self.run(lambda: self.client.socket() is None, deadline)
                while select.select([rest], [], [], max(0.0, deadline - time.monotonic()))[0]:
                    if not rest.read(65_536):
                        break
            except (OSError, click.ClickException):
                pass  # The node closed first.

    # internal

    def _connect(self) -> None:
        address = self._address
        if not self._has_properties:
            self.client.connect(address.host, address.port)
            return
        properties = Properties(PacketTypes.CONNECT)
        if not self._is_clean:
            # The default of MQTT 5.0 is 0: the session would end with its connection.
            properties.SessionExpiryInterval = FOREVER
        self.client.connect(
            address.host, address.port, clean_start=self._is_clean, properties=properties
        )

    def _work(self) -> None:
        try:
            for step in (self.client.loop_read, self.client.loop_write, self.client.loop_misc):
                if self.client.socket() is not None:
                    step()
        except (MQTTException, struct.error, ValueError, IndexError):
            # Paho raises these when the peer does not speak MQTT.
            raise self._failure("the answer is not MQTT; is it an MQTT address?") from None

    def _on_connect(
        self, client: mqtt.Client, userdata: Any, flags: Any, code: ReasonCode, properties: Any
    ) -> None:
        if code.is_failure:
            self._refused = f"connection refused: {_explained(code, properties)}"
        else:
            self.is_open = True

    def _on_disconnect(
        self, client: mqtt.Client, userdata: Any, flags: Any, code: ReasonCode, properties: Any
    ) -> None:
        if flags.is_disconnect_packet_from_server:
            self._refused = f"the node closed the connection: {_explained(code, properties)}"

    def _lost(self) -> str:
        if self.is_open:
            return "the connection was lost"
        return "the connection was closed without an answer; is it an MQTT address?"

    def _failure(self, reason: str) -> click.ClickException:
        return click.ClickException(f"{self._address}: {reason}")


def _explained(code: ReasonCode, properties: Properties | None) -> str:
    """Return the code's name, and the reason string of the packet if there is one."""
    reason = getattr(properties, "ReasonString", None)
    return f"{code}: {one_line(reason)}" if reason else f"{code}"
