"""
Who has what of others, as far as operators' acts say: whose parent takes over, who gave what to
whom, which nodes are gone for good. Pure.
"""

from __future__ import annotations

import attrs

from .trees import Tree


@attrs.frozen
class Loss:
    """
    A node that is gone for good: zones that it served, those `kept` by others, and who had given it
    what they had. `is_void`: it comes back, with an empty disk.
    """

    name: str
    zones: tuple[str, ...]
    kept: tuple[str, ...]
    nodes: tuple[str, ...]
    is_void: bool = False


class Estates:
    """Of one tree; `parents` are those that nodes have by now."""

    def __init__(self, tree: Tree) -> None:
        self.parents = {node.name: node.parent for node in tree.nodes}
        self._zones = {node.name: node.zone for node in tree.nodes}
        self._lost: dict[str, bool] = {}  # whether an operator has given it up
        self._givers: dict[str, set[str]] = {}

    def is_lost(self, name: str) -> bool:
        """True if the node is gone for good."""
        return name in self._lost

    @property
    def unsettled(self) -> list[str]:
        """Lost nodes that no operator has given up."""
        return [name for name, is_settled in self._lost.items() if not is_settled]

    def give(self, name: str) -> None:
        """All that the node has may be its parent's from now on."""
        parent = self.parents[name]
        if parent is not None:
            gave = self._givers.setdefault(parent, set())
            gave |= {name, *self._givers.get(name, ())}

    def note_calm(self) -> None:
        """What nodes were given since the last time has reached whom it is for."""
        self._givers.clear()

    def lose(self, name: str) -> Loss:
        """The node is gone; its children are its parent's."""
        self._lost[name] = False
        for other, parent in self.parents.items():
            if parent == name:
                self.parents[other] = self.parents[name]
        return self._loss(name)

    def empty(self, name: str) -> Loss:
        """The node has an empty disk from now on."""
        return attrs.evolve(self._loss(name), is_void=True)

    def settle(self, name: str) -> None:
        """An operator has given it up."""
        self._lost[name] = True

    # internal

    def _loss(self, name: str) -> Loss:
        nodes = (name, *sorted(self._givers.get(name, ())))
        zones = tuple(zone for zone in map(self._zones.__getitem__, nodes) if zone is not None)
        others = (zone for other, zone in self._zones.items() if not self.is_lost(other))
        kept = tuple(zone for zone in others if zone is not None and zone not in zones)
        return Loss(name, zones, kept, nodes)
