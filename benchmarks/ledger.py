"""
The cost of a delivery ledger: `python -m benchmarks.ledger`.

Two nodes, one with `ledger: true` and one without, take the same load by turns: QoS 1 to durable
sessions, ten publishers to ten subscribers. The command prints one JSON object, with the medians of
the generator's figures for each load and node. `cpu_us` is the node's processor time for each
delivery.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import statistics
import tempfile
from pathlib import Path

from benchmarks import generator
from benchmarks.generator import Figures
from benchmarks.node import Node
from benchmarks.reading import SHOWN

DURABLE: dict[str, object] = {
    "publishers": 10,
    "subscribers": 10,
    "qos": 1,
    "durable": 1,
    "seconds": 2.0,
}
LOADS: dict[str, dict[str, object]] = {
    "5,000 messages/s": {**DURABLE, "rate": 5000},
    "as many as there can be": DURABLE,
}


def measure(folder: Path, rounds: int) -> dict[str, object]:
    """All figures."""
    nodes = {
        name: Node(folder / name, ledger=kept)
        for name, kept in (("without", False), ("with", True))
    }
    try:
        for node in nodes.values():
            node.start()
        return {name: _by_turns(nodes, load, rounds) for name, load in LOADS.items()}
    finally:
        for node in nodes.values():
            node.end(signal.SIGTERM)


def _by_turns(nodes: dict[str, Node], load: dict[str, object], rounds: int) -> dict[str, Figures]:
    runs: dict[str, list[Figures]] = {name: [] for name in nodes}
    for _ in range(rounds):
        for name, node in nodes.items():
            runs[name].append(generator.run({**load, "ports": [node.port]}, [node.pid]))
    return {
        name: {
            figure: round(statistics.median(run[figure] for run in some), 1)
            for figure in SHOWN
            if figure in some[0]
        }
        for name, some in runs.items()
    }


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ledger", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    generator.build()
    folder = Path(tempfile.mkdtemp(prefix="txbroker-ledger-"))
    try:
        print(json.dumps(measure(folder, given.rounds), indent=1))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
