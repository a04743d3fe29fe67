"""The tables that docs/operations.md lists are those of a node, with their bounds."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.nodes import ROOT, NodeProcess, topology
from tests.support.rawclient import RawClient
from tests.system.commands import as_json, output, wait_until
from txbroker.config.values import Limits

_ROW = re.compile(r"^\| `([a-z_.]+)` \|[^|]*\| ([^|]+) \|", re.MULTILINE)


def listed() -> dict[str, int | None]:
    """Each table of the page with its bound; None: it has none of its own."""
    page = (ROOT / "docs" / "operations.md").read_text()
    section = page.partition("## Tables and their bounds")[2].partition("\n## ")[0]
    return {name: bound(most) for name, most in _ROW.findall(section)}


def bound(most: str) -> int | None:
    if most == "-":
        return None
    if most == "`limits.retained`":
        return Limits().retained.messages
    if most.startswith("`limits."):
        return int(getattr(Limits(), most.strip("`").removeprefix("limits.")))
    return int(most.replace(",", ""))


def test_the_list_is_that_of_a_node_and_a_member_that_is_forgotten_goes(tmp_path: Path) -> None:
    """Names and bounds; what is kept for a node goes when an operator lets go of it."""
    root = NodeProcess(tmp_path, topology("root", zone=""))
    edge = NodeProcess(tmp_path, topology("edge", parent=root.grpc))
    with root, edge:
        edge.wait_event("join.granted")
        with RawClient(edge.mqtt) as client:
            client.connect("panel", clean=False)
            client.subscribe(("t/#", 1))
            client.publish("t/x", b"1", qos=1)
        (row,) = as_json("tree", root.grpc, "-v")[:1]
        assert listed() == {name: table["most"] for name, table in row["tables"].items()}
        wait_until(lambda: sizes(root)["journal.edges"] == 2, what="the edge has told its marks")
        before = sizes(root)

        edge.kill()
        output("forget", root.grpc, "edge")

        assert (1, 2) == (before["marks"], before["edges"])
        wait_until(
            lambda: [sizes(root)[name] for name in ("marks", "edges", "journal.edges")] == [0, 1, 1]
        )


def sizes(node: NodeProcess) -> dict[str, int]:
    """The entries of each table of the node."""
    rows = as_json("tree", node.grpc, "-v")
    return {name: table["entries"] for name, table in rows[0]["tables"].items()}
