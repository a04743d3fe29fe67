"""Members and publishers of a group, on threads of their own, which survive their nodes."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable

from tests.support import wire5
from tests.support.nodes import NodeProcess
from tests.support.rawclient import ConnectionEnded
from tests.support.rawclient5 import RawClient5

PAUSE = 0.1
"""Seconds between two attempts to connect."""


class Worker:
    """A thread with one client, which connects again whenever its connection breaks."""

    def __init__(self, node: NodeProcess, client_id: str, *, expiry: int | None) -> None:
        self.address = node.mqtt  # fixed, and good while the node is down
        self.client_id = client_id
        self.expiry = expiry
        self.error: BaseException | None = None
        self.is_over = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Connect, and go on until `stop`."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; an error in it is raised here."""
        self.is_over = True
        self._thread.join(20.0)
        if self.error is not None:
            raise self.error

    def work(self, client: RawClient5) -> None:
        """Do what the client is for until `is_over`."""
        raise NotImplementedError

    def _run(self) -> None:
        while not self.is_over:
            try:
                with RawClient5(self.address, timeout=3.0) as client:
                    client.send(
                        wire5.connect(self.client_id, clean=self.expiry is None, expiry=self.expiry)
                    )
                    found = client.receive()
                    if isinstance(found, wire5.Answer) and not found.code:
                        self.work(client)
            except (OSError, ConnectionEnded, EOFError):
                pass
            except AssertionError as error:
                if "nothing came in time" not in str(error):
                    self.error = error
                    return
            except BaseException as error:
                self.error = error
                return
            time.sleep(PAUSE)


class GroupMember(Worker):
    """
    A member; `processed` counts what it has acknowledged, by payload.

    At QoS 2 a message counts at its first PUBLISH, until PUBREL: the receiver's method of section
    4.3.3. A member without expiry forgets its packet ids with the connection.
    """

    def __init__(
        self,
        node: NodeProcess,
        client_id: str,
        group: str,
        *,
        expiry: int | None,
        leaves: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(node, client_id, expiry=expiry)
        self.group = group
        self.processed: Counter[bytes] = Counter()
        self.is_subscribed = threading.Event()
        self._leaves = leaves
        self._received: set[int] = set()

    def work(self, client: RawClient5) -> None:
        if self.expiry is None:
            self._received.clear()
        client.send(wire5.subscribe(1, (self.group, 2)))
        while not self.is_over:
            if not client.has_input(0.1):
                continue
            found = client.receive()
            if isinstance(found, wire5.Publish):
                # With a session, its QoS 2 messages in flight end, for the group too.
                if self.expiry is not None and self._leaves():
                    return  # the connection breaks before the answer
                self._answer(client, found)
            elif found.kind == wire5.PUBREL:
                self._received.discard(found.packet_id)
                client.send(wire5.ack(wire5.PUBCOMP, found.packet_id))
            elif found.kind == wire5.SUBACK:
                assert found.codes == (2,)
                self.is_subscribed.set()

    def _answer(self, client: RawClient5, message: wire5.Publish) -> None:
        if message.qos == 2:
            if message.packet_id not in self._received:
                self._received.add(message.packet_id)
                self.processed[message.payload] += 1
            client.send(wire5.ack(wire5.PUBREC, message.packet_id))
        else:
            self.processed[message.payload] += 1
            client.send(wire5.ack(wire5.PUBACK, message.packet_id))


class GroupPublisher(Worker):
    """Publishes numbered messages at QoS 1 and 2; `accepted` has those that were acknowledged."""

    def __init__(self, node: NodeProcess, client_id: str, topics: list[str], pause: float) -> None:
        super().__init__(node, client_id, expiry=None)
        self.accepted: dict[bytes, int] = {}
        self._topics = topics
        self._pause = pause
        self._count = 0

    def work(self, client: RawClient5) -> None:
        while not self.is_over:
            self._count += 1
            qos = self._count % 2 + 1
            payload = f"{self.client_id}-{self._count}-{qos}".encode()
            found = client.publish(random.choice(self._topics), payload, qos=qos)
            if found is not None and found.code < 0x80:
                self.accepted[payload] = qos
            time.sleep(self._pause)
