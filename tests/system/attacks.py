"""
A stranger's best effort on the ports of a node, for some seconds each, and what others see of it.

    python -m tests.system.attacks [--seconds N] [NAME ...]

runs all of `ATTACKS`, or some, each against a node of its own with a child, and prints a table.
Of each innocent client it has how long an answer took, and how long the node worked meanwhile, in
ms: what a busy machine adds to the one is not in the other. `refused` are connections that got no
CONNACK, or one of another code. `after` is the longest answer after the end.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.support.nodes import ROOT, NodeProcess, parse_address, topology
from tests.system.attack_list import ATTACKS
from tests.system.innocents import Innocent, Newcomer, Pair, Ports, quantile, resident, work_of

ATTACKER = "tests.system.attacks"
"""The module that is run to attack, as `ATTACKER --attack NAME SECONDS PORT PORT PORT`."""


def command(name: str, node: NodeProcess, seconds: float) -> list[str]:
    """The command that attacks the node; it leaves the processor to whom it is measured by."""
    ports = [str(port) for _, port in (node.mqtt, *map(parse_address, (node.link, node.grpc)))]
    module = [sys.executable, "-m", ATTACKER, "--attack", name, str(seconds)]
    return ["nice", "-n", "10", *module, *ports]


def attack(name: str, seconds: float, ports: Ports) -> None:
    """Do one of them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 20_000)), hard))
    until = time.monotonic() + seconds
    for _ in ATTACKS[name](ports):
        if time.monotonic() > until:
            return


def innocents(node: NodeProcess, child: NodeProcess) -> dict[str, Innocent]:
    """Who is measured: on the node, and through it on its child."""
    work = work_of(node)
    return {
        "qos0": Pair(address=node.mqtt, topic="innocent/0", worked=work),
        "qos1": Pair(address=node.mqtt, topic="innocent/1", qos=1, worked=work),
        "child": Pair(address=child.mqtt, topic="innocent/child", worked=work),
        "connect": Newcomer(
            address=node.mqtt, name="new", pause=0.25, counts_refusals=True, worked=work
        ),
        # Strangers come from elsewhere, and hosts take turns.
        "elsewhere": Newcomer(
            address=node.mqtt,
            name="far",
            pause=0.25,
            source="127.0.0.2",
            counts_refusals=True,
            worked=work,
        ),
        "durable": Newcomer(
            address=child.mqtt,
            name="kept",
            pause=0.5,
            clean=False,
            counts_refusals=True,
            worked=work_of(node, child),
        ),
    }


def measure(name: str, node: NodeProcess, child: NodeProcess, seconds: float) -> dict[str, str]:
    """What innocent clients saw during the attack and after it; the node's memory."""
    most = resident(node)
    with ExitStack() as stack:
        them = innocents(node, child)
        for one in them.values():
            stack.enter_context(one)
        time.sleep(1)
        began = time.monotonic()
        with subprocess.Popen(command(name, node, seconds), cwd=ROOT) as process:
            while process.poll() is None:
                most = max(most, resident(node))
                time.sleep(0.02)
        ended = time.monotonic()
        time.sleep(2)
        most = max(most, resident(node))
    found = {}
    for kind, one in them.items():
        taken, work = one.between(began, ended), one.work_between(began, ended)
        found[kind] = (
            f"{1e3 * quantile(taken, 0.5):.1f}/{1e3 * quantile(taken, 0.99):.0f}"
            f" {1e3 * quantile(work, 0.99):.0f}/{1e3 * quantile(work, 1.0):.0f}"
        )
        if isinstance(one, Newcomer) and one.refused:
            found[kind] += f" refused {one.refused}"
    found["after"] = f"{1e3 * quantile(them['qos0'].between(ended - 0.2, ended + 60), 1.0):.0f}"
    found["MiB"] = f"{most / 2**20:.0f}"
    return found


def main(arguments: Sequence[str]) -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description="What strangers do on a node's ports.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=" ".join(ATTACKS))
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--attack", nargs=5, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.attack:
        name, seconds, *ports = given.attack
        attack(name, float(seconds), Ports(*(("127.0.0.1", int(port)) for port in ports)))
        return
    print("of each: p50/p99 of the answer, p99/worst of the node's work until then, in ms")
    for name in given.names or ATTACKS:
        with tempfile.TemporaryDirectory() as directory:
            node = NodeProcess(Path(directory), topology("node", zone=""))
            child = NodeProcess(
                Path(directory), topology("child", zone="child", parent=node.document["grpc"])
            )
            try:
                with node, child:
                    child.wait_event("join.granted")
                    found = measure(name, node, child, given.seconds)
            except BaseException as error:
                print(f"{name:22} {type(error).__name__} {error}"[:200], flush=True)
                continue
            print(f"{name:22}", *(f"{key} {text:20}" for key, text in found.items()), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
