"""
A node's place in the tree: its grant, its parent, what it delegated; and the durable form of it.

Every change here is saved before anybody is told of it. The composition and the control plane share
this one object, so that there is one truth about "who am I".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import attrs

from txbroker.delegation.cut import Cut
from txbroker.delegation.table import DelegationTable
from txbroker.errors import StoreError
from txbroker.store.state import DataFolder, NodeState

ROOT_EPOCH = 1


class Standing:
    """The node's state in memory and on disk; `grpc` is the address that others dial."""

    def __init__(self, folder: DataFolder, state: NodeState, grpc: str, parent: str | None) -> None:
        self._folder = folder
        self._state = attrs.evolve(state, incarnation=state.incarnation + 1)
        self.grpc = grpc
        self.table = DelegationTable(state.zone, state.table)
        self._configured_parent = parent
        self._is_fencing = False
        self._on_change: list[Callable[[], None]] = []
        if parent is None and not state.serving:
            self._state = attrs.evolve(self._state, serving=True, epoch=ROOT_EPOCH)
        self.save()

    # what is true

    @property
    def node(self) -> str:
        """The node's name."""
        return self._state.node

    @property
    def zone(self) -> str | None:
        """The apex of the zone that the topology file gives it; None: a pure edge."""
        return self._state.zone

    @property
    def incarnation(self) -> int:
        """Number of this life of the process."""
        return self._state.incarnation

    @property
    def epoch(self) -> int:
        """At which the zone is, or was last, held; 0: never."""
        return self._state.epoch

    @property
    def serving(self) -> bool:
        """Whether the node holds its zone, and does not have to ask its parent first."""
        return self._state.serving and not self._state.fenced

    @property
    def lineage(self) -> tuple[Cut, ...]:
        """The zones above, root first."""
        return self._state.lineage

    @property
    def cut(self) -> Cut:
        """The node's own zone, as others know it; meaningless for a pure edge."""
        return Cut(apex=self.zone or "", epoch=self.epoch, node=self.node, grpc=self.grpc)

    @property
    def parent(self) -> str | None:
        """Where to join: what the tree told last, else what the topology file says."""
        state = self._state
        if state.parent is not None and state.configured_parent == self._configured_parent:
            return state.parent
        return self._configured_parent

    def lineage_of_children(self) -> tuple[Cut, ...]:
        """The zones above a child of this node."""
        return self.lineage if self.zone is None else (*self.lineage, self.cut)

    # what changes it; saved when these return

    def when_changed(self, action: Callable[[], None]) -> None:
        """Run `action` after each change of lineage or of the cuts below."""
        self._on_change.append(action)

    def grant(self, epoch: int, lineage: Iterable[Cut]) -> None:
        """The parent granted the zone (epoch 0: it took in a pure edge)."""
        self._set(
            serving=epoch > 0,
            epoch=epoch or self.epoch,
            lineage=tuple(lineage),
            fenced=epoch > 0 and self._state.fenced and self._is_fencing,
        )

    def set_fenced(self, fenced: bool) -> None:
        """
        The zone is being given back. A node that dies in the middle asks its parent before it
        serves again: only the parent knows whether it has committed (protocol rule 12).
        """
        self._is_fencing = fenced
        self._set(fenced=fenced)

    def lose(self) -> None:
        """The zone is not this node's any more."""
        self._set(serving=False, fenced=False)

    def move(self, parent: str) -> None:
        """Join there from now on."""
        self._set(parent=parent, configured_parent=self._configured_parent)

    def set_lineage(self, lineage: Iterable[Cut]) -> None:
        """The zones above changed."""
        self._set(lineage=tuple(lineage))

    def save(self) -> None:
        """
        Make the state, with the delegation table, durable; then tell those who watch.

        Raises `StoreError`, here as in all that changes something, and then everything, the table
        included, is as it was saved last.
        """
        self._set()

    def _set(self, **changes: Any) -> None:
        state = attrs.evolve(self._state, table=self.table.state(), **changes)
        try:
            self._folder.save(state)
        except StoreError:
            self.table.restore(self._state.table)
            raise
        self._state = state
        for action in self._on_change:
            action()
