"""
A run of one scenario against one contestant.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from benchmarks import generator
from benchmarks.brokers import Contestant, Site
from benchmarks.generator import Figures
from benchmarks.processes import anonymous_memory
from benchmarks.scenarios import THROUGHPUT_SECONDS, Scenario

SETTLE = 0.5
"""Seconds after which a broker has done what remains to be done after a start or a storm."""


def measure(scenario: Scenario, contestant: Contestant, given: Mapping[str, object]) -> Figures:
    """
    The figures of one run; `given` takes precedence over the scenario's arguments.

    Raises `RunFailed` when a message was lost, doubled, reordered or damaged, and `BrokerFailed`.
    """
    with contestant(scenario.form) as site:
        arguments = {
            "seconds": THROUGHPUT_SECONDS,
            **scenario.arguments,
            **site.arguments,
            **given,
            "publish-ports": site.publish_ports,
            "subscribe-ports": site.subscribe_ports,
            "prefixes": site.prefixes,
        }
        if arguments.get("mode") == "idle":
            return idle(site, arguments)
        figures = generator.run(arguments, site.pids)
        if "delivered" in figures:
            figures["per_cpu_second"] = 1e6 / figures["cpu_us"]
        return figures


def idle(site: Site, arguments: Mapping[str, object]) -> Figures:
    """Memory of a broker without clients, and what each idle connection adds to it."""
    (pid,) = site.pids
    time.sleep(SETTLE)
    base = anonymous_memory(pid)
    with generator.idle(arguments) as figures:
        time.sleep(SETTLE)
        more = anonymous_memory(pid) - base
    return {
        "rate": figures["rate"],
        "base_mb": base * 1024 / 1e6,
        "idle_bytes": more * 1024 / figures["connections"],
    }
