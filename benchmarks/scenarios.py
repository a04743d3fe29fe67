"""
The scenarios that are measured, with the targets of each. `docs/performance.md` tells what they
mean.
"""

from __future__ import annotations

import attrs

from benchmarks.brokers import MOSQUITTOS, ZONES, of_zones
from benchmarks.generator import Arguments
from benchmarks.targets import Target

FAST, ALL, SYNC, MEMORY = "txbroker qos12", "txbroker", "txbroker", "txbroker memory"
FAST_4 = "txbroker qos12, 3.1.1"
"""`journal: qos12` and `journal: all` for QoS 0, `durability: sync` and `memory` for the others."""

TEN = {"publishers": 10, "subscribers": 10}
THROUGHPUT_SECONDS = 1.0
RATE_SECONDS = 5.0
"""
Of publishing. At 1,000 messages a second, 50 lie beyond the p99. So an event of each second at a
node, or at the host, counts as much in each run.
"""
PACED = {"rate": 1000, "seconds": RATE_SECONDS}


@attrs.frozen(kw_only=True)
class Scenario:
    """
    A load on one form of site, for each contestant.

    `arguments` are the generator's. `is_quick`: also in `make bench-quick`.
    """

    name: str
    title: str
    arguments: Arguments
    contestants: tuple[str, ...]
    targets: tuple[Target, ...] = ()
    form: str = "single"
    is_quick: bool = False


def _rate(contestant: str, must: float, stretch: float, against: str = "mosquitto") -> Target:
    return Target("rate", contestant, must, stretch, against)


def _delay(
    contestant: str, p50: tuple[float, float], p99: tuple[float, float]
) -> tuple[Target, ...]:
    return (Target("p50_us", contestant, *p50), Target("p99_us", contestant, *p99))


QOS0 = (*MOSQUITTOS, FAST, ALL)
QOS12 = (*MOSQUITTOS, MEMORY, SYNC)

THROUGHPUT = (
    Scenario(
        name="1-1",
        title="QoS 0, 1→1",
        arguments={},
        contestants=(*QOS0, "nats-server"),
        targets=(_rate(FAST, 40, 120),),
        is_quick=True,
    ),
    Scenario(
        name="10-10",
        title="QoS 0, 10→10",
        arguments=TEN,
        contestants=(*QOS0, "nats-server"),
        targets=(_rate(FAST, 40, 120), _rate(FAST, 3, 10, "nats-server")),
        is_quick=True,
    ),
    Scenario(
        name="fan-out",
        title="fan-out 1→100",
        arguments={"subscribers": 100, "mapping": "all", "outstanding": 100_000},
        contestants=QOS0,
        targets=(_rate(FAST, 60, 150),),
    ),
    Scenario(
        name="fan-in",
        title="fan-in 100→1",
        arguments={"publishers": 100, "mapping": "all"},
        contestants=QOS0,
        targets=(_rate(FAST, 40, 120),),
        is_quick=True,
    ),
    Scenario(
        name="wildcards",
        title="1,000 wildcard filters, 10→10",
        arguments={**TEN, "mapping": "wildcards", "filters": 1000},
        contestants=QOS0,
        targets=(_rate(FAST, 30, 100),),
    ),
    Scenario(
        name="fresh",
        title="topics that never come again, QoS 0, 10→10",
        arguments={**TEN, "fresh": 1},
        contestants=QOS0,
    ),
    Scenario(
        name="qos1",
        title="QoS 1, 10→10, window 100",
        arguments={**TEN, "qos": 1},
        contestants=QOS12,
        targets=(_rate(MEMORY, 15, 40), _rate(SYNC, 5, 20)),
        is_quick=True,
    ),
    Scenario(
        name="qos2",
        title="QoS 2, 10→10, window 100",
        arguments={**TEN, "qos": 2},
        contestants=QOS12,
        targets=(_rate(MEMORY, 10, 30),),
    ),
    Scenario(
        name="mixed",
        title="QoS 0, 1 and 2 mixed, 10→10",
        arguments={**TEN, "qos": "mixed"},
        contestants=QOS12,
    ),
    Scenario(
        name="durable",
        title="QoS 1 to durable sessions, 10→10",
        arguments={**TEN, "qos": 1, "durable": 1},
        contestants=QOS12,
    ),
)

