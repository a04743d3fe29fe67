"""Answers that several clients get together, before the end of a turn."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tests.core.cores import both
from txbroker.core.reference.output_group import TOGETHER


@contextmanager
def connected(core: Any, count: int = TOGETHER) -> Iterator[tuple[Any, list[Any], list[Any]]]:
    """A router, packet writers of it with a socket each, and the clients' ends of these."""
    router = core.Router(lambda: None)
    writers, clients = [], []
    with ExitStack() as stack:
        for _ in range(count):
            here, there = (stack.enter_context(one) for one in socket.socketpair())
            here.setblocking(False)
            there.setblocking(False)
            writers.append(router.make_packet_writer())
            writers[-1].descriptor = here.fileno()
            clients.append(there)
        yield router, writers, clients


def read(client: socket.socket) -> bytes:
    """What has come by now."""
    try:
        return client.recv(10_000_000)
    except BlockingIOError:
        return b""


@both
def test_outputs_of_a_group_leave_when_it_is_full(core: Any) -> None:
    with connected(core, TOGETHER + 1) as (router, writers, clients):
        for writer in writers[: TOGETHER - 1]:
            writer.send_soon(b"CONNACK")
        assert not any(map(read, clients)), "each write may wake a client's process"
        writers[TOGETHER - 1].send_soon(b"CONNACK")
        assert [b"CONNACK"] * TOGETHER + [b""] == list(map(read, clients))

        writers[TOGETHER].send_soon(b"CONNACK")
        assert b"" == read(clients[TOGETHER]), "the first of another group"
        assert [] == router.send_outputs()
        assert b"CONNACK" == read(clients[TOGETHER]), "the turn ends before the group is full"


@both
def test_a_turn_leaves_no_group_to_the_next_turn(core: Any) -> None:
    with connected(core) as (router, writers, clients):
        for writer in writers[1:]:
            writer.send_soon(b"1")
        router.send_outputs()
        list(map(read, clients))
        writers[1].send(b"2")
        writers[0].send_soon(b"3")
        assert b"" == read(clients[1]), "no group of the last turn became full"


@both
def test_output_of_a_group_overtakes_nothing(core: Any) -> None:
    with connected(core) as (_, writers, clients):
        much = os.urandom(3_000_000)
        writers[0].send(b"before")
        writers[0].send_soon(much)
        for writer in writers[1:]:
            writer.send_soon(b"CONNACK")
        assert 0 < writers[0].size < len(much)
        writers[0].send_soon(b"after")
        got = b""
        while len(got) < len(much) + 11:
            writers[0].send_to(writers[0].descriptor)
            got += read(clients[0])
        assert b"before" + much + b"after" == got


@both
def test_a_broken_socket_and_a_missing_one_keep_nobody_waiting(core: Any) -> None:
    with connected(core) as (router, writers, clients):
        clients[0].close()
        writers[1].descriptor = -1
        for writer in writers:
            writer.send_soon(b"CONNACK")
        assert [b"CONNACK"] * (TOGETHER - 2) == list(map(read, clients[2:]))
        assert writers[:2] == router.send_outputs(), "their connections look at them"
        assert [7, 7] == [writer.size for writer in writers[:2]]
