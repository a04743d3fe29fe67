"""
The entries that this node keeps as one of the first three members for their ids.

An entry is changed by compare-and-set: by its holder, or by one that counts above it. Whoever is
pushed aside that way is remembered as a *loser* until it has said that it knows, so that a session
that ended while its holder was away does not come back with it. Entries of kept sessions, with
wills, or with such losers are durable; those of mere connections are not.

What only others say of a node is *hearsay*, and so is what an earlier life of this node knew. The
node itself confirms hearsay or denies it. Its own list may have come before, so nothing else would
end the hearsay. A claim is hearsay until its session is registered: it may come when its node has
given it up.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice

import attrs

from txbroker.directory.directory_ports import DurableTable
from txbroker.directory.entry import DirectoryEntry
from txbroker.directory.entry_record import (
    EntryRecord,
    EntryTableFull,
    KnownAbove,
    Verdict,
    decode,
    is_lasting,
)
from txbroker.model.invariant import holds

LIMIT = 1_000_000
"""Upper bound of entries at one node."""


class EntryTable:
    """
    Client id -> the entry in force, at one keeper.

    Invariant: an entry is said by its node, or is hearsay of it, or has ended.
    Invariant: an entry that has ended has losers; a loser is never the entry's node.
    """

    def __init__(self, table: DurableTable, limit: int = LIMIT) -> None:
        self._table = table
        self._limit = limit
        self._records: dict[str, EntryRecord] = {}
        self._losers: dict[str, dict[str, None]] = {}
        self._wills: dict[str, dict[str, None]] = {}
        self._said: dict[str, dict[str, None]] = {}
        self._hearsay: dict[str, dict[str, None]] = {}
        self._confirmed: dict[str, dict[str, None]] = {}
        self._lists: dict[str, int] = {}
        for _, value in table.items():
            self._load(value)

    def __len__(self) -> int:
        return len(self._records)

    # from searches for a session

    def get(self, client_id: str) -> DirectoryEntry | None:
        """Return the entry in force; None: the id has no entry, or its session has ended."""
        record = self._records.get(client_id)
        return None if record is None or record.ended else record.entry

    def generation(self, client_id: str) -> int:
        """Return the generation of the last known kept session; 0: none is known."""
        record = self._records.get(client_id)
        return 0 if record is None else record.entry.generation

    def greatest(self, client_id: str) -> int:
        """Return the greatest number known of the id; 0: none is known."""
        record = self._records.get(client_id)
        return 0 if record is None else max(record.entry.incarnation, record.entry.replaces)

    # from the holders

    def claim(self, entry: DirectoryEntry, *, is_hearsay: bool = False) -> Verdict:
        """
        Accept a new kept session, if its incarnation is above all that is known.

        A claim is hearsay, as its session may never begin.

        Of two claims with one incarnation the first to arrive stands here. Otherwise both could
        find a majority of the keepers.
        """
        record = self._records.get(entry.client_id)
        if record is not None:
            known = record.entry
            if known.generation >= entry.incarnation and known.node != entry.node:
                return KnownAbove(known, record.ended)
        return self.store(entry, is_hearsay=is_hearsay)

    def store(self, entry: DirectoryEntry, *, is_hearsay: bool = False) -> Verdict:
        """
        Store an entry that its holder sent, or that another node sent of the holder (`is_hearsay`).

        The entry counts as part of the holder's list under way, whose content may be older.
        """
        record = self._records.get(entry.client_id)
        is_news = record is None or record.entry != entry
        if record is None:
            if len(self._records) >= self._limit:
                return EntryTableFull.FULL
            record = EntryRecord(entry)
            self._records[entry.client_id] = record
            self._record_will(entry)
        else:
            known = record.entry
            if known.order > entry.order or (record.ended and known.order == entry.order):
                return KnownAbove(known, record.ended and entry.node not in record.losers)
            if is_hearsay and record.is_said and known.order == entry.order:
                # The holder's own entry has the current will, and hearsay would replace that will.
                return None
            if is_news:
                self._replace(record, entry)
        record.sync = max(record.sync, self._lists.get(entry.node, 0))
        if is_news:
            self._store(record)
        if is_hearsay:
            self._doubt(record)
        else:
            self._is_said(record)
        return None

    def begin_list(self, node: str, number: int) -> None:
        """Note that the node begins its complete list of that number."""
        self._lists[node] = number

    def renew(self, client_id: str, node: str) -> None:
        """Note that the node's list under way has the id, without an entry to send yet."""
        record = self._records.get(client_id)
        if record is not None and record.entry.node == node:
            record.sync = max(record.sync, self._lists.get(node, 0))

    def end(self, client_id: str, node: str, generation: int) -> None:
        """
        End the entry: the node holds no session of this id up to `generation`.

        A claim and the node's other messages have no common order. Without the bound, a late end
        would end a later session.
        """
        record = self._records.get(client_id)
        if record is None or record.entry.node != node or record.ended:
            return
        if record.entry.generation <= generation:
            self._end(record)

    def end_unlisted(self, node: str) -> None:
        """End all entries of the node that its list, complete by now, did not contain."""
        number = self._lists[node]
        for record in self._in_force(node):
            if record.sync < number:
                self._end(record)

    # from the notices to losers

    def losers(self) -> tuple[str, ...]:
        """Return the nodes that a superseding entry must still reach."""
        return tuple(self._losers)

    def due_to(self, node: str, count: int) -> tuple[DirectoryEntry, ...]:
        """Return at most `count` entries that count above the node's own."""
        due = self._losers.get(node, {})
        return tuple(self._records[client_id].entry for client_id in islice(due, count))

    def acknowledge(self, node: str, entry: DirectoryEntry) -> None:
        """Note that the node has acted on the entry."""
        record = self._records.get(entry.client_id)
        if record is not None and record.entry.order >= entry.order:
            self._forget_loser(record, node)
            self._settle(record)

    # from the questions to holders

    def hearsay(self, node: str, count: int) -> tuple[DirectoryEntry, ...]:
        """
        Return at most `count` entries that name the node without the node's own word.

        The least recently asked entries come first. A moved session may have ended before any node
        here heard of the move.
        """
        of_node = self._hearsay.get(node, {})
        ids = list(islice(of_node, count))
        for client_id in ids:
            of_node[client_id] = of_node.pop(client_id)
        return tuple(self._records[client_id].entry for client_id in ids)

    def nodes_of_hearsay(self) -> tuple[str, ...]:
        """Return the nodes that hearsay entries name: the directory asks these nodes."""
        return tuple(self._hearsay)

    def confirm(self, entry: DirectoryEntry) -> None:
        """
        Note that the node, when asked, confirmed the session of that entry; the question recurs
        later.

        The node may send the session's end to other keepers only: its site or its view of the
        members differs.
        """
        client_id, of_node = entry.client_id, self._hearsay.get(entry.node, {})
        if client_id in of_node and self._records[client_id].entry.order == entry.order:
            self._forget_source(entry)
            self._confirmed.setdefault(entry.node, {})[client_id] = None

    def mark_unconfirmed(self) -> None:
        """Turn confirmed entries into hearsay again, so that their nodes are asked once more."""
        confirmed, self._confirmed = self._confirmed, {}
        for node, ids in confirmed.items():
            self._hearsay.setdefault(node, {}).update(ids)

    def deny(self, entry: DirectoryEntry) -> None:
        """
        End an entry that its node, when asked, denied.

        The answer and the node's other messages have no common order. Thus a denial ends no entry
        that the node itself has sent.
        """
        record = self._records.get(entry.client_id)
        if record is None or record.entry.order != entry.order:
            return
        if not (record.is_said or record.ended):
            self._end(record)

    def doubt(self, nodes: Collection[str]) -> None:
        """
        Turn the entries of these nodes into hearsay: the nodes no longer send their ends to this
        keeper.
        """
        for node in nodes:
            self._lists.pop(node, None)
            for client_id in self._said.pop(node, ()):
                self._records[client_id].is_said = False
                self._doubt(self._records[client_id])

    # wills

    def nodes_with_wills(self) -> tuple[str, ...]:
        """Return the nodes whose clients have wills in this table."""
        return tuple(self._wills)

    def with_wills(self, node: str) -> tuple[DirectoryEntry, ...]:
        """Return the entries of the node's clients that have a will."""
        return tuple(self._records[client_id].entry for client_id in self._wills.get(node, {}))

    def will_is_sent(self, client_id: str, node: str, life: int, number: int) -> None:
        """Remove a will that was published."""
        record = self._records.get(client_id)
        if record is None or record.entry.node != node:
            return
        directory_will = record.entry.testament
        if directory_will is not None and (directory_will.life, directory_will.number) <= (
            life,
            number,
        ):
            self._forget_will(record.entry)
            record.entry = attrs.evolve(record.entry, testament=None)
            self._store(record)

    # from the members

    def durable(self) -> Iterator[DirectoryEntry]:
        """
        Yield the entries that a new keeper needs on behalf of holders that cannot send theirs.
        """
        for client_id in list(self._records):
            record = self._records.get(client_id)
            if record is not None and not record.ended and is_lasting(record.entry):
                yield record.entry

    def forget_node(self, node: str) -> None:
        """End all entries of a node that was removed by command: its sessions are lost."""
        for record in self._in_force(node):
            self._end(record)
        for client_id in list(self._losers.get(node, ())):
            self._forget_loser(self._records[client_id], node)
            self._settle(self._records[client_id])

    def check(self) -> None:
        """State that each entry is in force once, and that who is to hear of it is known."""
        for client_id, record in self._records.items():
            entry, node = record.entry, record.entry.node
            holds(self, 19, "an entry is of its id", entry.client_id == client_id, client_id)
            unsaid = [ids.get(node, {}) for ids in (self._hearsay, self._confirmed)]
            is_unsaid = any(client_id in ids for ids in unsaid)
            is_one = is_unsaid == (not record.is_said and not record.ended)
            is_one &= (client_id in self._said.get(node, ())) == (
                record.is_said and not record.ended
            )
            holds(self, 19, "an entry is said, or is hearsay", is_one, entry, record.is_said)
            is_needed = bool(record.losers) or not record.ended
            holds(self, 19, "what has ended has losers", is_needed, client_id)
            holds(self, 19, "no node loses to itself", node not in record.losers, client_id, node)
            told = all(client_id in self._losers.get(loser, {}) for loser in record.losers)
            holds(self, 19, "losers will be told", told, client_id, record.losers)
            is_willed = (client_id in self._wills.get(node, {})) == (entry.testament is not None)
            holds(self, 25, "a will is known", is_willed, client_id, node)
            is_right = record.stored == record.is_lasting
            holds(self, 19, "what lasts is stored", is_right, client_id)
        stored = {key.decode() for key, _ in self._table.items()}
        known = {client_id for client_id, one in self._records.items() if one.stored}
        holds(self, 19, "the table has what is stored", stored == known, stored ^ known)

    # internal

    def _doubt(self, record: EntryRecord) -> None:
        client_id, node = record.entry.client_id, record.entry.node
        if client_id not in self._confirmed.get(node, {}):
            self._hearsay.setdefault(node, {}).setdefault(client_id)

    def _is_said(self, record: EntryRecord) -> None:
        self._forget_source(record.entry)
        record.is_said = True
        self._said.setdefault(record.entry.node, {})[record.entry.client_id] = None

    def _in_force(self, node: str) -> list[EntryRecord]:
        """Return the records that are in force and name the node; a walk of all would take long."""
        sources = (self._said, self._hearsay, self._confirmed)
        return [self._records[client_id] for ids in sources for client_id in ids.get(node, ())]

    def _forget_source(self, entry: DirectoryEntry) -> None:
        for known in (self._said, self._hearsay, self._confirmed):
            of_node = known.get(entry.node)
            if of_node is not None and of_node.pop(entry.client_id, 0) is None and not of_node:
                del known[entry.node]

    def _replace(self, record: EntryRecord, entry: DirectoryEntry) -> None:
        known = record.entry
        if known.node != entry.node and not record.ended:
            self._add_loser(record, known.node, known.persistent)
        self._forget_will(known)
        self._forget_source(known)
        record.is_said = False
        if known.node != entry.node:
            record.sync = 0
        record.entry = entry
        record.ended = False
        self._forget_loser(record, entry.node)
        self._record_will(entry)

    def _end(self, record: EntryRecord) -> None:
        self._forget_will(record.entry)
        self._forget_source(record.entry)
        record.entry = attrs.evolve(record.entry, testament=None)
        record.ended = True
        self._settle(record)

    def _settle(self, record: EntryRecord) -> None:
        """Store the record, or delete it if its session has ended and no loser remains."""
        if record.ended and not record.losers:
            client_id = record.entry.client_id
            del self._records[client_id]
            if record.stored:
                self._table.delete(client_id.encode())
        else:
            self._store(record)

    def _add_loser(self, record: EntryRecord, node: str, persistent: bool) -> None:
        record.losers[node] = persistent or record.losers.get(node, False)
        self._losers.setdefault(node, {})[record.entry.client_id] = None

    def _forget_loser(self, record: EntryRecord, node: str) -> None:
        if record.losers.pop(node, None) is not None:
            due = self._losers[node]
            del due[record.entry.client_id]
            if not due:
                del self._losers[node]

    def _record_will(self, entry: DirectoryEntry) -> None:
        if entry.testament is not None:
            self._wills.setdefault(entry.node, {})[entry.client_id] = None

    def _forget_will(self, entry: DirectoryEntry) -> None:
        if entry.testament is not None:
            of_node = self._wills[entry.node]
            del of_node[entry.client_id]
            if not of_node:
                del self._wills[entry.node]

    def _store(self, record: EntryRecord) -> None:
        key = record.entry.client_id.encode()
        if record.is_lasting:
            record.stored = True
            self._table.put(key, record.encode())
        elif record.stored:
            record.stored = False
            self._table.delete(key)

    def _load(self, value: bytes) -> None:
        record = decode(value)
        self._records[record.entry.client_id] = record
        self._record_will(record.entry)
        if not record.ended:
            self._doubt(record)
        losers, record.losers = record.losers, {}
        for node, persistent in losers.items():
            self._add_loser(record, node, persistent)
