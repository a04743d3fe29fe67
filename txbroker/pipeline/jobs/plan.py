"""
SHELL: proposes zones for more hosts: counts loads of message rows, and tables of expectations.

`cuts.py` decides what to delegate and how much a host gets; `grouping.py` decides which zones share
a host. `planned.py` makes nodes and files. This module counts their input and output with Spark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from txbroker.config.tree_rules import canonical
from txbroker.model.errors import PipelineError
from txbroker.pipeline.archives.inputs import Rows, history
from txbroker.pipeline.jobs.traffic import MESSAGE_KEY, deliveries, subtree
from txbroker.pipeline.planner.cuts import LoadTree, choose_cuts
from txbroker.pipeline.planner.expected import ExpectedLoad, Placements, TopicFlow, expect
from txbroker.pipeline.planner.grouping import regroup
from txbroker.pipeline.planner.planned import (
    PlannedHost,
    PlannedNode,
    PlannedPorts,
    PresentNode,
    plan_nodes,
)
from txbroker.pipeline.source.lookups import looked_up

DEPTH = 4
"""Levels of topics examined for subtrees, unless present zones are deeper."""
SMALLEST = 1e-4
"""Subtrees with less than this part of all load do not become zones."""
SLACK = 0.05
"""Part above the least load that the busiest host may have, for fewer zones or crossings."""
TIED = 8
"""Zones per client, those used most, that the client ties to one another."""

CLIENT_COLUMNS = "client_id string, node string, host string"


@attrs.frozen(slots=True, kw_only=True)
class Plan:
    """
    The proposal of the job: `nodes` to add, and the expected loads.

    `clients` has the node with most traffic after the plan for each client (`CLIENT_COLUMNS`).
    `has_ledger` is False if deliveries are unknown; loads are then publishes alone.
    """

    nodes: tuple[PlannedNode, ...]
    hosts: tuple[PlannedHost, ...]
    expected: ExpectedLoad
    has_ledger: bool
    clients: DataFrame


def plan(
    messages: Rows,
    ledger: Rows | None = None,
    *,
    members: Sequence[PresentNode],
    hosts: Sequence[PlannedHost],
    zones: int = 16,
    depth: int = DEPTH,
    ports: PlannedPorts | None = None,
) -> Plan:
    """
    Propose zones for new `hosts` that take load off the hosts of `members`, the present nodes.

    `messages` and `ledger` are those of `traffic`. Load is publishes and deliveries per second, on
    average over the time of the messages. A new host gets at most `zones` zones; an apex has at
    most `depth` levels. Raises `PipelineError` without messages, without a root zone among the
    members, or without hosts.
    """
    today = {member.zone: member for member in members if member.zone is not None}
    if "" not in today:
        raise PipelineError("no node of the topology owns the root zone; name its file, too")
    if not hosts:
        raise PipelineError("no hosts to give anything to; name at least one")
    there = {member.host for member in members} & {canonical(host.name) for host in hosts}
    if there:
        raise PipelineError(f"{sorted(there)[0]} has a node already; name machines to add")
    messages, ledger = history(messages, ledger)
    depth = max(depth, *(apex.count("/") + 1 for apex in today))
    flows = _flows(messages, ledger, depth).localCheckpoint()
    tree = LoadTree(
        loads=_loads(flows, depth, list(today)),
        zones={apex: member.host for apex, member in today.items()},
    )
    if not tree.loads.get(""):
        raise PipelineError("no messages to plan from; look at --from, --to and --filter")
    names = [host.name for host in hosts]
    cuts = choose_cuts(tree, names, zones=zones, slack=SLACK)
    placed = regroup(
        cuts.hosts,
        cuts.loads,
        _ties(flows, list(cuts.hosts), depth),
        names,
        capacity=cuts.busiest,
        zones=zones,
    )
    nodes = plan_nodes(placed, hosts, members, ports or PlannedPorts())
    places = Placements.of(members, nodes)
    clients, located = _located(flows, places, depth)
    return Plan(
        nodes=tuple(nodes),
        hosts=tuple(hosts),
        expected=expect(_collected(located), places, _seconds(messages)),
        has_ledger=ledger is not None,
        clients=clients,
    )


# -- counting


def _flows(messages: DataFrame, ledger: DataFrame | None, depth: int) -> DataFrame:
    """Return the publishes and deliveries of each client at each node, by subtree."""
    columns = ["subtree", "client_id", "node", "publishes", "deliveries"]
    rows = messages.withColumns(
        {
            "subtree": subtree("topic", depth),
            "publishes": F.lit(1),
            "deliveries": F.lit(0),
        }
    )
    events = rows.select(*columns)
    if ledger is not None:
        topics = rows.select(*MESSAGE_KEY, "subtree")
        made = deliveries(ledger).select(*MESSAGE_KEY, "client_id", "node")
        received = made.join(topics, MESSAGE_KEY).withColumns(
            {"publishes": F.lit(0), "deliveries": F.lit(1)}
        )
        events = events.unionByName(received.select(*columns))
    return events.groupBy("subtree", "client_id", "node").agg(
        F.sum("publishes").alias("publishes"), F.sum("deliveries").alias("deliveries")
    )


def _events() -> Column:
    return F.col("publishes") + F.col("deliveries")


def _loads(flows: DataFrame, depth: int, apexes: Sequence[str]) -> dict[str, float]:
    """
    Return the events of each subtree that counts, by its topmost topic.

    At most `depth` / `SMALLEST` subtrees count, however many topics exist.
    """
    whole = flows.agg(F.sum(_events())).first()
    total = whole[0] if whole is not None and whole[0] is not None else 0
    tops = F.array_distinct(
        F.array(*(F.substring_index("subtree", "/", level) for level in range(depth + 1)))
    )
    rows = (
        flows.select(F.explode(tops).alias("top"), _events().alias("events"))
        .groupBy("top")
        .agg(F.sum("events").alias("load"))
        .where((F.col("load") >= total * SMALLEST) | F.col("top").isin(list(apexes)))
        .toArrow()
        .to_pylist()
    )
    return {row["top"]: float(row["load"]) for row in rows}


def _ties(flows: DataFrame, apexes: Sequence[str], depth: int) -> dict[tuple[str, str], float]:
    """Return, for each pair of zones, the client events that one host for both would join."""
    if len(apexes) < 2:
        return {}
    used = (
        flows.withColumn("apex", _zone_of(apexes, depth))
        .where(F.col("apex").isNotNull())
        .groupBy("client_id", "apex")
        .agg(F.sum(_events()).alias("events"))
    )
    most = Window.partitionBy("client_id").orderBy(F.desc("events"), "apex")
    used = used.withColumn("rank", F.row_number().over(most)).where(F.col("rank") <= TIED)
    one, other = used.alias("one"), used.alias("other")
    pairs = (
        one.join(other, F.col("one.client_id") == F.col("other.client_id"))
        .where(F.col("one.apex") < F.col("other.apex"))
        .groupBy(F.col("one.apex").alias("a"), F.col("other.apex").alias("b"))
        .agg(F.sum(F.least("one.events", "other.events")).alias("tie"))
    )
    return {(row["a"], row["b"]): float(row["tie"]) for row in pairs.toArrow().to_pylist()}


def _zone_of(apexes: Sequence[str], depth: int, column: str = "subtree") -> Column:
    """Return the longest apex at or above a topic's first levels, or null."""
    return _longest({apex: apex for apex in apexes}, depth, column)


