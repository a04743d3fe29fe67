"""Wrong frames on the link port: the link is dropped and counted, the node goes on."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from tests.support import wire
from tests.support.nodes import NodeProcess, parse_address
from tests.support.rawclient import RawClient
from tests.support.wire import PUBACK
from txbroker.link.frames import LINK_VERSION, encode_frame
from txbroker.v1 import control_pb2, link_pb2, types_pb2
from txbroker.v1.control_pb2_grpc import ControlStub

from .commands import wait_until
from .strangers import (
    LINKS_REFUSED,
    counter,
    read_to_end,
    send_all,
)


class Fuzz:
    """Opens links to a node as an edge that does not keep to the rules."""

    def __init__(self, node: NodeProcess) -> None:
        self.node = node
        self._channel = grpc.insecure_channel(node.grpc)
        self._incarnation = 0

    def hello(self, **fields: Any) -> link_pb2.LinkFrame:
        """A Hello that is right, but for these fields."""
        self._incarnation += 1
        request = control_pb2.OpenLinkRequest(
            edge="fuzz",
            incarnation=self._incarnation,
            zone="a",
            epoch=1,
            link_version=LINK_VERSION,
        )
        reply = ControlStub(self._channel).OpenLink(request, timeout=30)
        assert reply.authoritative
        right = {
            "version": LINK_VERSION,
            "token": reply.token,
            "edge": "fuzz",
            "zone": "a",
            "stream": 1,
        }
        right["incarnation"] = self._incarnation
        return link_pb2.LinkFrame(hello=link_pb2.Hello(**{**right, **fields}))

    def say(self, *parts: link_pb2.LinkFrame | bytes) -> socket.socket:
        """A connection on which all this was sent."""
        connection = socket.create_connection(parse_address(self.node.link), timeout=30)
        encoded = [p if isinstance(p, bytes) else encode_frame(p) for p in parts]
        send_all(connection, b"".join(encoded))
        return connection

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()


@pytest.fixture
def fuzz(pair: tuple[NodeProcess, NodeProcess]) -> Iterator[Fuzz]:
    """For the node `a`."""
    fuzz = Fuzz(pair[1])
    yield fuzz
    fuzz.close()


def test_token_counts_once_and_for_one(fuzz: Fuzz) -> None:
    """Guessed, another's, used: closed without a word. A link format to come is refused as well."""
    good = fuzz.hello()
    with fuzz.say(good) as connection:
        assert connection.recv(1)
        for bad in (
            good,
            fuzz.hello(token=b""),
            fuzz.hello(token=b"x" * 16),
            fuzz.hello(edge="root"),
            fuzz.hello(incarnation=77),
            fuzz.hello(version=99),
        ):
            with fuzz.say(bad) as refused:
                assert b"" == read_to_end(refused)


def batch(**fields: Any) -> link_pb2.LinkFrame:
    """The header of one publish, right but for these fields."""
    right = {"epoch": 1, "stream": 1, "first": 1, "count": 1, "clients": ["c"], "client": [0]}
    return link_pb2.LinkFrame(batch=link_pb2.Batch(**{**right, **fields}))


PUBLISH = wire.publish("a/x", b"1", qos=1, packet_id=1)

BREAKS: dict[str, list[link_pb2.LinkFrame | bytes]] = {
    "no header": [PUBLISH],
    "more than announced": [batch(), PUBLISH, PUBLISH],
    "wrong count": [batch(count=5, counts=[3])],
    "no such client": [batch(client=[3])],
    "a delivery": [batch(kind=link_pb2.Batch.LIVE)],
    "another stream": [batch(stream=4)],
    "a gap": [batch(first=9)],
    "wildcard": [batch(), wire.publish("a/#", b"1", qos=1, packet_id=1)],
    "ill-formed topic": [batch(), wire.publish(b"a/\xff", b"1", qos=1, packet_id=1)],
    "QoS 3": [batch(), wire.packet(3, 6, wire.string("a/x") + b"\x00\x01")],
    "a second hello": [link_pb2.LinkFrame(hello=link_pb2.Hello(version=LINK_VERSION))],
    "a wrong restart": [link_pb2.LinkFrame(restart=link_pb2.Restart(stream=9, sequence=7))],
    "endless length": [b"\x00\xff\xff\xff\xff\x7f"],
    "another type": [wire.PING],
    "no protobuf": [b"\x00\x05\xff\xff\xff\xff\xff"],
}


@pytest.mark.parametrize("broken", BREAKS)
def test_link_that_breaks_a_rule(fuzz: Fuzz, broken: str) -> None:
    """With a good token: closed and counted, the node goes on."""
    before = counter(fuzz.node, LINKS_REFUSED)
    with fuzz.say(fuzz.hello(), *BREAKS[broken]) as connection:
        read_to_end(connection)
        wait_until(lambda: counter(fuzz.node, LINKS_REFUSED) == before + 1, what="it is counted")


def test_random_frames(fuzz: Fuzz) -> None:
    """Frames with some bytes changed: whatever comes, the node goes on."""
    chance = random.Random(11)
    cut = types_pb2.Cut(apex="a/q", epoch=1 << 62, node="n", grpc="x")
    interest = link_pb2.InterestRequest(request=1, filter="a/#/b", retained=True)
    others = [
        link_pb2.LinkFrame(interest=interest),
        link_pb2.LinkFrame(
            sync=link_pb2.InterestSync(
                filters=["#/a", "", "+"], claims=[link_pb2.Claim(apex=""), link_pb2.Claim(apex="q")]
            )
        ),
        link_pb2.LinkFrame(position=link_pb2.Position(offset=1 << 63, consumed=1 << 63)),
        link_pb2.LinkFrame(credit=link_pb2.Credit(consumed=1 << 63)),
        link_pb2.LinkFrame(cut=cut),
        link_pb2.LinkFrame(),
        batch(),
    ]
    frames = [
        part if isinstance(part, bytes) else encode_frame(part)
        for part in [*others, *(part for parts in BREAKS.values() for part in parts)]
    ]
    for _ in range(150):
        said = bytearray(b"".join(chance.choices(frames, k=4)))
        for _ in range(chance.randrange(4)):
            said[chance.randrange(len(said))] = chance.randrange(256)
        fuzz.say(fuzz.hello(), bytes(said)).close()
    with RawClient(fuzz.node.mqtt) as client:
        client.connect("after")
        client.send(wire.publish("a/x", b"", qos=1, packet_id=1))
        client.expect(PUBACK, 1)
