"""
Clients that connect to this node and leave it: their entries, clean or kept, and their wills.

Theory of operation. `ConnectedClients` decides which entry a connection registers, and how long the
entry stays. A clean session begins by ending the earlier kept session. The entry of an ended clean
session stays until the keepers know that it began. The keepers have a will from CONNECT until the
will is published or discarded. A client id is in one of three states:

- *connected*: its entry is registered, with its will.
- *leaving*: the connection is closed, and its due will is not published yet.
- *closing*: a clean session has ended, and some keepers do not know yet that it began.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import attrs

from txbroker.directory.client_wills import OwnWills
from txbroker.directory.directory_parts import DirectoryParts
from txbroker.directory.entry import DirectoryEntry, DirectoryWill
from txbroker.directory.entry_conflicts import EntryConflicts
from txbroker.directory.requests import NONE_NAMED
from txbroker.model.machine_time import MachineTime
from txbroker.mqtt.wire.packets import Will

REMEMBERED = 60.0
"""Seconds for which the time of a CONNECT is retained."""

CLOSING_LIMIT = 5.0
"""Seconds for which the end of a clean session waits for unreachable keepers."""


@attrs.frozen(kw_only=True)
class ClearedAbove:
    """
    The sessions above which a new clean session counts.

    Kept sessions count up to `generation`, clean sessions up to `incarnation`.
    """

    generation: int = 0
    incarnation: int = 0


NOTHING: Final = ClearedAbove()
"""No session had to end."""


class ConnectedClients:
    """The clients of one node; `cleared` are ids without a session elsewhere."""

    def __init__(
        self,
        parts: DirectoryParts,
        *,
        conflicts: EntryConflicts,
        wills: OwnWills,
        moment: Callable[[], MachineTime],
    ) -> None:
        self._members = parts.members
        self._ownership = parts.ownership
        self._replicator = parts.replicator
        self._conflicts = conflicts
        self._wills = wills
        self._now = parts.now
        self._moment = moment
        self.cleared: dict[str, ClearedAbove] = {}
        self._here: dict[str, float] = {}
        self._closing: dict[str, float] = {}
        self._leaving: dict[str, DirectoryWill] = {}

    @property
    def remembered(self) -> int:
        """Return the number of ids with state beside their sessions."""
        return len(self.cleared) + len(self._here) + len(self._closing) + len(self._leaving)

    # from the edge

    def has_room(self, will: Will) -> bool:
        """True if a client with this will may connect."""
        return self._wills.has_room(will)

    def connected(self, client_id: str, *, clean: bool, will: Will | None) -> DirectoryWill | None:
        """
        Register a client that has its session; return its will in the form in which it is
        published.

        A kept session must be held here before the call. None: the client has no will.
        """
        directory_will = None
        if not self._members.is_alone:
            self._here.pop(client_id, None)
            self._here[client_id] = self._now()
        self._closing.pop(client_id, None)
        self._leaving.pop(client_id, None)
        if will is not None:
            directory_will = self._wills.store(client_id, will)
        else:
            self._wills.forget(client_id)
        known = self._replicator.own.get(client_id)
        begin = self._create_clean_entry if clean else self._go_on
        entry = begin(client_id, directory_will)
        if entry is not None and known != entry:
            self._replicator.set(entry)
        return directory_will

    def disconnected(self, client_id: str, *, is_will_due: bool) -> DirectoryWill | None:
        """
        Unregister a connection; return its will if the will is due.

        The caller publishes the returned will and calls `will_is_sent`; until then the keepers
        retain it, too. A will that is not due is discarded.
        """
        directory_will = self._wills.get(client_id)
        if directory_will is not None and not is_will_due:
            self._wills.forget(client_id)
            directory_will = None
        if directory_will is None:
            self._disconnect(client_id)
        else:
            self._leaving[client_id] = directory_will
        return directory_will

    def will_is_sent(self, client_id: str, directory_will: DirectoryWill) -> None:
        """Note that the will of a closed connection is published durably."""
        self.forget_will(client_id, directory_will)
        if self._leaving.get(client_id) == directory_will:
            del self._leaving[client_id]
            self._disconnect(client_id)

    def seconds_here(self, client_id: str) -> float | None:
        """
        Return the seconds since the client's last CONNECT; None: no CONNECT within `REMEMBERED`.
        """
        since = self._here.get(client_id)
        return None if since is None else self._now() - since

    def number_of(self, client_id: str) -> int:
        """Return the number of the client's last connection of the last `REMEMBERED` seconds."""
        return NONE_NAMED + 1 + int(self._here[client_id] * 1e6)

    def ended(self, client_id: str) -> None:
        """Unregister a kept session that expired or was deleted here."""
        if client_id in self._ownership.held:
            self._ownership.drop(client_id)
            self._replicator.drop(client_id)

    # from the directory

    def on_company(self, clean: Iterable[str]) -> None:
        """Register the clean sessions of this node: the site has other nodes now."""
        for client_id in clean:
            if client_id not in self._replicator.own:
                self._replicator.set(self._mere(client_id))

    def tick(self) -> None:
        """Forget clean sessions whose end is known, and old times of CONNECT."""
        until = self._now() - REMEMBERED
        for client_id, since in list(self._here.items()):
            if since > until:
                break
            del self._here[client_id]
        for client_id in list(self._closing):
            self._close_if_told(client_id)

    def forget_will(self, client_id: str, directory_will: DirectoryWill) -> None:
        """Delete a will that was published or discarded, here and at the keepers."""
        self._wills.forget(client_id, directory_will)
        own = self._replicator.own.get(client_id)
        if own is not None and own.testament == directory_will:
            self._replicator.set(attrs.evolve(own, testament=None))

    # internal

    def _mere(self, client_id: str) -> DirectoryEntry:
        """Return the entry of a clean session that ended no earlier session."""
        return DirectoryEntry(
            client_id=client_id,
            node=self._members.name,
            incarnation=1,
            persistent=False,
            testament=self._wills.get(client_id),
        )

    def _create_clean_entry(
        self, client_id: str, directory_will: DirectoryWill | None
    ) -> DirectoryEntry | None:
        """
        Return the entry of a new clean session; None: no other node needs it yet (see
        `on_company`).
        """
        own = self._replicator.own.get(client_id)
        cleared = self.cleared.pop(client_id, NOTHING)
        replaces = max(self._ownership.supersede(client_id), cleared.generation)
        if own is not None:
            replaces = max(replaces, own.generation)
        elif self._members.is_alone and not replaces:
            return None
        if not self._members.is_alone:
            self._conflicts.record_fresh(client_id)
        return DirectoryEntry(
            client_id=client_id,
            node=self._members.name,
            incarnation=max(
                cleared.incarnation, 0 if own is None or own.persistent else own.incarnation
            )
            + 1,
            persistent=False,
            replaces=replaces,
            testament=directory_will,
        )

    def _go_on(self, client_id: str, directory_will: DirectoryWill | None) -> DirectoryEntry:
        self._ownership.thaw(client_id)
        known = self._ownership.held[client_id]
        # Without other members no discard will ask for the time of this CONNECT.
        owned = attrs.evolve(known, since=None if self._members.is_only else self._moment())
        if self._replicator.is_cut_off(client_id):
            # An unreachable node may have ended or begun a session of this id. The raised
            # incarnation protects the client's further actions from that.
            owned = attrs.evolve(owned, incarnation=owned.incarnation + 1)
        if owned != known:
            self._ownership.store(client_id, owned)
        return DirectoryEntry(
            client_id=client_id,
            node=self._members.name,
            incarnation=owned.incarnation,
            persistent=True,
            testament=directory_will,
        )

    def _disconnect(self, client_id: str) -> None:
        """
        Unregister the connection; an ended clean session stays until its keepers know that it
        began.

        Even a short clean session ends the earlier kept session [MQTT-3.1.2-6].
        """
        own = self._replicator.own.get(client_id)
        if own is None:
            return
        if own.testament is not None:
            own = attrs.evolve(own, testament=None)
            self._replicator.set(own)
        if not own.persistent:
            self._conflicts.record_old(client_id)
            if self._replicator.is_told(client_id):
                self._replicator.drop(client_id)
            else:
                self._closing[client_id] = self._now()

    def _close_if_told(self, client_id: str) -> None:
        is_told = self._replicator.is_told(client_id)
        if is_told or self._now() - self._closing[client_id] >= CLOSING_LIMIT:
            del self._closing[client_id]
            own = self._replicator.own.get(client_id)
            if own is not None and not own.persistent:
                self._replicator.drop(client_id)
