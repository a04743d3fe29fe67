"""
QoS 1 with `durability: sync` beside Mosquitto, which does not sync: `python -m benchmarks.durable`.

The brokers take turns, `--runs` times each; the table has medians with their spread, and the ratio
to the better of Mosquitto with and without `set_tcp_nodelay`, figure by figure. `--json FILE` keeps
the figures of each run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from benchmarks.brokers import Running, mosquitto, txbroker
from benchmarks.load import sys_value

Broker = Callable[[], AbstractContextManager[Running]]

BROKERS: dict[str, Broker] = {
    "mosquitto": partial(mosquitto, no_delay=False),
    "mosquitto nodelay": partial(mosquitto, no_delay=True),
    "txbroker sync": partial(txbroker, "sync"),
    "txbroker interval": partial(txbroker, "interval"),
    "txbroker memory": partial(txbroker, "memory"),
}

SCENARIOS = {
    "throughput, window 1000": ("--window", "1000"),
    "throughput, window 100": ("--window", "100"),
    "1,000 messages a second": ("--rate", "1000"),
    "1,000 messages a second to a durable session": ("--rate", "1000", "--durable"),
}

Figures = dict[str, float]


def measure(broker: Broker, arguments: tuple[str, ...], seconds: float) -> Figures:
    """One run of one scenario on a fresh broker."""
    with broker() as running:
        command = [sys.executable, "-m", "benchmarks.load", str(running.port)]
        command += [*arguments, "--seconds", str(seconds)]
        before = running.cpu_seconds()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{running.name}: {done.stderr.strip() or done.stdout}")
        found: Figures = json.loads(done.stdout)
        found["cpu"] = (running.cpu_seconds() - before) / found["messages"] * 1e6
        if running.name in ("txbroker sync", "txbroker interval"):  # `memory` syncs nothing
            found["syncs"] = float(sys_value(running.port, "txbroker/store/syncs")) / seconds
        return found


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    results: dict[str, dict[str, list[Figures]]] = {}
    for scenario, arguments in SCENARIOS.items():
        runs: dict[str, list[Figures]] = {name: [] for name in BROKERS}
        for _ in range(given.runs):
            for name, broker in BROKERS.items():
                runs[name].append(measure(broker, arguments, given.seconds))
        print_table(scenario, runs)
        results[scenario] = runs
    if given.json is not None:
        given.json.write_text(json.dumps(results, indent=1) + "\n")


def print_table(scenario: str, runs: dict[str, list[Figures]]) -> None:
    """Medians, spread and ratios of one scenario."""
    print(f"\n### {scenario}\n")
    print("| | messages/s (min–max) | × | p50 µs | p99 µs | CPU µs a message | syncs/s |")
    print("|---|---|---|---|---|---|---|")
    best = max(median(runs[name], "rate") for name in BROKERS if name.startswith("mosquitto"))
    for name, figures in runs.items():
        rate = median(figures, "rate")
        spread = [one["rate"] for one in figures]
        print(
            f"| {name} | {rate:,.0f} ({min(spread):,.0f}–{max(spread):,.0f}) | {rate / best:.2f}"
            f" | {median(figures, 'p50'):,.0f} | {median(figures, 'p99'):,.0f}"
            f" | {median(figures, 'cpu'):.1f}"
            f" | {format(median(figures, 'syncs'), ',.0f') if 'syncs' in figures[0] else ''} |",
            flush=True,
        )


def median(figures: list[Figures], key: str) -> float:
    """The median of one figure over the runs."""
    return statistics.median(one[key] for one in figures)


if __name__ == "__main__":
    main()
