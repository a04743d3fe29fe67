"""
The contestants: txbroker as its users launch it, Mosquitto and nats-server from Debian's packages,
and a relay that only copies bytes.

Each of `CONTESTANTS` makes a `Site`, the brokers of one run, fresh. Their data is in a folder that
goes away. The forms of a site (`FORMS`) are one broker; `hop1`, where publishers and subscribers
are at neighbours; `hop2`, where the owner or a third broker is in between; `members`, where
publishers are at the owner and subscribers at it and at an edge, in turn; `zones`, where the
contestant's name says how many zones there are (`of_zones`). Each zone has a node, whose clients
are at the node of their own zone.
"""

from __future__ import annotations

import contextlib
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from benchmarks.generator import PROGRAM, Arguments
from benchmarks.node import Node
from benchmarks.processes import BrokerFailed, find_program, free_port, listens, running

PREFIX = "bench"
"""First level of all topics, and the apex of the zone where several nodes are."""


@attrs.frozen(kw_only=True)
class Site:
    """Brokers that are up: where clients go, whose CPU time and memory count."""

    publish_ports: tuple[int, ...]
    subscribe_ports: tuple[int, ...]
    pids: tuple[int, ...]
    prefixes: tuple[str, ...] = (PREFIX,)
    arguments: Arguments = attrs.field(factory=dict)
    """The generator's, of whoever is measured with others than the scenario's."""


Contestant = Callable[[str], AbstractContextManager[Site]]


@contextlib.contextmanager
def txbroker(form: str, *, core: str, **keys: Any) -> Iterator[Site]:
    """Nodes with these keys, which run this core; `BrokerFailed` if `node.ready` names another."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="txbroker-bench-")))
        nodes: list[Node] = []
        for number, place in enumerate(_places(form)):
            if nodes:
                place["parent"] = nodes[0].document["grpc"]
            node = Node(folder / str(number), **{"node": f"bench-{number}", **place, **keys})
            stack.callback(node.end, signal.SIGTERM)
            node.launch()
            nodes.append(node)
        for node in nodes:
            node.wait("join.granted" if node.document.get("zone") else "node.ready")
            if node.core() != core:
                raise BrokerFailed(
                    f"the node runs the core {node.core()!r}, to be measured is {core!r}: "
                    "build the extension (make install), or choose with --core"
                )
        ports = tuple(node.port for node in nodes)
        pids = tuple(node.pid for node in nodes)
        yield _site(form, ports, pids)


def _places(form: str) -> list[dict[str, Any]]:
    """The zones of a site's nodes, the root first."""
    if form == "single":
        return [{"zone": ""}]
    if form == "hop1":
        return [{"zone": ""}, {"zone": PREFIX}]
    if form == "hop2":
        return [{"zone": ""}, {"zone": PREFIX}, {}]
    if form == "members":
        return [{"zone": ""}, {}]
    names = _zones(form)[1:]
    return [{"zone": ""}, *({"zone": name} for name in names)]


def _zones(form: str) -> tuple[str, ...]:
    count = int(form.removeprefix("zones"))
    return (PREFIX, *(f"{PREFIX}{number}" for number in range(1, count)))


def _site(form: str, ports: tuple[int, ...], pids: tuple[int, ...]) -> Site:
    if form.startswith("zones"):
        return Site(publish_ports=ports, subscribe_ports=ports, pids=pids, prefixes=_zones(form))
    receiving = ports if form == "members" else ports[-1:]
    return Site(publish_ports=ports[:1], subscribe_ports=receiving, pids=pids)


@contextlib.contextmanager
def mosquitto(form: str, *, no_delay: bool, keeps_memory: bool = False) -> Iterator[Site]:
    """
    Mosquitto without limits for a subscriber that is behind; it syncs nothing.

    Several are a chain of bridges, each of which brings everything to the next broker. With
    `keeps_memory` malloc gives nothing back to the system. A broker that has been up for a while
    may behave so: a message of 1 MiB costs half of the CPU time then.
    """
    program = find_program("mosquitto", "mosquitto")
    count = {"single": 1, "hop1": 2, "hop2": 3}[form]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mosquitto-bench-")))
        ports = tuple(free_port() for _ in range(count))
        pids = []
        for number, port in reversed(list(enumerate(ports))):
            own = folder / str(number)
            own.mkdir()
            bridge = _bridge(number, ports[number + 1]) if number + 1 < count else ""
            Path(own, "mosquitto.conf").write_text(
                f"listener {port} 127.0.0.1\nallow_anonymous true\nmax_inflight_messages 0\n"
                f"max_queued_messages 0\nset_tcp_nodelay {str(no_delay).lower()}\n"
                f"log_type error\nlog_type warning\n{bridge}"
            )
            command = [program, "-c", "mosquitto.conf"]
            if keeps_memory:
                command = ["env", *KEEP_MEMORY, *command]
            pids.append(stack.enter_context(running(command, own, listens(port))).pid)
        yield _site(form, ports, tuple(pids))


