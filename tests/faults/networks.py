"""
The network between the nodes, and what can be done to it: two ways with one interface.

`Namespaces` (as root): real interfaces, every packet passes `switch`. `EntryRelays`: every
connection passes `relay`. Names of nodes are those of the tree; cuts are pairs (source, target),
one way each.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import attrs

from tests.support.nodes import ROOT, free_port

from . import switch

MQTT_PORT, GRPC_PORT, LINK_PORT = 1883, 7001, 7002


@attrs.frozen(kw_only=True)
class Place:
    """
    Where a node is: `keys` of its topology file; `grpc` what others dial, `mqtt` what clients do;
    `prefix` goes before its command line.
    """

    keys: dict[str, Any]
    grpc: str
    mqtt: tuple[str, int]
    prefix: tuple[str, ...] = ()


class Network(Protocol):
    """What a world needs of its network."""

    places: dict[str, Place]

    def started(self, name: str, pid: int) -> None:
        """A node has a new process."""

    def cut(self, pairs: Iterable[tuple[str, str]]) -> None:
        """These are cut from now on, and no others."""

    def lose(self, share: float) -> None:
        """Lose this share of all packets from now on."""

    def forget(self, name: str) -> None:
        """What a dead node had still to send is lost, as with its machine."""

    def exchange(self, one: str, other: str) -> None:
        """Each of the two nodes has the other's address from now on; both run on."""

    def watch(self) -> None:
        """Begin to count tags in what passes between nodes."""

    def watched(self) -> list[tuple[str, str, str, int]]:
        """End that: (source, target, tag, how often)."""

    def close(self) -> None:
        """No more network."""


class _Process:
    """A child that takes one order a line, and answers each."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"tests.faults.{module}", *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def order(self, *words: Any) -> Any:
        with self._lock:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(words) + "\n")
            self._process.stdin.flush()
            return self.answer()

    def answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate(timeout=10)


class _Ordered:
    """The part that both have in common."""

    _process: _Process

    def cut(self, pairs: Iterable[tuple[str, str]]) -> None:
        self._process.order("cut", sorted(set(pairs)))

    def lose(self, share: float) -> None:
        self._process.order("lose", share)

    def forget(self, name: str) -> None:
        self._process.order("forget", name)

    def watch(self) -> None:
        self._process.order("watch", True)

    def watched(self) -> list[tuple[str, str, str, int]]:
        return [(s, t, tag, n) for s, t, tag, n in self._process.order("watch", False)]

    def close(self) -> None:
        self._process.close()


class Namespaces(_Ordered):
    """One namespace a node; only root can make them."""

    def __init__(self, names: Sequence[str]) -> None:
        self._process = _Process("switch", *names)
        spaces = self._process.answer()
        self.places = {
            name: self._place(switch.address(place), spaces[name])
            for place, name in enumerate(names)
        }

    def started(self, name: str, pid: int) -> None:
        """Nothing to do: addresses tell who is who."""

    def exchange(self, one: str, other: str) -> None:
        """As of each network. Whoever dials one of them by its old address reaches the other."""
        self._process.order("exchange", [one, other])
        first, second = self.places[one], self.places[other]
        self.places[one] = attrs.evolve(first, grpc=second.grpc, mqtt=second.mqtt)
        self.places[other] = attrs.evolve(second, grpc=first.grpc, mqtt=first.mqtt)

    def _place(self, host: str, space: str) -> Place:
        return Place(
            keys={
                # Any address, as a lease may give the node another one while it runs.
                "mqtt": [f"tcp:{MQTT_PORT}"],
                "grpc": f"0.0.0.0:{GRPC_PORT}",
                "link": f"0.0.0.0:{LINK_PORT}",
                "advertise": host,
            },
            grpc=f"{host}:{GRPC_PORT}",
            mqtt=(host, MQTT_PORT),
            prefix=("nsenter", f"--net={space}", "--"),
        )


class Relays(_Ordered):
    """One relay for each port of a node where other nodes dial; what is lost there is late."""

    def __init__(self, names: Sequence[str]) -> None:
        self.places, listeners = {}, []
        for number, name in enumerate(names):
            outside = f"127.213.0.{number + 1}"
            mqtt, grpc, link = (free_port() for _ in range(3))
            listeners += [(name, outside, "127.0.0.1", port) for port in (grpc, link)]
            self.places[name] = Place(
                keys={
                    "mqtt": [f"tcp:{mqtt}:interface=127.0.0.1"],
                    "grpc": f"127.0.0.1:{grpc}",
                    "link": f"127.0.0.1:{link}",
                    "advertise": outside,
                },
                grpc=f"{outside}:{grpc}",
                mqtt=("127.0.0.1", mqtt),
            )
        self._process = _Process("relay")
        self._process.order(*listeners)

    def started(self, name: str, pid: int) -> None:
        self._process.order("pid", name, pid)

    def exchange(self, one: str, other: str) -> None:
        """Not here: the addresses are the relays'."""
        raise NotImplementedError
