"""
This node as a keeper of entries: answers lookups and claims, takes lists.

*Unknown* counts only from a keeper that would know. A node becomes a keeper of some ids when it
joins, or when a member is removed. Such a node is not *settled*: it first needs the lists of the
members under the view that it has itself. One list may be missing where another member knew its
share before (*established*). Two keepers accepted whatever was promised. One of the two, or its
relay, is among those that were heard. Members that were never settled have promised nothing.

A member's batches are numbered. A batch that comes after a later one is late: its sender has given
it up and has sent its content again, so what it says may have ended since. A list that begins at a
lower number is late, too, or of a process that lost its disk. Later numbers tell which.

What a member has said counts until a member goes. One more takes ids away from this node and gives
it none: whatever is promised since has two keepers, and any two of three have one in common.
"""

from __future__ import annotations

import attrs

from txbroker.directory.entry import DirectoryEntry
from txbroker.directory.entry_record import EntryTableFull, KnownAbove, Verdict
from txbroker.directory.entry_table import EntryTable
from txbroker.directory.members import Members
from txbroker.directory.requests import (
    Answer,
    Answers,
    Claim,
    Claimed,
    Lookup,
    OtherView,
    Register,
    Registered,
    WillsSent,
)
from txbroker.model.invariant import holds


@attrs.define(slots=True, eq=False)
class _Begun:
    """
    The list number `sync` that a member began; `number`: of its last batch since.

    `beyond`: the greatest number from before the list, if the list began at a lower one; or 0.
    """

    sync: int
    number: int
    beyond: int = 0


class EntryReplica:
    """
    The entries of this node in the life `life` of its process.

    Invariant: only a member that began its list here counts as heard.
    """

    def __init__(self, members: Members, entries: EntryTable, life: int) -> None:
        self.entries = entries
        self._members = members
        self._life = life
        self._unsettlings = members.unsettlings
        self._listed: dict[str, bool] = {}
        self._begun: dict[str, _Begun] = {}
        members.when_changed(self._on_members)
        self._look()

    # from other nodes

    def lookup(self, request: Lookup) -> Answers | OtherView:
        """Answer where the sessions of the ids are."""
        if request.view != self._members.view:
            return self.other_view()
        return Answers(answers=tuple(self.find(client_id) for client_id in request.client_ids))

    def find(self, client_id: str) -> Answer:
        """Answer where the session of one id is."""
        entry = self.entries.get(client_id)
        return Answer(
            settled=self._members.is_settled,
            entry=None if entry is None else attrs.evolve(entry, testament=None),
            generation=self.entries.generation(client_id),
        )

    def claim(self, source: str, request: Claim) -> Claimed | OtherView:
        """Accept or refuse a new session at `source`."""
        if request.view != self._members.view:
            return self.other_view()
        entry = attrs.evolve(request.entry, node=source)
        # So is a claim of this node: its withdrawal reaches those that are keepers by then.
        verdict = self.entries.claim(entry, is_hearsay=True)
        if isinstance(verdict, EntryTableFull):
            # A full keeper cannot store the claim: the asker must not count its answer.
            return self.other_view()
        return Claimed(conflict=None if verdict is None else verdict.entry)

    def register(self, source: str, batch: Register) -> Registered | OtherView:
        """Store a part of a member's entries."""
        if batch.view != self._members.view:
            return self.other_view()
        if batch.first:
            self._begin_list(source, batch)
        elif not self._continues_list(source, batch):
            return self._registered(restart=True)
        begun = self._begun[source]
        if batch.number < begun.number:
            return self._registered()
        begun.number = batch.number
        return self._apply_batch(source, batch)

    def wills_sent(self, request: WillsSent) -> None:
        """Remove wills that another keeper has published."""
        for will in request.wills:
            self.entries.will_is_sent(will.client_id, request.node, will.life, will.number)

    def other_view(self) -> OtherView:
        """Return the members as this node knows them."""
        return OtherView(view=self._members.view, members=self._members.all)

    def check(self) -> None:
        """State who was heard, and what of entries is kept."""
        strange = self._listed.keys() - self._begun.keys()
        holds(self, 19, "who was heard began a list", not strange, strange)
        self.entries.check()

    # internal

    def _begin_list(self, source: str, batch: Register) -> None:
        before, beyond = self._begun.get(source), 0
        if before is not None and batch.number < before.number:
            beyond = max(before.number, before.beyond)
            self.entries.doubt((source,))
        self._begun[source] = _Begun(batch.sync, batch.number, beyond)
        self.entries.begin_list(source, batch.sync)

    def _continues_list(self, source: str, batch: Register) -> bool:
        """
        True if the batch belongs to a list that began here, or follows such a list.

        A number above those from before the list shows that the list came late.

        A member may not have seen this node leave and return. Such a member believes that this
        keeper knows all its entries under this view.
        """
        begun = self._begun.get(source)
        if begun is None or 0 < begun.beyond < batch.number:
            return False
        is_news = not batch.sync and not batch.catching_up
        if is_news and source not in self._listed and not self._members.is_settled:
            return False
        return batch.keeper_life == self._life and batch.sync in (0, begun.sync)

    def _apply_batch(self, source: str, batch: Register) -> Registered:
        conflicts: list[DirectoryEntry] = []
        past: list[DirectoryEntry] = []
        full: list[str] = []
        for entry in batch.entries:
            match self._put(entry, source):
                case EntryTableFull():
                    full.append(entry.client_id)
                case KnownAbove(entry=known, has_ended=has_ended):
                    (past if has_ended else conflicts).append(attrs.evolve(known, testament=None))
        for ended in batch.ended:
            self.entries.end(ended.client_id, source, ended.generation)
        for client_id in batch.kept:
            self.entries.renew(client_id, source)
        for entry in batch.relayed:
            self._put(entry, source)
        if batch.last:
            self.entries.end_unlisted(source)
            self._listed[source] = batch.established
            self._look()
        return self._registered(conflicts=tuple(conflicts), past=tuple(past), full=tuple(full))

    def _put(self, entry: DirectoryEntry, source: str) -> Verdict:
        if self._members.is_removed(entry.node):
            return None  # the sender has not seen the removal, and would revive lost sessions
        # A late list may name sessions that have ended, and no end of them would follow.
        is_hearsay = entry.node != source or self._begun[source].beyond > 0
        return self.entries.store(entry, is_hearsay=is_hearsay)

    def _registered(self, **fields: object) -> Registered:
        settled = self._members.is_settled
        return Registered(life=self._life, settled=settled, **fields)  # type: ignore[arg-type]

    def _on_members(self) -> None:
        if self._members.unsettlings != self._unsettlings:
            self._unsettlings = self._members.unsettlings
            self._listed.clear()
        gone = {name for name in self._begun if not self._members.is_peer(name)}
        for name in gone:
            self._listed.pop(name, None)
            del self._begun[name]
        if gone:
            self.entries.doubt(gone)
        self._look()

    def _look(self) -> None:
        members = self._members
        if members.is_joined and not members.is_settled:
            missing = [name for name in members.peers() if name not in self._listed]
            if len(missing) <= (1 if any(self._listed.values()) else 0):
                members.settle()
