"""
SHELL: what a node must not forget, in one small file, synced before anybody is told.

The delegation table, the epochs, the node's own grant, where its parent is. The file is replaced as
a whole, so a crash leaves the old or the new one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO

import attrs
import cattrs

from txbroker.delegation.delegation_table import Delegation, DelegationState
from txbroker.delegation.state.received_zone_file import ReceivedZoneFile
from txbroker.model.errors import StoreError
from txbroker.model.zone_cut import ZoneCut
from txbroker.runtime import machine_check
from txbroker.storage import checked_file
from txbroker.storage.atomic_file import FileInDoubt
from txbroker.storage.files import DiskFull

FORMAT = 3
"""Version of the file; a newer one is refused."""

RESERVE = "reserve"
"""A file of zeros, given up where a disk is full to the last byte: a node must be able to start."""

_UNCHECKED = 2
_WHAT = "a node's state"
_SMALLEST = 64 * 1024


@attrs.frozen(kw_only=True)
class KnownParent:
    """
    The node that this one has joined at the address `grpc`: its name, its zone, the identity of its
    data folder ("": not known yet). What another node says there is no parent's word.
    """

    grpc: str
    node: str
    zone: str
    identity: str = ""


@attrs.frozen(kw_only=True)
class KnownRoot:
    """
    The root of the tree: the zone and epoch that it serves, the identity of its data folder.

    A root that has lost its disk serves its zone at an earlier epoch again, or at the same one.
    """

    zone: str
    epoch: int
    identity: str


@attrs.frozen(kw_only=True)
class Strays:
    """
    What the node took for the zone `apex`, which another node held all the time: records of the own
    part above `after` up to `through`. A lost disk, or an old copy, had forgotten the delegation.
    `epoch`: of that part, 0 while it is the present one.
    """

    apex: str
    after: int
    through: int
    epoch: int = 0


@attrs.frozen(kw_only=True)
class NodeState:
    """
    The durable state of one node.

    `incarnation` numbers the lives of its process. `serving`: it holds its zone at `epoch`; when
    not, `epoch` is the last at which it did (0: never). `fenced`: it was giving the zone back, and
    does not know whether its parent has taken it. `divergent`: epoch of a branch of the zone that
    its parent has cut off and that is not settled (0: none); the zone is not served meanwhile.
    `absorbing`: apex of a zone whose state has arrived for good, in the file for that, and is not
    part of the store yet. `parent` overrides the topology file's, as long as that still says
    `configured_parent`. `lineage` are the zones above, root first; `above` is the greatest epoch
    heard of for each zone around the node's own. `identity` is the data folder's, made at its first
    start; `known_parent` whom the node has joined last. `restored`: the data is a copy from before,
    and the parent has not granted the zone since. `place` tells the folder from a copy of it.
    `root` is the tree's, as the node heard last. Of a root itself, `renumbering` is the epoch that
    its journal's part is to have no longer (0: none), `renumbered` how often that has been. Behind
    the offset `begun` of the own part the node may serve what it has forgotten to have delegated;
    `strays` is what has to go to its owners yet. `lives` are the epochs at which earlier lives held
    the zone, whose copies this node is, in their order. `copy` is random, drawn when the data was
    found to be a copy last ("": never): a root that was restored is another one than it was.
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


