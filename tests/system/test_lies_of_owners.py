"""An owner that lies over its link to a real node: the link ends, and the node lives on."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.support.liar import Liar, join
from tests.support.nodes import NodeProcess, free_port, topology
from tests.support.rawclient import RawClient
from txbroker.link.frames import LINK_VERSION, FrameReader, encode_frame
from txbroker.mqtt.wire.encoder import encode_publish
from txbroker.v1 import control_pb2, link_pb2, types_pb2
from txbroker.v1.control_pb2_grpc import ControlStub
from txbroker.v1.link_pb2 import Batch, LinkFrame

BEGIN = encode_frame(
    LinkFrame(welcome=link_pb2.Welcome(version=LINK_VERSION, zone="a", epoch=1, credit=1_000_000))
) + encode_frame(LinkFrame(online=link_pb2.Online()))


def delivery(topic: str, qos: int = 0, offset: int = 0) -> bytes:
    batch = Batch(kind=Batch.LIVE, epoch=1, count=1, offsets=[offset])
    packet = encode_publish(topic, topic.encode(), qos, False, False, qos or None)
    return encode_frame(LinkFrame(batch=batch)) + packet


TRUE = delivery("a/t")
ELSEWHERE = control_pb2.Passage(
    apex="b",
    left=control_pb2.Predecessor(zone="b", epoch=1, offset=1),
    entered=control_pb2.Predecessor(zone="", epoch=1, offset=1),
)
HUGE = 1 << 61
GRANTS: list[dict[str, Any]] = [
    {"passages": [ELSEWHERE]},
    {
        "passages": [
            control_pb2.Passage(
                apex="a",
                left=control_pb2.Predecessor(zone="", epoch=HUGE, offset=1),
                entered=control_pb2.Predecessor(zone="a", epoch=1),
            )
        ]
    },
    {"predecessor": control_pb2.Predecessor(zone="b", epoch=1, offset=1)},
    {"predecessor": control_pb2.Predecessor(zone="", epoch=HUGE, offset=1)},
    {"root": control_pb2.Root(zone="", epoch=HUGE, identity="i")},
    {"link": "nowhere"},
    {"link": "127.0.0.1\u200b:1"},
    {"epoch": HUGE},
]
"""What an owner says when it lets an edge in, and no honest one does."""

A_CUT = types_pb2.Cut(apex="a/x", epoch=1, node="x", grpc="127.0.0.1:1")

LIES = {
    "a sibling's topic": (delivery("b/t"), "topic 'b/t' is not of zone 'a'"),
    "what it has cut off": (
        encode_frame(LinkFrame(cut=A_CUT)) + delivery("a/x/t"),
        "topic 'a/x/t' is not of zone 'a'",
    ),
    "a frame of edges": (
        encode_frame(LinkFrame(position=link_pb2.Position())),
        "an owner does not say position",
    ),
}


class LyingLink:
    """A link's listener: each connection is told the next lie."""

    def __init__(self, on_connected: Callable[[], None]) -> None:
        self._on_connected = on_connected
        self.lies: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = "{}:{}".format(*self._socket.getsockname())
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self._on_connected()
            with connection:
                self._lie(connection, self.lies.get())

    def _lie(self, connection: socket.socket, lie: bytes) -> None:
        """Say what is true until the edge has asked for it, then the lie behind it."""
        connection.settimeout(20)
        reader = FrameReader()
        try:
            connection.sendall(BEGIN)
            while data := connection.recv(65536):
                for frame in reader.read(data):
                    if isinstance(frame, LinkFrame) and frame.interest.request:
                        answer = link_pb2.InterestAnswer(request=frame.interest.request)
                        connection.sendall(encode_frame(LinkFrame(answer=answer)) + TRUE)
                        connection.sendall(TRUE + lie)
        except OSError:
            pass


@pytest.fixture(params=["0", "1"], ids=["compiled", "reference"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NodeProcess]:
    pure = {"TXBROKER_PURE": request.param}
    with NodeProcess(tmp_path, topology("root", zone=""), env=pure) as node:
        yield node


def test_lies_of_an_owner_end_its_link(root: NodeProcess) -> None:
    """What it says before the lie is delivered, and nothing of the lie."""
    opened: list[str] = []
    link, address = LyingLink(lambda: opened.append("connected")), f"127.0.0.1:{free_port()}"
    zone = types_pb2.Cut(apex="a", epoch=1, node="liar", grpc=address)

    def open_link(_: object) -> control_pb2.OpenLinkReply:
        lies = dict(enumerate(GRANTS)).get(len(opened), {})
        opened.append("asked")
        true = {"link": link.address, "token": b"token", "epoch": 1, "link_version": LINK_VERSION}
        return control_pb2.OpenLinkReply(authoritative=True, **{**true, **lies})

    answers = {
        "Resolve": lambda _: control_pb2.ResolveReply(zone=zone, ttl=300),
        "OpenLink": open_link,
    }
    with Liar(address, answers), RawClient(root.mqtt) as client:  # type: ignore[abstract]
        with grpc.insecure_channel(root.grpc) as channel:
            join(ControlStub(channel), address)
        client.connect("c")
        for lie, (said, reason) in LIES.items():
            mark = root.mark()
            link.lies.put(said)
            client.subscribe(("#", 1))
            assert reason == root.wait_event("link.closed", peer="liar", after=mark)["reason"], lie
            client.publish("own", lie.encode(), qos=1)
            topics = []
            while (topic := client.expect_publish().topic) != "own":
                topics.append(topic)
            assert ["a/t", "a/t"] == topics, lie
    link.close()
    asked = opened.index("connected")
    assert len(GRANTS) + 1 == asked, f"it is believed: {GRANTS[asked - 1]}"
    assert [] == [line for line in root.lines if "Traceback" in line]