PAYLOADS = tuple(
    Scenario(
        name=f"payload-{name}",
        title=f"payload of {text}, 1→1",
        arguments={"size": size, "outstanding": outstanding},
        contestants=(*MOSQUITTOS, *(["tuned mosquitto"] if size == 1 << 20 else []), FAST),
        targets=(_rate(FAST, 1, 2),) if size == 1 << 20 else (),
    )
    for name, text, size, outstanding in (
        ("16B", "16 B", 16, 30_000),
        ("1K", "1 KiB", 1 << 10, 10_000),
        ("16K", "16 KiB", 1 << 14, 1_000),
        ("1M", "1 MiB", 1 << 20, 16),
    )
)

SINGLE = (
    Scenario(
        name="one-a-send",
        title="one publish per send, 10→10",
        arguments={**TEN, "batch": 0},
        contestants=(*MOSQUITTOS, FAST),
        targets=(Target("cpu_us", FAST, 0.4, 0.25),),
    ),
    Scenario(
        name="one-at-a-time",
        title="one publish per send, the next one when it has arrived, 10→10",
        arguments={**TEN, "batch": 0, "outstanding": 10},
        contestants=(*MOSQUITTOS, FAST),
    ),
    Scenario(
        name="clients",
        title="1,000 publishers × 10 messages/s, 1,000 subscribers",
        arguments={
            "publishers": 1000,
            "subscribers": 1000,
            "rate": 10_000,
            "seconds": RATE_SECONDS,
        },
        contestants=(*MOSQUITTOS, FAST),
        targets=(Target("cpu_us", FAST, 1.0, 0.5),),
    ),
    Scenario(
        name="latency",
        title="1,000 messages/s, QoS 0, 10→10",
        arguments={**TEN, **PACED},
        contestants=QOS0,
        targets=_delay(FAST, (1.5, 1.0), (1.2, 0.8)),
        is_quick=True,
    ),
    Scenario(
        name="latency-qos1",
        title="1,000 messages/s, QoS 1, 10→10",
        arguments={**TEN, **PACED, "qos": 1},
        contestants=QOS12,
    ),
)

OTHERS = (
    Scenario(
        name="churn",
        title="QoS 0, 10→10, beside 10 clients that change subscriptions all the time",
        arguments={**TEN, "churn": 10},
        contestants=(*MOSQUITTOS, FAST),
    ),
    Scenario(
        name="slow",
        title="QoS 0, 10→10, beside a subscriber to everything that reads 100 kB/s",
        arguments={**TEN, "slow": 1},
        contestants=(*MOSQUITTOS, FAST),
    ),
)

CONNECTIONS = (
    Scenario(
        name="connect",
        title="10,000 connections, CONNECT to CONNACK",
        arguments={"mode": "connect"},
        contestants=(*MOSQUITTOS, ALL),
        targets=(_rate(ALL, 1, 2),),
        is_quick=True,
    ),
    Scenario(
        name="cycle",
        title="connect, subscribe, publish, receive, disconnect",
        arguments={"mode": "cycle", "connections": 5000},
        contestants=(*MOSQUITTOS, ALL),
        targets=(_rate(ALL, 0.5, 1),),
    ),
    Scenario(
        name="idle",
        title="10,000 idle connections with a subscription",
        arguments={"mode": "idle"},
        contestants=(*MOSQUITTOS, ALL),
        targets=(
            Target("idle_bytes", ALL, 2.5, 1.5),
            Target("base_mb", ALL, 60, 45, None),
        ),
    ),
)

