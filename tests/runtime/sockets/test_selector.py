"""The selector that serves connections before an event loop learns of anything."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from select import EPOLLIN

import pytest

from tests.support.cluster import on_loop
from tests.support.mqttclient import until
from txbroker.runtime.sockets.selector import Selector


@contextmanager
def a_pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two sockets that are connected."""
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def watching(end: socket.socket, found: list[bytes]) -> Callable[[], None]:
    """Have the running loop's selector read what comes at this end, until that is called."""

    def wait(timeout: float | None) -> bool:
        ready = dict(its.poll(timeout))
        if end.fileno() in ready:
            found.append(end.recv(100))
        return selector.number in ready

    selector = Selector.of(asyncio.get_running_loop())
    its = selector.join(wait)
    its.register(end.fileno(), EPOLLIN)
    return lambda: selector.remove(its)


@on_loop
async def test_both_kinds_are_served() -> None:
    with a_pair() as (client, node), a_pair() as (far, near):
        ours: list[bytes] = []
        theirs: list[bytes] = []
        leave = watching(node, ours)
        loop = asyncio.get_running_loop()
        loop.add_reader(near, lambda: theirs.append(near.recv(100)))
        client.send(b"one")
        far.send(b"two")
        await until(lambda: bool(ours and theirs))
        loop.remove_reader(near)
        leave()
        assert ([b"one"], [b"two"]) == (ours, theirs)


@on_loop
async def test_timers_and_threads_wake_it() -> None:
    with a_pair() as (_, node):
        leave = watching(node, [])
        await asyncio.sleep(0.01)
        assert os.getpid() == await asyncio.wait_for(asyncio.to_thread(os.getpid), 10)
        leave()


@pytest.mark.parametrize("first", [0, 1])
@on_loop
async def test_several_may_come_and_go_in_any_order(first: int) -> None:
    loop = asyncio.get_running_loop()
    with a_pair() as (client, node), a_pair() as (far, near):
        before = loop._selector  # type: ignore[attr-defined]
        found: tuple[list[bytes], list[bytes]] = ([], [])
        leaves = watching(node, found[0]), watching(near, found[1])
        ends = client, far
        for end in ends:
            end.send(b"here")
        await until(lambda: all(found))
        leaves[first]()
        ends[1 - first].send(b"still")
        await until(lambda: b"still" in found[1 - first])
        leaves[1 - first]()
        assert loop._selector is before  # type: ignore[attr-defined]


@on_loop
async def test_many_may_come_one_after_the_other() -> None:
    """Each while another one is still there."""
    with a_pair() as (client, node):
        found: list[bytes] = []
        leave = watching(node, found)
        for number in range(20):
            following = watching(node, found)
            leave()
            leave = following
            client.send(b"%d" % number)
            await until(lambda n=number: found[-1:] == [b"%d" % n])
        leave()
