"""
Wills of clients whose node is silent (protocol rule 25).

Theory of operation. Each keeper has the wills of its share of the clients. A node is due when no
message came from it for `after` seconds and it does not answer either. The first reachable keeper
of the client's id then publishes the will. A keeper that knows a newer session of the id prevents
that.

A node that starts publishes the wills of its own earlier lives after the same time, under the same
condition. Several nodes may publish one will: the will's id lets its owner accept the will once.

A will with a delay is due when the delay has passed, too. A keeper counts the delay since it last
heard of the node, the node itself since it started. The will of a session that ends with its
connection has no delay.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial

from txbroker.directory.directory_parts import DirectoryParts
from txbroker.directory.directory_ports import DurableTable
from txbroker.directory.effects import Pause, Procedure, SendRequest, ask
from txbroker.directory.entry import (
    DirectoryEntry,
    DirectoryWill,
    pack,
    testament_fields,
    testament_from,
    unpack,
)
from txbroker.directory.requests import Answers, Lookup, Ping, Reply, WillSent, WillsSent
from txbroker.directory.sent_wills import CHUNK, SentWills
from txbroker.directory.silent_members import SilentMembers
from txbroker.mqtt.wire.message import WillId, owner_of_will
from txbroker.mqtt.wire.packets import Will

MOST_BYTES = 32 * 1024 * 1024
"""Bytes of this node's wills, beyond which only small ones are accepted; keepers copy them."""

PINGS = 2
"""Unanswered pings that make a member silent: a busy member may miss one."""

SMALL = 1024
"""Bytes of a small will."""


def will_id(client_id: str, node: str, directory_will: DirectoryWill) -> WillId:
    """
    Return the id by which the owner of a will's topic accepts the will once, whatever node sends
    it.
    """
    return owner_of_will(node, client_id), directory_will.life, directory_will.number


def will_size(will: Will) -> int:
    """Return the bytes that a will has."""
    return len(will.topic) + len(will.payload) + len(will.properties)


def _size(directory_will: DirectoryWill) -> int:
    return will_size(directory_will.will)


class OwnWills:
    """The durable wills of this node's connections, in the life `life` of its process."""

    def __init__(self, table: DurableTable, life: int) -> None:
        self._table = table
        self._life = life
        self._last = 0
        self._all = {key.decode(): _from_bytes(value) for key, value in table.items()}
        self._bytes = sum(map(_size, self._all.values()))

    def store(self, client_id: str, will: Will) -> DirectoryWill:
        """Store the will of a new connection, in place of an earlier connection's will."""
        self._last += 1
        directory_will = DirectoryWill(life=self._life, number=self._last, will=will)
        earlier = self._all.get(client_id)
        if earlier is not None:
            self._bytes -= _size(earlier)
        self._all[client_id] = directory_will
        self._bytes += _size(directory_will)
        self._table.put(client_id.encode(), _to_bytes(directory_will))
        return directory_will

    def forget(self, client_id: str, directory_will: DirectoryWill | None = None) -> None:
        """Delete the client's will; with `directory_will`, delete that will only."""
        known = self._all.get(client_id)
        if known is not None and (directory_will is None or known == directory_will):
            del self._all[client_id]
            self._bytes -= _size(known)
            self._table.delete(client_id.encode())

    def has_room(self, will: Will) -> bool:
        """
        True if one more will fits; a small will always does.

        A will of the largest size takes 190 KiB. A stranger filled the memory with some thousand.
        """
        size = will_size(will)
        return size <= SMALL or self._bytes + size <= MOST_BYTES

    def get(self, client_id: str) -> DirectoryWill | None:
        """Return the will of the client's connection."""
        return self._all.get(client_id)

    @property
    def count(self) -> int:
        """Return the number of stored wills."""
        return len(self._all)

    def of_earlier_lives(self) -> list[tuple[str, DirectoryWill]]:
        """Return the wills of connections that ended with an earlier process."""
        return [(c, t) for c, t in self._all.items() if t.life != self._life]


