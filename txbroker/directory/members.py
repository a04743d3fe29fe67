"""
The nodes that this one knows, by site; the same list everywhere, sooner or later.

A node becomes a member when it joins the tree. It stays one until a command removes it, whether it
is reachable or not. Otherwise the keepers of an entry would change with every cut. Lists are merged
as a union. Each member's record has a version, and the greater version counts. Only that node
raises it for itself (a new address); a command raises it to remove the member.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b

import attrs

from txbroker.delegation.peer_checks import AHEAD, NODES
from txbroker.directory.directory_ports import DurableTable
from txbroker.directory.entry import pack, unpack
from txbroker.directory.rendezvous_hash import RendezvousHash
from txbroker.model.invariant import holds, ordered
from txbroker.runtime.flush_queue import run_all

LIMIT = NODES
"""Upper bound of members, not counting removed ones; further members are refused."""

REMOVED = 10_000
"""Upper bound of removed members in the table; beyond it the earliest removal is forgotten."""

RECORDS = LIMIT + REMOVED
"""Upper bound of records, removed members included."""

SLICE = 500
"""Records in one message."""

_JOINED = b"\0joined"
_SETTLED = b"\0settled"
_NOW, _ONCE = b"now", b"once"


@attrs.frozen(kw_only=True)
class Member:
    """
    A node: its name, the address of its control plane (host:port), its site, the version. The
    identity of its data folder is here where it is known.
    """

    name: str
    grpc: str
    site: str
    version: int
    removed: bool = False
    identity: str = ""

    @property
    def rank(self) -> tuple[int, bool, str, str, str]:
        """Return the sort key: of two records of one name the greater counts."""
        return (self.version, self.removed, self.grpc, self.site, self.identity)


class Members:
    """
    The members that node `name` of `site` knows. A root knows all members. Any other node is to be
    told once (`merge_list`) before it may conclude anything from its list.

    `is_alone`: this node is the only member of its site; `is_only`: it knows no other site either.
    `left_out` counts members for which there was no room; `unsettlings` grows whenever what others
    have said before is not enough any more.

    Invariant: a node is a member, or removed; the addresses are those of the members.

    The table is this object's alone. Changes are to be safe before anybody acts on them, which is
    the caller's concern.
    """

    def __init__(
        self, name: str, site: str, table: DurableTable, *, is_root: bool, identity: str = ""
    ) -> None:
        self.name = name
        self.site = site
        self.is_root = is_root
        self._identity = identity
        self._table = table
        self._all: dict[str, Member] = {}
        self._removed: dict[str, None] = {}
        self._changes: dict[str, tuple[int, object]] = {}
        self._at: dict[str, str] = {}
        self._addresses: Counter[str] = Counter()
        self._last_change = 0
        self._actions: list[Callable[[], None]] = []
        self.left_out = 0
        self.unsettlings = 0
        for key, value in table.items():
            if not key.startswith(b"\0"):
                (member_name, grpc, its_site, version, removed, *rest), _ = unpack(value)
                self._all[member_name] = Member(
                    name=member_name,
                    grpc=grpc,
                    site=its_site,
                    version=version,
                    removed=removed,
                    identity=rest[0] if rest else "",
                )
        for known in self._all.values():
            self._note(known.name, known, None)
        self.is_joined = is_root or table.get(_JOINED) is not None
        settled = table.get(_SETTLED)
        self.is_settled = settled == _NOW
        self.was_settled = settled is not None
        self._sites = {site: RendezvousHash(())}
        self._views: dict[str, bytes] = {}
        self._work_out({name: None}, {})
        self._work_out(self._all, {})

    # present members

    def get(self, name: str) -> Member | None:
        """Return a member; None: the node never was a member, or was removed."""
        member = self._all.get(name)
        return None if member is None or member.removed else member

    def record(self, name: str) -> Member | None:
        """Return the record of a present or removed member."""
        return self._all.get(name)

    def count_at(self, grpc: str) -> int:
        """Return how many members have that address."""
        return self._addresses[grpc]

    def sites(self) -> tuple[str, ...]:
        """Return the other sites."""
        return tuple(site for site in self._sites if site != self.site)

    def peers(self) -> tuple[str, ...]:
        """Return the other members of this node's site."""
        return tuple(name for name in self.places.names if name != self.name)

    def is_peer(self, name: str) -> bool:
        """True if `name` is another member of this node's site."""
        return name in self.places and name != self.name

    def keepers(self, client_id: str, site: str | None = None) -> tuple[str, ...]:
        """
        Return the keepers of an id among the members of a site (None: this site), the first one
        first.
        """
        return self._sites[self.site if site is None else site].keepers(client_id)

    @property
    def places(self) -> RendezvousHash:
        """Return the hash of this node's site; each change of its members makes a new object."""
        return self._sites[self.site]

    def view_of(self, site: str) -> bytes:
        """
        Return the digest of a site's members: nodes that see the same members have equal digests.
        """
        view = self._views.get(site)
        if view is None:
            view = self._views[site] = _digest(self._sites[site].names)
        return view

    @property
    def view(self) -> bytes:
        """Return the digest of the members of this node's site."""
        return self.view_of(self.site)

    # changes

    def when_changed(self, action: Callable[[], None]) -> None:
        """Run `action` after each change, changes of an address included."""
        self._actions.append(action)

    def announce(self, grpc: str) -> None:
        """Make this node a member, at the address `grpc`."""
        known = self._all.get(self.name)
        version = 1 if known is None else known.version
        mine = Member(
            name=self.name, grpc=grpc, site=self.site, version=version, identity=self._identity
        )
        if known is not None and known != mine:
            mine = attrs.evolve(mine, version=version + 1)
        self._take({self.name: mine} if known != mine else {})

    def merge_list(self, members: Iterable[Member], source: object = None) -> None:
        """
        Merge the parent's complete list; the list is complete from then on. `source` as in `merge`.
        """
        is_news = not self.is_joined
        if is_news:
            self._table.put(_JOINED, b"1")
            self.is_joined = True
        if not self.merge(members, source) and is_news:
            self._notify()

    def merge(self, members: Iterable[Member], source: object = None) -> bool:
        """
        Merge the records that another node sent; return True if a record changed.

        `news_since` does not send these changes back to `source`.
        """
        news: dict[str, Member] = {}
        corrected = False
        room = LIMIT - len(self._all) + len(self._removed)
        for member in members:
            known = news.get(member.name, self._all.get(member.name))
            if member.version > (0 if known is None else known.version) + AHEAD:
                continue  # a version of 2^64-1 could never be superseded
            if known is None or (known.removed and not member.removed):
                if room <= 0 and not member.removed:
                    self.left_out += 1
                    continue
                room -= not member.removed
            if known is None:
                news[member.name] = member
            elif member.rank > known.rank:
                if member.name == self.name and not known.removed:
                    # This node's own record is right: another node may have a record of an earlier
                    # life.
                    if member.removed:
                        self._unsettle_for_good()
                    member = attrs.evolve(known, version=member.version + 1)
                    corrected = True
                news[member.name] = member
        # A corrected record goes to its source too, which would otherwise retain the wrong one.
        self._take(news, None if corrected else source)
        return bool(news)

    def remove(self, name: str) -> bool:
        """
        Remove a member by command; return False if `name` is no member.

        The node will not return, and its sessions are lost.
        """
        member = self.get(name)
        if member is None:
            return False
        self.remove_record(member)
        return True

    def remove_record(self, member: Member) -> None:
        """Remove the member that other nodes know by this record; it need not be one here."""
        self._take({member.name: attrs.evolve(member, version=member.version + 1, removed=True)})

    def settle(self) -> None:
        """
        Note that the members of the site have sent their entries of this node's share of the ids.
        """
        self.is_settled = self.was_settled = True
        self._table.put(_SETTLED, _NOW)

    def news_since(self, told: int, source: object = None) -> tuple[tuple[Member, ...], int]:
        """
        Return the records changed after `told` (0: all), and the last change that they cover.

        At most `SLICE` records are returned, without records that came from `source`.
        """
        news = []
        for name in reversed(self._changes):
            change, came_from = self._changes[name]
            if change <= told:
                break
            if source is None or came_from is not source:
                news.append((name, change))
        if len(news) <= SLICE:
            return tuple(self._all[name] for name, _ in reversed(news)), self._last_change
        part = news[-SLICE:]
        return tuple(self._all[name] for name, _ in reversed(part)), part[0][1]

    def is_told(self, told: int) -> bool:
        """True if no record changed after `told`."""
        return told == self._last_change

    def is_known(self, name: str) -> bool:
        """True if the node has a record, removed or not."""
        return name in self._all

    def is_removed(self, name: str) -> bool:
        """True if a command removed the member."""
        return name in self._removed

    @property
    def removed(self) -> set[str]:
        """Return the names of the removed members."""
        return set(self._removed)

    @property
    def all(self) -> tuple[Member, ...]:
        """Return every record, removed members included."""
        return tuple(self._all.values())

    def check(self) -> None:
        """State who is a member, and who was removed."""
        removed = {name for name, member in self._all.items() if member.removed}
        strange = removed ^ self._removed.keys()
        holds(self, 36, "who was removed is remembered", not strange, strange)
        at = {name: member.grpc for name, member in self._all.items() if not member.removed}
        holds(self, 36, "members have their addresses", at == self._at, at.keys() ^ self._at.keys())
        holds(self, 36, "addresses are counted", Counter(at.values()) == self._addresses)
        ordered(self, 34, "removed members are bounded", len(removed), REMOVED)
        stored = {key.decode() for key, _ in self._table.items() if not key.startswith(b"\0")}
        holds(self, 36, "members are stored", stored == self._all.keys(), stored ^ self._all.keys())

    # internal

    def _take(self, news: dict[str, Member], source: object = None) -> None:
        if not news:
            return
        is_one_less = self._work_out(news, self._all)
        self._all.update(news)
        for name, member in news.items():
            self._note(name, member, source)
        if is_one_less:
            self.unsettlings += 1
        if self.is_settled and is_one_less:
            # Ids of the member that left have a new third keeper without their entries. The settled
            # mark changes before the records: a crash between the two must not leave the mark.
            self.is_settled = False
            self._table.put(_SETTLED, _ONCE)
        for member in news.values():
            fields = [member.name, member.grpc, member.site, member.version, member.removed]
            fields.append(member.identity)
            self._table.put(member.name.encode(), pack(fields))
        while len(self._removed) > REMOVED:
            self._forget(next(iter(self._removed)))
        self._notify()

    def _note(self, name: str, member: Member, source: object) -> None:
        self._last_change += 1
        before = self._at.pop(name, None)
        if before is not None:
            self._addresses[before] -= 1
            if not self._addresses[before]:
                del self._addresses[before]
        if not member.removed:
            self._at[name] = member.grpc
            self._addresses[member.grpc] += 1
        self._changes.pop(name, None)
        self._changes[name] = self._last_change, source
        self._removed.pop(name, None)
        if member.removed:
            self._removed[name] = None

    def _forget(self, name: str) -> None:
        del self._removed[name], self._all[name], self._changes[name]
        self._table.delete(name.encode())

    def _unsettle_for_good(self) -> None:
        """
        Void the settled mark of a node that was forgotten and returns.

        Other nodes began sessions with fewer keepers meanwhile. Thus the node's own entries prove
        no more than those of a newcomer.
        """
        self.is_settled = self.was_settled = False
        self.unsettlings += 1
        self._table.delete(_SETTLED)

    def _notify(self) -> None:
        run_all(self._actions)

    def _work_out(self, news: Mapping[str, Member | None], known: Mapping[str, Member]) -> bool:
        """Move members between sites; return True if this site lost a member."""
        joined: dict[str, set[str]] = {}
        left: dict[str, set[str]] = {}
        for name, member in news.items():
            # A wrong record from another node must not move this node to another site.
            now = self.site if name == self.name else _site_of(member)
            before = _site_of(known.get(name))
            if name == self.name:
                before = self.site if name in self.places else None
            if now != before and now is not None:
                joined.setdefault(now, set()).add(name)
            if now != before and before is not None:
                left.setdefault(before, set()).add(name)
        for site in joined.keys() | left.keys():
            places = self._sites.get(site) or RendezvousHash(())
            places = places.changed(joined.get(site, ()), left.get(site, ()))
            self._views.pop(site, None)
            if places.names:
                self._sites[site] = places
            else:
                del self._sites[site]
        self.is_alone = len(self.places.names) == 1
        self.is_only = self.is_alone and len(self._sites) <= 1
        return bool(left.get(self.site))


def _site_of(member: Member | None) -> str | None:
    return None if member is None or member.removed else member.site


def _digest(names: Iterable[str]) -> bytes:
    return blake2b("\0".join(names).encode(), digest_size=8).digest()
