"""
SHELL: which subtrees to give to more hosts: loads out of message rows, expectations into tables.

The decisions are in `cuts.py` (what to delegate, how much to a host) and `grouping.py` (what goes
together); nodes and files are in `planned.py`. Here is what Spark counts for them, before and
after.
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
"""Levels of topics that are looked at for subtrees, unless the zones of today are deeper."""
SMALLEST = 1e-4
"""Subtrees with less than this part of all load are not given away by themselves."""
SLACK = 0.05
"""What the busiest host may have above the least, for fewer zones or fewer crossings."""
TIED = 8
"""Zones of a client, those that it uses most, that are tied to one another by it."""

CLIENT_COLUMNS = "client_id string, node string, host string"


@attrs.frozen(slots=True, kw_only=True)
class Plan:
    """
    What the job proposes: `nodes` to add, and what to expect of them.

    `clients` has for each client the node where most of its traffic is then (`CLIENT_COLUMNS`);
    `has_ledger` is False where deliveries are not known and loads are publishes alone.
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
    Zones for new `hosts` that take load off the hosts of `members`, today's nodes.

    `messages` and `ledger` as of `traffic`. Load is publishes and deliveries a second, on average
    over the time of the messages. At most
    `zones` on each new host, apexes of at most `depth` levels. Raises `PipelineError` where there
    is nothing to plan with: no messages, no root zone among the members, no hosts.
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
    """Publishes and deliveries of each client at each node, by the first levels of topics."""
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
    Events of each subtree that counts, by its topmost topic.

    There are at most `depth` / `SMALLEST` of them, however many topics there are.
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
    """How many events of clients would be within one host, for each pair of zones."""
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
    """The longest of the apexes that a topic's first levels are at or below; null: none."""
    return _longest({apex: apex for apex in apexes}, depth, column)


def _longest(values: Mapping[str, str], depth: int, column: str = "subtree") -> Column:
    """The value of the longest key that a topic's first levels are at or below."""
    levels = sorted({key.count("/") + 1 if key else 0 for key in values}, reverse=True)
    tops = (F.substring_index(column, "/", level) for level in levels if level <= depth)
    return F.coalesce(*(looked_up(values, "string", top) for top in tops))


def _located(flows: DataFrame, places: Placements, depth: int) -> tuple[DataFrame, DataFrame]:
    """
    Where each client's traffic is best, and the flows with zones and nodes before and after.

    A client's best host has most of its traffic, the best node on it most of that; one that the
    client is connected to already wins a tie.
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
    """From the first message to the last; at least a millisecond, so that there is a rate."""
    ends = messages.agg(F.min("created").alias("first"), F.max("created").alias("last"))
    (row,) = ends.toArrow().to_pylist()
    seconds: float = (row["last"] - row["first"]).total_seconds()
    return max(seconds, 0.001)
