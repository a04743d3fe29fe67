"""Shapes of trees, as values: which nodes there are, what they own, who is whose parent. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import attrs


@attrs.frozen(kw_only=True)
class NodeShape:
    """`zone` None: a pure edge; `parent` None: the root; `site` None: all nodes are one site."""

    name: str
    zone: str | None = None
    parent: str | None = None
    site: str | None = None


@attrs.frozen
class Tree:
    """Parents stand before their children."""

    name: str
    nodes: tuple[NodeShape, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(node.name for node in self.nodes)

    @property
    def zones(self) -> tuple[str, ...]:
        return tuple(node.zone for node in self.nodes if node.zone is not None)

    @property
    def children(self) -> tuple[str, ...]:
        """Owners that have a parent: they can retire."""
        return tuple(node.name for node in self.nodes if node.zone)

    @property
    def sites(self) -> tuple[frozenset[str], ...]:
        """Names of the nodes of each site."""
        names: dict[str | None, set[str]] = {}
        for node in self.nodes:
            names.setdefault(node.site, set()).add(node.name)
        return tuple(map(frozenset, names.values()))

    def without(self, name: str) -> Tree:
        """What is left when that node, not the root, is gone: its children are its parent's."""
        (gone,) = (node for node in self.nodes if node.name == name)
        left = (node for node in self.nodes if node is not gone)
        nodes = (
            attrs.evolve(node, parent=gone.parent) if node.parent == name else node for node in left
        )
        return Tree(self.name, tuple(nodes))

    def owner(self, topic: str) -> str:
        """The node whose zone is the deepest that the topic lies in."""
        found = [
            (len(node.zone), node.name)
            for node in self.nodes
            if node.zone is not None and _is_within(topic, node.zone)
        ]
        return max(found)[1]

    def topics(self) -> tuple[str, ...]:
        """Some topics of every zone, among them its apex."""
        found: list[str] = []
        for zone in self.zones:
            found += (
                [f"{zone}/t{number}" for number in range(3)]
                if zone
                else ["hall/t0", "hall/t1", "t1"]
            )
            found += [zone] if zone else []
        return tuple(found)


def _is_within(topic: str, zone: str) -> bool:
    return not zone or topic == zone or topic.startswith(zone + "/")


def _tree(name: str, nodes: Iterable[tuple[str, str | None, str | None, str | None]]) -> Tree:
    return Tree(
        name,
        tuple(
            NodeShape(name=node, zone=zone, parent=parent, site=site)
            for node, zone, parent, site in nodes
        ),
    )


TREES = {
    tree.name: tree
    for tree in (
        _tree("single", [("root", "", None, None)]),
        _tree(
            "pair",
            [
                ("root", "", None, None),
                ("a", "a", "root", None),
                ("edge", None, "root", None),
            ],
        ),
        _tree(
            "chain",  # four levels
            [
                ("root", "", None, None),
                ("a", "a", "root", None),
                ("ab", "a/b", "a", None),
                ("abc", "a/b/c", "ab", None),
                ("edge", None, "a", None),
            ],
        ),
        _tree(
            "wide",
            [
                ("root", "", None, None),
                ("a", "a", "root", None),
                ("b", "b", "root", None),
                ("ax", "a/x", "a", None),
                ("edge", None, "b", None),
            ],
        ),
        _tree(
            "sites",
            [
                ("root", "", None, "office"),
                ("a", "a", "root", "north"),
                ("ax", "a/x", "a", "north"),
                ("b", "b", "root", "south"),
                ("by", "b/y", "b", "south"),
                ("edge", None, "b", "south"),
            ],
        ),
    )
}