def _bridge(number: int, port: int) -> str:
    return (
        f"connection bridge-{number}\naddress 127.0.0.1:{port}\ntopic # out 2\n"
        "cleansession true\nnotifications false\nrestart_timeout 1\n"
    )


@contextlib.contextmanager
def nats_server(form: str) -> Iterator[Site]:
    """nats-server with its MQTT listener, which wants JetStream."""
    assert form == "single"
    program = find_program("nats-server", "nats-server")
    with tempfile.TemporaryDirectory(prefix="nats-bench-") as folder:
        port = free_port()
        Path(folder, "nats.conf").write_text(
            f'server_name: bench\nlisten: "127.0.0.1:{free_port()}"\n'
            f'jetstream {{ store_dir: "{folder}/jetstream" }}\n'
            f"mqtt {{ host: 127.0.0.1, port: {port} }}\n"
        )
        command = [program, "-c", "nats.conf"]
        with running(command, Path(folder), listens(port)) as process:
            yield Site(publish_ports=(port,), subscribe_ports=(port,), pids=(process.pid,))


@contextlib.contextmanager
def relay(form: str) -> Iterator[Site]:
    """
    No brokers: processes that hand on the bytes of publishers without a look at them, one for each
    zone. Several relays take more than one, and the difference is the machine's.
    """
    with contextlib.ExitStack() as stack:
        ports, pids = [], []
        for _ in _zones(form):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="relay-bench-")))
            port = free_port()
            command = [str(PROGRAM), "--mode", "relay", "--ports", str(port)]
            pids.append(stack.enter_context(running(command, folder, listens(port))).pid)
            ports.append(port)
        yield _site(form, tuple(ports), tuple(pids))


KEEP_MEMORY = (
    f"MALLOC_MMAP_THRESHOLD_={1 << 25}",
    f"MALLOC_TRIM_THRESHOLD_={1 << 28}",
    f"MALLOC_TOP_PAD_={1 << 26}",
)
"""For glibc: take memory from the heap in large pieces, and keep it."""

ZONES = (1, 2, 4)
"""Zones, with a node each, that are measured beside each other."""

MOSQUITTOS = ("mosquitto", "mosquitto nodelay")


def of_zones(name: str, count: int) -> str:
    """
    The name of a contestant that serves so many zones, in the form `zones`, with so many processes.
    """
    return f"{name}, {count} zone{'s' * (count > 1)}"


def _in_zones(make: Contestant, count: int) -> Contestant:
    return lambda _: make(f"zones{count}")


@contextlib.contextmanager
def _at_level_4(make: Contestant, form: str) -> Iterator[Site]:
    with make(form) as site:
        yield attrs.evolve(site, arguments={"level": 4})


def contestants(core: str) -> dict[str, Contestant]:
    """All of them by name, the nodes with the core that is to be measured."""
    node = partial(txbroker, core=core)
    fast: Contestant = partial(node, journal="qos12")
    pairs: tuple[tuple[str, Contestant], ...] = (("txbroker qos12", fast), ("relay", relay))
    return {
        "mosquitto": partial(mosquitto, no_delay=False),
        "mosquitto nodelay": partial(mosquitto, no_delay=True),
        "tuned mosquitto": partial(mosquitto, no_delay=True, keeps_memory=True),
        "nats-server": nats_server,
        "txbroker": node,
        "txbroker qos12": fast,
        "txbroker memory": partial(node, durability="memory"),
        "txbroker qos12, 3.1.1": partial(_at_level_4, fast),
        **{
            of_zones(name, count): _in_zones(make, count) for name, make in pairs for count in ZONES
        },
    }
