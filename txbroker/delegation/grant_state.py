"""
The durable state of a node: its grant, its parent, its delegations, its earlier lives.

`GrantStore` is the place that holds the state.
"""

from __future__ import annotations

from typing import Protocol

import attrs

from txbroker.delegation.delegation_table import DelegationState
from txbroker.delegation.zone_snapshot import StagedZone
from txbroker.model.zone_cut import ZoneCut


@attrs.frozen(kw_only=True)
class KnownParent:
    """
    The node that this node has joined at the address `grpc`.

    `node`, `zone`, and the `identity` of its data folder ("": not known yet). A reply of another
    node at that address does not count as the parent's.
    """

    grpc: str
    node: str
    zone: str
    identity: str = ""


@attrs.frozen(kw_only=True)
class KnownRoot:
    """
    The root of the tree: its zone and epoch, and the identity of its data folder.

    A root that has lost its disk serves its zone at an earlier epoch again, or at the same epoch.
    """

    zone: str
    epoch: int
    identity: str


@attrs.frozen(kw_only=True)
class Strays:
    """
    Publishes that this node accepted for the zone `apex`, which another node held all the time.

    The publishes are records of the own part above the offset `after`, up to `through`. A lost disk
    or an old copy had forgotten the delegation. `epoch`: the epoch of that part; 0: the present
    part.
    """

    apex: str
    after: int
    through: int
    epoch: int = 0


@attrs.frozen(kw_only=True)
class NodeState:
    """
    The durable state of one node.

    - `incarnation`: number of the process's present life.
    - `epoch`, `serving`: the node holds its zone at `epoch`. If not `serving`, `epoch` is the last
      epoch at which the node held the zone (0: never).
    - `fenced`: the node had begun a hand-back and does not know whether its parent has committed.
    - `divergent`: the epoch of an unsettled branch that the parent has cut off (0: none). The node
      does not serve its zone meanwhile.
    - `absorbing`: apex of a zone whose received state is committed and not yet part of the store. A
      file of its own holds that state.
    - `parent`: overrides the topology file's parent, as long as the file still says
      `configured_parent`.
    - `lineage`: the zones above, root first.
    - `above`: the greatest epoch heard for each zone around the node's own.
    - `identity`: the data folder's identity, made at its first start.
    - `known_parent`: the parent that the node joined last.
    - `restored`: the data is a copy from an earlier time, and the parent has not granted the zone
      since.
    - `place`: distinguishes the folder from a copy of the folder.
    - `root`: the root of the tree, as the node last heard.
    - `renumbering`: of a root itself: the epoch that its journal's part must leave (0: none).
    - `renumbered`: the number of renumberings so far.
    - `begun`: an offset of the own part. Records behind it may be of zones whose delegation the
      node has forgotten.
    - `strays`: the records that must still go to their zones' owners.
    - `lives`: the epochs at which earlier lives of this copy held the zone, in order.
    - `copy`: random, drawn when the data was last found to be a copy ("": never). A restored root
      is another root than before.
    """

    node: str
    zone: str | None
    incarnation: int = 0
    epoch: int = 0
    serving: bool = False
    fenced: bool = False
    divergent: int = 0
    absorbing: str | None = None
    parent: str | None = None
    configured_parent: str | None = None
    lineage: tuple[ZoneCut, ...] = ()
    above: dict[str, int] = attrs.field(factory=dict)
    table: DelegationState = DelegationState()
    identity: str = ""
    known_parent: KnownParent | None = None
    restored: bool = False
    place: int = 0
    root: KnownRoot | None = None
    renumbering: int = 0
    renumbered: int = 0
    begun: int = 0
    strays: tuple[Strays, ...] = ()
    copy: str = ""
    lives: tuple[int, ...] = ()


class ReceivedZoneStore(Protocol):
    """The durable place of one zone's received state."""

    def save(self, staged_zone: StagedZone) -> None:
        """Make the state durable in place of any other; raises `StoreError`."""

    def load(self) -> StagedZone | None:
        """Load the last saved state; None if there is none; raises `StoreError`."""

    def remove(self) -> None:
        """Delete the state; raises `StoreError`."""


class GrantStore(Protocol):
    """The durable place of a node's state."""

    @property
    def incoming(self) -> ReceivedZoneStore:
        """Return the place of the state that a handover brought."""

    def save(self, state: NodeState) -> None:
        """Make the state durable; raises `StoreError`, and then the old state still holds."""
