"""
One play: nodes, a publisher, a streaming archive; kills; and the reckoning at the end.

The archive must equal the journals row by row, in all columns, and hold all that was acknowledged.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.pipeline.rows import plain
from tests.pipeline.standalone import Standalone
from tests.support.nodes import NodeProcess, topology
from txbroker.pipeline import read_archive

from . import journals
from .journals import Row
from .publisher import Publisher
from .query import Query

Say = Callable[[str], None]

BETWEEN = 4.0  # seconds from one kill to the next, at the most


class Broken(AssertionError):
    """The archive is not what the journals are."""


class Play:
    """Three zones on three nodes, an edge, a publisher at the edge, a query at the root."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        *,
        master: str,
        say: Say,
        cluster: Standalone | None = None,
    ) -> None:
        """With a `cluster` that one is the master, whatever `master` says."""
        self._chance = random.Random(seed)
        self._seed = seed
        self._say = say
        self.archive = folder / "archive"
        root = NodeProcess(folder, topology("root", zone=""))
        a = NodeProcess(folder, topology("a", zone="a", parent=root.grpc))
        b = NodeProcess(folder, topology("b", zone="b", parent=root.grpc))
        self._edge = NodeProcess(folder, topology("edge", parent=root.grpc))
        self._owners = (root, a, b)
        self._cluster = cluster
        self._query = Query(
            root.grpc,
            self.archive,
            folder / "query.log",
            master=master if cluster is None else cluster.url,
            environment=None if cluster is None else cluster.environment(),
        )

    def run(self, kills: int) -> None:
        """Play it to the end; raises `QueryFailed`, or whatever the nodes do wrong."""
        try:
            for node in (*self._owners, self._edge):
                node.start()
            publisher = Publisher(self._edge.mqtt, self._seed)
            self._query.start()
            self._query.wait_commit(set())
            for number in range(kills):
                time.sleep(self._chance.uniform(0, BETWEEN))
                self._say(f"{number + 1:3} {KINDS[number % len(KINDS)](self)}")
            publisher.stop()
            self.acknowledged = publisher.acknowledged
            self._query.kill()
            self._query.finish()
            self.rows = journals.read(node.grpc for node in self._owners)
        finally:
            self._query.kill()
            for node in (*self._owners, self._edge):
                node.close()

    def reckon(self, spark: SparkSession) -> str:
        """Compare; raises `Broken`, else says what there was."""
        found = sorted(
            _row(row.asDict()) for row in read_archive(spark, str(self.archive)).collect()
        )
        lost, added = set(self.rows) - set(found), set(found) - set(self.rows)
        twice = len(found) - len(set(found))
        if lost or added or twice:
            some = [*sorted(lost)[:3], *sorted(added)[:3]]
            raise Broken(f"{len(lost)} rows missing, {len(added)} too many, {twice} twice: {some}")
        missing = self.acknowledged - {row.payload for row in found}
        if missing:
            raise Broken(f"{len(missing)} acknowledged messages are not in the journals")
        return f"{len(found)} rows, {len(self.acknowledged)} acknowledged, all there, once"

    # what is killed; each gives the line that tells it

    def _kill_query(self) -> str:
        known = self._query.commits()
        self._query.kill()
        self._query.start()
        self._query.wait_commit(known)
        return "query killed at a random moment"

    def _kill_behind_commit(self) -> str:
        """The archive has the batch, Spark's checkpoint does not know yet."""
        self._query.wait_commit(self._query.commits())
        known = self._query.commits()
        self._query.kill()
        self._query.start()
        self._query.wait_commit(known)
        return "query killed behind a commit"

    def _kill_worker(self) -> str:
        query, cluster = self._query, self._cluster
        if cluster is None:
            query.wait(lambda: query.kill_worker(self._chance), "worker of Spark")
            return "worker of Spark killed"
        if self._chance.random() < 0.5:
            query.wait(lambda: cluster.kill_executor(self._chance), "executor of Spark")
            return "executor of Spark killed"
        query.wait(lambda: cluster.kill_worker(self._chance), "worker of Spark")
        cluster.replace_workers()
        return "worker of Spark killed with its executor"

    def _kill_node(self) -> str:
        node = self._chance.choice(self._owners)
        node.kill()
        time.sleep(self._chance.uniform(0, 2))
        node.start()
        return f"node {node.name} killed"


KINDS = (Play._kill_query, Play._kill_behind_commit, Play._kill_worker, Play._kill_node)
"""What is killed in turn."""


def _row(columns: dict[str, Any]) -> Row:
    found = {name: plain(value) for name, value in columns.items()}
    users = found["user_properties"]
    return Row(**{**found, "user_properties": users and tuple(users)})
