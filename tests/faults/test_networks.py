"""Both kinds of network carry, cut one way and both ways, lose, and count what passes."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .__main__ import INSIDE, UNSHARE, can_have_namespaces
from .networks import Namespaces, Network, Relays

SERVER = """
import socket, sys
host, _, port = sys.argv[1].rpartition(':')
listener = socket.create_server((host, int(port)))
print('ready', flush=True)
while True:
    connection, _ = listener.accept()
    with connection:
        while data := connection.recv(65536):
            connection.sendall(data)
"""

CLIENT = """
import socket, sys
host, _, port = sys.argv[1].rpartition(':')
connection = socket.create_connection((host, int(port)))
print('ready', flush=True)
for line in sys.stdin:
    connection.sendall(line.encode())
    got = b''
    while not got.endswith(b'\\n'):
        got += connection.recv(65536)
    print(len(got), flush=True)
"""


class Program:
    """A program at the place of a node."""

    def __init__(self, network: Network, name: str, text: str, address: str) -> None:
        prefix = network.places[name].prefix
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-u", "-c", text, address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        network.started(name, self.process.pid)

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def say(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def is_silent(self, seconds: float) -> bool:
        assert self.process.stdout is not None
        return not select.select([self.process.stdout], [], [], seconds)[0]

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


KIND = Namespaces if INSIDE in os.environ else Relays
"""Namespaces only in a process that has its own: see `test_namespaces`."""


@pytest.fixture
def network() -> Iterator[Network]:
    """Of `one` and `other`."""
    made: Network = KIND(["one", "other"])
    yield made
    made.close()


@pytest.fixture
def pair(network: Network) -> Iterator[Program]:
    """A client at `one`, connected to a server at `other`."""
    place = network.places["other"]
    server = Program(network, "other", SERVER, str(place.keys["grpc"]))
    assert "ready" == server.line()
    client = Program(network, "one", CLIENT, place.grpc)
    assert "ready" == client.line()
    yield client
    client.close()
    server.close()


def test_bytes_pass(pair: Program) -> None:
    """There and back."""
    pair.say("x" * 100_000)

    assert "100001" == pair.line()


@pytest.mark.parametrize(
    "pairs",
    [
        [("one", "other"), ("other", "one")],
        [("one", "other")],
        [("other", "one")],
    ],
)
def test_cut_holds_up_what_passes_until_it_is_mended(
    network: Network, pair: Program, pairs: list[tuple[str, str]]
) -> None:
    """Both ways or one way; the connection survives."""
    network.cut(pairs)
    pair.say("x")

    assert pair.is_silent(0.5)

    network.cut([])

    assert "2" == pair.line()


def test_what_a_dead_node_had_still_to_send_is_lost(network: Network) -> None:
    """Its kernel would send that after the cut. Later connections are like any other."""
    place = network.places["other"]
    programs: list[Program] = []

    def start(name: str, text: str, address: str) -> Program:
        programs.append(Program(network, name, text, address))
        assert "ready" == programs[-1].line()
        return programs[-1]

    try:
        server = start("other", SERVER, str(place.keys["grpc"]))
        client = start("one", CLIENT, place.grpc)
        network.cut([("other", "one")])
        client.say("x")
        assert client.is_silent(0.5)
        server.close()
        network.forget("other")
        network.cut([])
        assert client.is_silent(1.0) or not client.line()

        start("other", SERVER, str(place.keys["grpc"]))
        client = start("one", CLIENT, place.grpc)
        client.say("x")
        assert "2" == client.line()
    finally:
        for program in programs:
            program.close()


def test_cut_of_others_changes_nothing(network: Network, pair: Program) -> None:
    """A cut is between two nodes."""
    network.cut([("one", "third"), ("third", "other")])
    pair.say("x")

    assert "2" == pair.line()


def test_cut_holds_up_new_connections(network: Network, pair: Program) -> None:
    """Those to the same node from elsewhere go on."""
    network.cut([("one", "other"), ("other", "one")])
    place = network.places["other"]
    outside = subprocess.run(
        [sys.executable, "-c", f"import socket; socket.create_connection({place.mqtt!r}, 3)"],
        capture_output=True,
        text=True,
    )
    pair.say("x")

    assert "refused" in outside.stderr  # it answers: nothing listens there
    assert pair.is_silent(0.3)


def test_tags_are_counted_while_they_are_watched(network: Network, pair: Program) -> None:
    """For each direction."""
    pair.say("<pub-1 7 a/b 9>")
    pair.line()
    network.watch()
    for _ in range(2):
        pair.say("." * 3000 + "<pub-1 8 a/b 9>")
        pair.line()
    pair.say("<pub-2 9 a/b 9>")
    pair.line()

    assert [
        ("one", "other", "pub-1 8", 2),
        ("one", "other", "pub-2 9", 1),
        ("other", "one", "pub-1 8", 2),
        ("other", "one", "pub-2 9", 1),
    ] == sorted(network.watched())


def test_losses_hold_up_and_lose_nothing(network: Network, pair: Program) -> None:
    """TCP repeats what is lost, and so does a relay."""
    network.lose(1.0)
    pair.say("x" * 3000)

    assert pair.is_silent(0.3)

    network.lose(0.2)

    assert "3001" == pair.line()


def test_nodes_are_found_where_they_are(network: Network) -> None:
    """Also while they have each other's addresses, which relays have for good."""
    if KIND is Relays:
        with pytest.raises(NotImplementedError):
            network.exchange("one", "other")
        return
    before = dict(network.places)
    network.exchange("one", "other")
    place = network.places["one"]
    server = Program(network, "one", SERVER, str(place.keys["grpc"]))
    assert "ready" == server.line()
    client = Program(network, "other", CLIENT, place.grpc)

    assert "ready" == client.line()
    assert before["other"].grpc == place.grpc

    client.close()
    server.close()
    network.exchange("one", "other")

    assert before == network.places


@pytest.mark.skipif(
    INSIDE in os.environ or not can_have_namespaces(), reason="takes root and namespaces"
)
def test_namespaces() -> None:
    """The tests above in a process with namespaces of its own."""
    here = Path(__file__)
    done = subprocess.run(
        [*UNSHARE, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(here)],
        cwd=here.parents[2],
        env={**os.environ, INSIDE: "yes"},
        capture_output=True,
        text=True,
    )

    assert 0 == done.returncode, done.stdout + done.stderr
    assert " passed" in done.stdout