class WillWatch:
    """The publisher of due wills; `after` seconds of silence make a node unreachable."""

    def __init__(
        self,
        parts: DirectoryParts,
        *,
        silence: SilentMembers,
        own: OwnWills,
        forget: Callable[[str, DirectoryWill], None],
        sent: SentWills,
        after: float,
    ) -> None:
        """Wire the parts. `forget` gets each own will that was published or became void."""
        self._members = parts.members
        self._replica = parts.replica
        self._silence = silence
        self._reach = parts.reach
        self._own = own
        self._forget = forget
        self._sent_wills = sent
        self._host = parts.host
        self._after = after
        self._now = parts.now
        self._start = parts.now()
        self._next: dict[str, float] = {}
        self._own_due_at = self._start + after
        self._told: dict[str, dict[str, list[WillSent]]] = {}

    # from the directory

    def due(self) -> list[tuple[tuple[str, ...], Procedure[None]]]:
        """Return the procedures for silent nodes and own wills, each with a key."""
        now = self._now()
        procedures: list[tuple[tuple[str, ...], Procedure[None]]] = []
        if self._told:
            procedures.append((("wills sent",), self._notify_keepers()))
        # Reports of a silent node do not hasten a node that has just started. Otherwise wills would
        # be published before the edges that subscribe to them are linked again.
        is_early = now - self._start < self._after
        nodes = (
            [] if is_early else [*self._replica.entries.nodes_with_wills(), *self._silence.due()]
        )
        for node in dict.fromkeys(nodes):
            is_due = now >= self._next.get(node, 0.0) and self._silence.is_due(node)
            if node != self._members.name and is_due:
                self._next[node] = now + self._after / 2
                procedures.append((("wills", node), self._execute(node)))
        for node in self._sent_wills.nodes():
            procedures.append((("wills back", node), self._notify_returned(node)))
        if now >= self._own_due_at:
            self._own_due_at = math.inf
            procedures.append((("own wills",), self._execute_own()))
        return procedures

    def bury(self, node: str, entries: tuple[DirectoryEntry, ...]) -> Procedure[None]:
        """Publish the wills of a removed node's clients: no member watches that node any more."""
        mine = yield from self._mine(node, entries)
        for first in range(0, len(mine), CHUNK):
            part = mine[first : first + CHUNK]
            newer = yield from self._newer(part)
            for entry in part:
                known = self._replica.entries.get(entry.client_id)
                is_gone = known is None or known.node == node
                if is_gone and entry.client_id not in newer:
                    self._publish_will(node, entry)
            yield Pause(seconds=0.0)

    # internal

    def _execute(self, node: str) -> Procedure[None]:
        for _ in range(PINGS):
            began, patience = self._now(), self._reach.patience(node)
            if (yield from ask(node, Ping())) is not None:
                self._silence.record_contact(node)
                return
            if self._reach.is_early(began, patience):
                return  # this node or its machine has become busy: nobody would answer in time
        self._silence.missed(node)
        begun = self._now()
        self._next = {n: t for n, t in self._next.items() if t > self._now()}
        since = self._silence.last_heard(node)
        entries = tuple(
            entry
            for entry in self._replica.entries.with_wills(node)
            if begun >= since + _delay_of(entry)
        )
        mine = yield from self._mine(node, entries)
        for first in range(0, len(mine), CHUNK):
            yield from self._publish(node, mine[first : first + CHUNK], begun)
            yield Pause(seconds=0.0)

    def _mine(
        self, node: str, entries: tuple[DirectoryEntry, ...]
    ) -> Procedure[list[DirectoryEntry]]:
        """Return the entries of which this node is the first reachable keeper."""
        mine: list[DirectoryEntry] = []
        reached: dict[str, bool] = {self._members.name: True, node: False}
        for entry in entries:
            # A node removed just now still counts as a keeper: its successor has no copy of the
            # will yet.
            places = self._members.places
            names = {*places.keepers(entry.client_id), node}
            for name in places.best(entry.client_id, names):
                if name not in reached:
                    reached[name] = (yield from ask(name, Ping())) is not None
                if reached[name]:
                    if name == self._members.name:
                        mine.append(entry)
                    break
        return mine

    def _publish(self, node: str, entries: list[DirectoryEntry], begun: float) -> Procedure[None]:
        newer = yield from self._newer(entries)
        if self._silence.last_heard(node) > begun:
            return  # the node answered during the lookup, which a slow disk prolongs
        for entry in entries:
            known = self._replica.entries.get(entry.client_id)
            if known == entry and entry.client_id not in newer:
                self._publish_will(node, entry)  # a client that connected elsewhere needs no will

    def _publish_will(self, node: str, entry: DirectoryEntry) -> None:
        directory_will = entry.testament
        if directory_will is not None:
            sent = partial(self._sent, entry.client_id, node, directory_will)
            self._host.publish_will(entry.client_id, node, directory_will, sent)

    def _sent(self, client_id: str, node: str, directory_will: DirectoryWill) -> None:
        will = WillSent(client_id=client_id, life=directory_will.life, number=directory_will.number)
        self._replica.entries.will_is_sent(client_id, node, will.life, will.number)
        self._sent_wills.add(node, will)
        for name in self._members.keepers(client_id):
            if name not in (node, self._members.name):
                self._told.setdefault(name, {}).setdefault(node, []).append(will)

    def _notify_keepers(self) -> Procedure[None]:
        """
        Notify the other keepers; a keeper that misses it may publish again, and the will's id drops
        that.
        """
        told, self._told = self._told, {}
        calls = tuple(
            (name, WillsSent(node=node, wills=tuple(wills)))
            for name, by_node in told.items()
            for node, wills in by_node.items()
        )
        yield SendRequest(calls=calls, take=lambda _name, _reply: False)

    def _notify_returned(self, node: str) -> Procedure[None]:
        """Notify a node, possibly reachable again, of its published wills."""
        wills = self._sent_wills.of(node)
        gone = self._members.get(node) is None
        if gone or (yield from ask(node, WillsSent(node=node, wills=wills))) is not None:
            self._sent_wills.acknowledge(node, wills)

    def _execute_own(self) -> Procedure[None]:
        """Publish the wills of connections of this node's earlier lives."""
        now, left = self._now(), []
        for client_id, directory_will in self._own.of_earlier_lives():
            due_at = self._start + directory_will.will.delay
            if due_at <= now:
                left.append((client_id, directory_will))
            else:
                self._own_due_at = min(self._own_due_at, due_at)
        for first in range(0, len(left), CHUNK):
            part = left[first : first + CHUNK]
            newer = yield from self._newer(
                [
                    DirectoryEntry(
                        client_id=c, node=self._members.name, incarnation=0, persistent=True
                    )
                    for c, _ in part
                ]
            )
            for client_id, directory_will in part:
                if self._own.get(client_id) != directory_will:
                    continue  # the client connected here meanwhile
                if client_id in newer:
                    self._forget(client_id, directory_will)
                    continue
                sent = partial(self._forget, client_id, directory_will)
                self._host.publish_will(client_id, self._members.name, directory_will, sent)
            yield Pause(seconds=0.0)

    def _newer(self, entries: Iterable[DirectoryEntry]) -> Procedure[set[str]]:
        """Return the ids that a keeper knows at another node by now."""
        by_id = {entry.client_id: entry for entry in entries}
        asked: dict[str, list[str]] = {}
        for client_id in by_id:
            for name in self._members.keepers(client_id):
                asked.setdefault(name, []).append(client_id)
        newer: set[str] = set()
        open_calls = len(asked)

        def take(name: str, reply: Reply | None) -> bool:
            nonlocal open_calls
            open_calls -= 1
            if isinstance(reply, Answers):
                for client_id, answer in zip(asked[name], reply.answers, strict=False):
                    if answer.entry is not None and _is_newer(answer.entry, by_id[client_id]):
                        newer.add(client_id)
            return open_calls == 0

        view = self._members.view
        calls = tuple(
            (name, Lookup(view=view, client_ids=tuple(ids))) for name, ids in asked.items()
        )
        if calls:
            yield SendRequest(calls=calls, take=take)
        return newer


def _delay_of(entry: DirectoryEntry) -> int:
    """Return the seconds for which the client may come back without a will."""
    will = entry.testament
    return 0 if will is None or not entry.persistent else will.will.delay


def _is_newer(other: DirectoryEntry, entry: DirectoryEntry) -> bool:
    return other.node != entry.node and other.order > entry.order


def _to_bytes(directory_will: DirectoryWill) -> bytes:
    return pack([testament_fields(directory_will)], directory_will.will.payload)


def _from_bytes(record: bytes) -> DirectoryWill:
    (fields,), payload = unpack(record)
    directory_will = testament_from(fields, payload)
    assert directory_will is not None
    return directory_will
