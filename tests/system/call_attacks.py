"""What strangers do with well-formed calls on the gRPC port of a node, as fast as they can."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import grpc

from tests.support import wire
from tests.support.nodes import Address
from tests.system.innocents import Ports, Stranger
from txbroker.v1 import control_pb2, directory_pb2, journal_pb2
from txbroker.v1.control_pb2_grpc import ControlStub
from txbroker.v1.directory_pb2_grpc import DirectoryStub
from txbroker.v1.journal_pb2_grpc import JournalStub

CHANNELS = 16
OPEN = 16
"""Calls at a time on each channel."""

Call = Callable[[grpc.Channel, int], Any]
"""Begins the call of that number; an iterator where the answer is a stream."""


def call_storm(ports: Ports, call: Call) -> Iterator[None]:
    """Calls of one kind without end: each that ends makes room for another."""
    if call is records:
        fill(ports.mqtt, 20_000, 500)
    numbers = itertools.count(1)
    is_over = threading.Event()
    channels = [
        grpc.insecure_channel(
            f"{ports.grpc[0]}:{ports.grpc[1]}", options=[("grpc.use_local_subchannel_pool", 1)]
        )
        for _ in range(CHANNELS)
    ]

    def work(channel: grpc.Channel) -> None:
        while not is_over.is_set():
            try:
                answer = call(channel, next(numbers))
                if hasattr(answer, "__next__"):
                    for _ in answer:
                        if is_over.is_set():
                            answer.cancel()
                            break
            except grpc.RpcError:
                time.sleep(0.001)

    workers = [
        threading.Thread(target=work, args=(channel,), daemon=True)
        for channel in channels
        for _ in range(OPEN)
    ]
    for worker in workers:
        worker.start()
    try:
        while True:
            time.sleep(0.05)
            yield
    finally:
        is_over.set()


def status(channel: grpc.Channel, number: int) -> Any:
    return ControlStub(channel).Status(control_pb2.StatusRequest(), timeout=10)


def sys(channel: grpc.Channel, number: int) -> Any:
    return ControlStub(channel).Sys(control_pb2.SysRequest(), timeout=10)


def sessions(channel: grpc.Channel, number: int) -> Any:
    return ControlStub(channel).Sessions(control_pb2.SessionsRequest(), timeout=10)


def resolve(channel: grpc.Channel, number: int) -> Any:
    request = control_pb2.ResolveRequest(question=f"+/{number}/#", any=True)
    return ControlStub(channel).Resolve(request, timeout=10)


def join(channel: grpc.Channel, number: int) -> Any:
    announce = control_pb2.Announce(
        version=1, node=f"stranger{number}", grpc=f"127.0.0.1:{1 + number % 60_000}",
        incarnation=1, identity=f"{number:032x}", life=f"{number:032x}",
    )  # fmt: skip
    replies = ControlStub(channel).Join(
        iter([control_pb2.JoinRequest(announce=announce)]), timeout=10
    )
    next(replies)
    return replies


def open_link(channel: grpc.Channel, number: int) -> Any:
    request = control_pb2.OpenLinkRequest(
        edge=f"stranger{number}", incarnation=1, epoch=1, link_version=1,
        identity=f"{number:032x}", life=f"{number:032x}",
    )  # fmt: skip
    return ControlStub(channel).OpenLink(request, timeout=10)


def look_up(channel: grpc.Channel, number: int) -> Any:
    ids = [f"client {number} {place}" for place in range(1_000)]
    question = directory_pb2.Question(
        source="child", target="node", lookup=directory_pb2.Question.Lookup(client_ids=ids)
    )
    return DirectoryStub(channel).Ask(question, timeout=10)


def share_members(channel: grpc.Channel, number: int) -> Any:
    question = directory_pb2.Question(
        source=f"stranger{number}", target="node",
        share_members=directory_pb2.Question.ShareMembers(),
    )  # fmt: skip
    return DirectoryStub(channel).Ask(question, timeout=10)


def cursors(channel: grpc.Channel, number: int) -> Any:
    return JournalStub(channel).Cursors(journal_pb2.CursorsRequest(), timeout=10)


def records(channel: grpc.Channel, number: int) -> Any:
    """Read a zone's history from its beginning, for a filter that nothing matches."""
    request = journal_pb2.RecordsRequest(
        zone="", epoch=1, start=0, filter="nothing/+/of/it" if number % 2 else ""
    )
    return JournalStub(channel).Records(request, timeout=10)


def parts(channel: grpc.Channel, number: int) -> Any:
    return JournalStub(channel).Parts(journal_pb2.PartsRequest(), timeout=10)


def fill(address: Address, count: int, size: int) -> None:
    """Publishes that the zone's journal then has."""
    stranger = Stranger.to(address)
    stranger.send(wire.connect("filler"))
    payload = bytes(size)
    for number in range(count):
        packet = wire.publish(
            f"history/{number % 1_000}", payload, qos=1, packet_id=1 + number % 65_535
        )
        while not stranger.send(packet):
            stranger.read()
            time.sleep(0.001)
        stranger.read()


CALLS: Final[dict[str, Call]] = {
    "calls-status": status,
    "calls-sys": sys,
    "calls-sessions": sessions,
    "calls-resolve": resolve,
    "calls-join": join,
    "calls-links": open_link,
    "calls-look-up": look_up,
    "calls-members": share_members,
    "calls-cursors": cursors,
    "calls-parts": parts,
    "calls-records": records,
}