class StateText:
    """
    States as the file has them. The text of a delegation is kept while the delegation is the same.

    A state of 10,000 delegations took 24 ms to encode, and one of them changes at a time.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[Delegation, str]] = {}

    def of(self, state: NodeState) -> str:
        """JSON with all fields of the state, and the format."""
        table = state.table
        known = {entry.cut.apex: self._entry(entry) for entry in table.delegations}
        self._known = known
        small = attrs.evolve(table, delegations=(), epochs={})
        rest = cattrs.unstructure(attrs.evolve(state, table=small))
        fields = {name: checked_file.to_text(value) for name, value in rest.pop("table").items()}
        fields["delegations"] = f"[{','.join(text for _, text in known.values())}]"
        fields["epochs"] = checked_file.to_text(table.epochs)
        rest = {"format": FORMAT, **rest}
        whole = {name: checked_file.to_text(value) for name, value in rest.items()}
        return _object({**whole, "table": _object(fields)})

    def _entry(self, entry: Delegation) -> tuple[Delegation, str]:
        known = self._known.get(entry.cut.apex)
        if known is not None and known[0] is entry:
            return known
        return entry, checked_file.to_text(cattrs.unstructure(entry))


def _object(fields: dict[str, str]) -> str:
    return f"{{{','.join(f'{checked_file.to_text(n)}:{text}' for n, text in fields.items())}}}"


class DataFolder:
    """The `data` folder of one node, locked against a second process."""

    def __init__(
        self, path: Path, on_failed: Callable[[StoreError], None] = lambda _: None
    ) -> None:
        """
        Make the folder if it is missing and lock it; raises `StoreError`. `on_failed` is told that
        nobody knows which state a start would find: the node must not go on.
        """
        self._path = path
        self._on_failed = on_failed
        self._file = path / "state.json"
        self.incoming = ReceivedZoneFile(path / "incoming")
        self._lock = self._take_lock()
        self._reserve = path / RESERVE
        self._text = StateText()

    def load(self, node: str, zone: str | None) -> NodeState:
        """The state as last saved, or a new node's; raises `StoreError`."""
        raw = checked_file.load(
            self._file, what=_WHAT, known=FORMAT, unchecked=_UNCHECKED, data=self._path
        )
        if raw is None:
            return NodeState(node=node, zone=zone)
        del raw["format"]
        try:
            state = cattrs.structure(raw, NodeState)
        except (
            ValueError,
            KeyError,
            TypeError,
            AttributeError,  # null in place of an object
            cattrs.BaseValidationError,
        ) as error:
            raise StoreError(
                f"{self._file}: not readable as {_WHAT} ({type(error).__name__});"
                " restore the file from a backup, or use another `data` folder"
            ) from error
        if (state.node, state.zone) != (node, zone):
            raise StoreError(
                f"{self._file}: belongs to node {state.node!r} with zone {state.zone!r}, not to"
                f" {node!r} with {zone!r}; give each node a `data` folder of its own"
            )
        return state

    def copied_at(self, state: NodeState) -> float | None:
        """
        When this folder was copied from the one that wrote the state, at the latest (UTC seconds);
        None: it is that one.
        """
        if state.place in (0, self.place):
            return None
        return self._file.stat().st_mtime

    @property
    def place(self) -> int:
        """A number that a copy of the folder does not have, but the folder itself after a move."""
        return os.fstat(self._lock.fileno()).st_ino

    def save(self, state: NodeState) -> None:
        """Make the state durable; raises `StoreError`, and then the old one still holds."""
        try:
            self._save_text(self._text.of(state))
        except FileInDoubt as error:
            self._on_failed(error)
            raise
        self._keep_reserve()

    def close(self) -> None:
        """Give up the lock."""
        self._lock.close()

    def _save_text(self, text: str) -> None:
        try:
            checked_file.save_text(self._file, text)
        except DiskFull:
            with contextlib.suppress(OSError):
                self._reserve.unlink(missing_ok=True)
            checked_file.save_text(self._file, text)

    def _keep_reserve(self) -> None:
        """Take the room for the next state, where there is any."""
        try:
            wanted = max(_SMALLEST, 2 * self._file.stat().st_size)
            if self._reserve.exists() and self._reserve.stat().st_size >= wanted:
                return
            with self._reserve.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, wanted)
        except OSError:
            with contextlib.suppress(OSError):
                self._reserve.unlink(missing_ok=True)

    def _take_lock(self) -> IO[str]:
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            with contextlib.ExitStack() as opened:
                lock = opened.enter_context((self._path / "lock").open("w"))
                machine_check.take_lock(lock, self._path)
                machine_check.check_disk(lock, self._path)
                opened.pop_all()
        except OSError as error:
            raise StoreError(
                f"{self._path}: cannot be used: {error.strerror}; set `data` to a folder that can"
                " be written"
            ) from error
        return lock