def _longest(values: Mapping[str, str], depth: int, column: str = "subtree") -> Column:
    """Return the value of the longest key at or above a topic's first levels, or null."""
    levels = sorted({key.count("/") + 1 if key else 0 for key in values}, reverse=True)
    tops = (F.substring_index(column, "/", level) for level in levels if level <= depth)
    return F.coalesce(*(looked_up(values, "string", top) for top in tops))


def _located(flows: DataFrame, places: Placements, depth: int) -> tuple[DataFrame, DataFrame]:
    """
    Return the best node for each client, and the flows with zones and nodes before and after.

    A client's best host has most of its traffic. The client's best node has most of the traffic on
    that host. In a tie, a node wins that the client is already connected to.
    """
    rows = flows.withColumns(
        {
            "before": _longest({zone: zone for zone in places.before}, depth),
            "after": _longest({zone: zone for zone in places.after}, depth),
        }
    )
    rows = rows.withColumn("best", _longest(places.after, depth))
    host = looked_up(places.hosts, "string", F.col("best"))
    at = rows.withColumn("host", host).groupBy("client_id", "host", "best")
    sums = at.agg(
        F.sum(_events()).alias("events"),
        F.max((F.col("node") == F.col("best")).cast("int")).alias("is_here"),
    )
    of_host = Window.partitionBy("client_id", "host")
    best = Window.partitionBy("client_id").orderBy(
        F.desc("on_host"), F.desc("here"), "host", F.desc("events"), F.desc("is_here"), "best"
    )
    clients = (
        sums.withColumns(
            {"on_host": F.sum("events").over(of_host), "here": F.max("is_here").over(of_host)}
        )
        .withColumn("rank", F.row_number().over(best))
        .where(F.col("rank") == 1)
        .select("client_id", F.col("best").alias("node"), "host")
    )
    moved = clients.select("client_id", F.col("node").alias("moved"))
    return clients, rows.drop("best").join(moved, "client_id")


def _collected(located: DataFrame) -> list[TopicFlow]:
    rows = located.groupBy("before", "after", "node", "moved").agg(
        F.sum("publishes").alias("publishes"), F.sum("deliveries").alias("deliveries")
    )
    return [TopicFlow(**row) for row in rows.toArrow().to_pylist()]


def _seconds(messages: DataFrame) -> float:
    """Return the seconds from the first message to the last, at least 0.001 to allow a rate."""
    ends = messages.agg(F.min("created").alias("first"), F.max("created").alias("last"))
    (row,) = ends.toArrow().to_pylist()
    seconds: float = (row["last"] - row["first"]).total_seconds()
    return max(seconds, 0.001)