HOPS = tuple(
    scenario
    for form, text, rates, delays in (
        ("hop1", "1 hop", (50, 120), ((1.5, 1.0), (1.8, 1.0))),
        ("hop2", "2 hops", (30, 100), ((1.5, 1.0), (1.8, 1.0))),
    )
    for scenario in (
        Scenario(
            name=form,
            title=f"{text}, QoS 0, 10→10",
            arguments=TEN,
            contestants=QOS0,
            targets=(_rate(FAST, *rates),),
            form=form,
            is_quick=form == "hop1",
        ),
        Scenario(
            name=f"{form}-latency",
            title=f"{text}, 1,000 messages/s, QoS 0, 10→10",
            arguments={**TEN, **PACED},
            contestants=(*MOSQUITTOS, FAST),
            targets=_delay(FAST, *delays),
            form=form,
        ),
    )
)

HOP_QOS1 = Scenario(
    name="hop1-qos1",
    title="1 hop, QoS 1, 10→10, window 100",
    arguments={**TEN, "qos": 1},
    contestants=QOS12,
    targets=(_rate(MEMORY, 15, 40), _rate(SYNC, 5, 20)),
    form="hop1",
)

LEVEL_5 = (
    Scenario(
        name="level5",
        title="5.0, QoS 0, 10→10",
        arguments={**TEN, "level": 5},
        contestants=(*MOSQUITTOS, FAST, FAST_4),
        targets=(
            _rate(FAST, 0.95, 1, FAST_4),
            Target("per_cpu_second", FAST, 0.95, 1, FAST_4),
        ),
    ),
    Scenario(
        name="properties",
        title="5.0 with two user properties, QoS 0, 10→10",
        arguments={**TEN, "level": 5, "properties": 2},
        contestants=QOS0,
        targets=(_rate(FAST, 40, 100),),
    ),
    Scenario(
        name="expiry",
        title="5.0 with a message expiry interval, QoS 0, 10→10",
        arguments={**TEN, "level": 5, "expiry": 3600},
        contestants=QOS0,
        targets=(_rate(FAST, 40, 100),),
    ),
    Scenario(
        name="expiry-qos1",
        title="5.0 with a message expiry interval, QoS 1, 10→10, window 100",
        arguments={**TEN, "level": 5, "expiry": 3600, "qos": 1},
        contestants=QOS12,
    ),
    Scenario(
        name="5-to-4",
        title="5.0 publishers to 3.1.1 subscribers, QoS 0, 10→10",
        arguments={**TEN, "publisher-level": 5},
        contestants=QOS0,
        targets=(_rate(FAST, 40, 80),),
    ),
    Scenario(
        name="shared",
        title="a shared group, QoS 0, 10→10",
        arguments={**TEN, "level": 5, "mapping": "shared"},
        contestants=QOS0,
        targets=(Target("rate", FAST, 1_000_000, None, None), _rate(FAST, 10, 40)),
    ),
    Scenario(
        name="shared-qos1",
        title="a shared group, QoS 1, 10→10, window 100, members at two nodes",
        arguments={**TEN, "level": 5, "mapping": "shared", "qos": 1},
        contestants=(MEMORY, SYNC),
        targets=(Target("rate", SYNC, 300_000, 500_000, None),),
        form="members",
    ),
)

ONE_ZONE = of_zones(FAST, 1)

SCALING = Scenario(
    name="zones",
    title="8→8 within 1, 2 and 4 zones",
    arguments={"publishers": 8, "subscribers": 8},
    contestants=tuple(of_zones(name, count) for count in ZONES for name in (FAST, "relay")),
    targets=tuple(
        Target("per_cpu_second", of_zones(FAST, count), 0.9, 1.0, ONE_ZONE) for count in ZONES[1:]
    ),
    form="zones",
)

SCENARIOS = (
    *THROUGHPUT,
    *PAYLOADS,
    *SINGLE,
    *OTHERS,
    *CONNECTIONS,
    *HOPS,
    HOP_QOS1,
    *LEVEL_5,
    SCALING,
)
