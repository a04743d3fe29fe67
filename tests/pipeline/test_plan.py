"""
The job *plan* on the skewed workload: Zipf with s = 1.0 over 1,000 subtrees, load = publishes and
deliveries a second. What it expects is recomputed row by row from the files that it wrote.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import attrs
import pytest
import yaml
from click.testing import CliRunner
from pyspark.sql import SparkSession

from tests.pipeline.workload import (
    LEDGER_ARROW,
    Row,
    delivery,
    message,
    own_subscribers,
    write,
    zipf_rows,
)
from txbroker.cli import main
from txbroker.config import Address, load_files
from txbroker.model.errors import PipelineError
from txbroker.pipeline.jobs.plan import Plan, plan
from txbroker.pipeline.planner.planned import PlannedHost, PresentNode, members_of, write_files

HOUSE = """
node: house
zone: ""
mqtt: ["tcp:1883:interface=127.0.0.1"]
grpc: 127.0.0.1:7001
data: var/house
"""
THREE = [PlannedHost(name=f"host-{number}", address="127.0.0.1") for number in (1, 2, 3)]
ROOT = PresentNode(node="house", zone="", grpc=Address("10.0.0.1", 7001))


@attrs.frozen(kw_only=True)
class Skewed:
    """The workload, the plan for it, and the files of both topologies."""

    messages: list[Row]
    deliveries: list[Row]
    plan: Plan
    today: Path
    files: list[Path]


@pytest.fixture(scope="module")
def skewed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Skewed:
    """Planned once: one node more than there are hosts to add, four in all."""
    folder = tmp_path_factory.mktemp("plan")
    messages = zipf_rows(30_000)
    deliveries = own_subscribers(messages)
    today = folder / "house.yaml"
    today.write_text(HOUSE)
    done = plan(
        spark.read.parquet(write(folder / "messages.parquet", messages)),
        spark.read.parquet(write(folder / "ledger.parquet", deliveries, LEDGER_ARROW)),
        members=members_of(load_files([today])),
        hosts=THREE,
    )
    files = write_files(folder / "out", done.nodes, done.hosts, [today])
    return Skewed(messages=messages, deliveries=deliveries, plan=done, today=today, files=files)


def longest(topic: str, zones: dict[str, str]) -> str:
    """The owner of a topic: the longest apex wins."""
    levels = topic.split("/")
    tops = ["/".join(levels[:count]) for count in range(len(levels), -1, -1)]
    return zones[next(top for top in tops if top in zones)]


def test_busiest_host_has_less_than_half(skewed: Skewed) -> None:
    """Four hosts in place of one; counted from the rows and the files alone."""
    zones = {"": "house"}
    for file in skewed.files:
        zones |= {node["zone"]: file.name for node in yaml.safe_load_all(file.read_text())}
    topics = {(row["zone"], row["epoch"], row["offset"]): row["topic"] for row in skewed.messages}
    loads = Counter(longest(row["topic"], zones) for row in skewed.messages)
    loads.update(
        longest(topics[row["zone"], row["epoch"], row["offset"]], zones)
        for row in skewed.deliveries
    )

    assert 4 == len(loads)
    assert max(loads.values()) <= sum(loads.values()) / 2
    expected = skewed.plan.expected
    assert skewed.plan.has_ledger
    assert max(loads.values()) / sum(loads.values()) == pytest.approx(expected.relief)
    assert sorted(loads.values()) == pytest.approx(
        sorted(host.load * expected.seconds for host in expected.after)
    )
    assert [sum(loads.values())] == [round(h.load * expected.seconds) for h in expected.before]


def test_files_are_good_beside_those_of_today(skewed: Skewed) -> None:
    """By the command that operators have for that."""
    done = CliRunner().invoke(main, ["check", str(skewed.today), *map(str, skewed.files)])
    count = 1 + len(skewed.plan.nodes)

    assert ("", 0) == (done.stderr, done.exit_code)
    assert f"ok: {count} nodes, {count} zones\n" == done.stdout


def test_every_client_has_its_zone_for_itself(skewed: Skewed) -> None:
    """Clients that stay cross hosts as much as load has moved; at their best nodes none does."""
    expected = skewed.plan.expected
    moved = sum(host.load for host in expected.after[1:])

    assert 0 == expected.crossings.nodes
    assert moved == pytest.approx(expected.stay.hosts)
    assert 0 == expected.move.nodes
    zones = {"": "house"} | {node.zone: node.node for node in skewed.plan.nodes}
    best = {row["client_id"]: row["node"] for row in skewed.plan.clients.toArrow().to_pylist()}
    wanted = {row["client_id"]: longest(row["topic"], zones) for row in skewed.messages}
    for row in skewed.messages:
        wanted[f"display-{row['topic'][6:11]}-0"] = longest(row["topic"], zones)
    assert wanted == best


@pytest.fixture(scope="module")
def shared(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, list[Row]]:
    """Sixteen equal machines in pairs that have their clients in common, on two hosts."""
    folder = tmp_path_factory.mktemp("pairs")
    rows = [
        message(number, f"m{number % 16:02}/state", client_id=f"pair-{number % 8}", node="house")
        for number in range(1, 1601)
    ]
    made = [delivery(row, "wall", "porch") for row in rows if row["topic"].startswith("m00")]
    members = [ROOT, PresentNode(node="porch", zone=None, grpc=Address("10.0.0.2", 7001))]
    done = plan(
        spark.read.parquet(write(folder / "messages.parquet", rows)),
        spark.read.parquet(write(folder / "ledger.parquet", made, LEDGER_ARROW)),
        members=members,
        hosts=[
            PlannedHost(name="b", address="10.0.0.3"),
            PlannedHost(name="c", address="10.0.0.4"),
        ],
    )
    return done, rows


def test_what_clients_share_stays_together(shared: tuple[Plan, list[Row]]) -> None:
    """As far as both zones of a pair were cut out at all."""
    hosts = {node.zone.partition("/")[0]: node.host for node in shared[0].nodes}
    pairs = [(f"m{one:02}", f"m{one + 8:02}") for one in range(8)]
    apart = [pair for pair in pairs if hosts.get(pair[0]) != hosts.get(pair[1])]

    assert len(hosts) > 8
    assert len([pair for pair in apart if set(pair) <= set(hosts)]) <= 1


def test_crossings_are_those_of_the_rows(shared: tuple[Plan, list[Row]]) -> None:
    """Before, with clients where they are, and with each at its best node."""
    done, rows = shared
    zones = {"": "house"} | {node.zone: node.node for node in done.nodes}
    hosts = {"house": "10.0.0.1", "porch": "10.0.0.2"} | {n.node: n.host for n in done.nodes}
    best = {row["client_id"]: row["node"] for row in done.clients.toArrow().to_pylist()}
    events = [(row["topic"], "house", row["client_id"]) for row in rows]
    events += [(row["topic"], "porch", "wall") for row in rows if row["topic"].startswith("m00")]
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for topic, at, client in events:
        owner = longest(topic, zones)
        for name, one, other in (
            ("before", "house", at),
            ("stay", owner, at),
            ("move", owner, best[client]),
        ):
            counts[name][0] += one != other
            counts[name][1] += hosts[one] != hosts[other]

    expected = done.expected
    for name, crossings in (
        ("before", expected.crossings),
        ("stay", expected.stay),
        ("move", expected.move),
    ):
        assert counts[name] == pytest.approx(
            [crossings.nodes * expected.seconds, crossings.hosts * expected.seconds]
        )
    edge = Counter(hosts[best[client]] for _, _, client in events)
    assert edge == {
        host.host: round(host.edge * expected.seconds) for host in expected.after if host.edge
    }


def test_what_cannot_be_planned_is_one_line(spark: SparkSession, tmp_path: Path) -> None:
    """No messages, no hosts, no root."""
    nothing = spark.read.parquet(write(tmp_path / "none.parquet", []))
    kitchen = PresentNode(node="kitchen", zone="home/kitchen", grpc=Address("10.0.0.1", 7001))

    with pytest.raises(PipelineError, match="no messages to plan from"):
        plan(nothing, members=[ROOT], hosts=THREE)
    with pytest.raises(PipelineError, match="no hosts"):
        plan(nothing, members=[ROOT], hosts=[])
    with pytest.raises(PipelineError, match=r"10\.0\.0\.1 has a node already"):
        plan(nothing, members=[ROOT], hosts=[PlannedHost(name="10.0.0.1", address="10.0.0.1")])
    with pytest.raises(PipelineError, match="root zone"):
        plan(nothing, members=[kitchen], hosts=THREE)
