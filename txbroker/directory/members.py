"""
The nodes that this one knows, by site; the same list everywhere, sooner or later.

A node becomes a member when it joins the tree and stays one until a command removes it, whether it
is reachable or not: who keeps which entry of the directory must not change with every cut. Lists
are merged as a union. Each member's record has a version, which only that node raises for itself
(a new address) and a command raises to remove it; the greater version counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import blake2b

import attrs

from txbroker.directory.entry import pack, unpack
from txbroker.directory.ports import Table
from txbroker.directory.rendezvous import Rendezvous
from txbroker.turn import run_all
from txbroker.wire_checks import AHEAD

LIMIT = 10_000
"""Members that are kept; more are not taken in."""

_JOINED = b"\0joined"
_SETTLED = b"\0settled"
_NOW, _ONCE = b"now", b"once"


@attrs.frozen(kw_only=True)
class Member:
    """
    A node: its name, the address of its control plane (host:port), its site, the version; the
    identity of its data folder, where that is known.
    """

    name: str
    grpc: str
    site: str
    version: int
    removed: bool = False
    identity: str = ""

    @property
    def rank(self) -> tuple[int, bool, str, str, str]:
        """Of two records of one name the greater counts."""
        return (self.version, self.removed, self.grpc, self.site, self.identity)


class Members:
    """
    What node `name` of `site` knows. A root knows everyone there is; any other node is to be told
    once (`learn`) before it may conclude anything from its list.

    `is_alone`: this node is the only member of its site.

    The table is this object's alone. Changes are to be safe before anybody acts on them, which is
    the caller's concern.
    """

    def __init__(
        self, name: str, site: str, table: Table, *, is_root: bool, identity: str = ""
    ) -> None:
        self.name = name
        self.site = site
        self._identity = identity
        self._table = table
        self._all: dict[str, Member] = {}
        self._actions: list[Callable[[], None]] = []
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
        self.is_joined = is_root or table.get(_JOINED) is not None
        settled = table.get(_SETTLED)
        self.is_settled = settled == _NOW
        self.was_settled = settled is not None
        self._sites: dict[str, Rendezvous] = {}
        self._work_out()

    # who is there

    def get(self, name: str) -> Member | None:
        """A member; None where it is not one, or not any more."""
        member = self._all.get(name)
        return None if member is None or member.removed else member

    def sites(self) -> tuple[str, ...]:
        """The other sites."""
        return tuple(site for site in self._sites if site != self.site)

    def peers(self) -> tuple[str, ...]:
        """The other members of this node's site."""
        return tuple(name for name in self._sites[self.site].names if name != self.name)

    def keepers(self, client_id: str, site: str | None = None) -> tuple[str, ...]:
        """The members of a site (None: this one) that keep an id's entry, the first one first."""
        return self._sites[self.site if site is None else site].keepers(client_id)

    def view_of(self, site: str) -> bytes:
        """The digest of a site's members: equal where two nodes see the same ones."""
        return self._views[site]

    # what changes it

    def when_changed(self, action: Callable[[], None]) -> None:
        """Run `action` after each change, also of a mere address."""
        self._actions.append(action)

    def announce(self, grpc: str) -> None:
        """This node is at `grpc` now; it is a member from here on."""
        known = self._all.get(self.name)
        version = 1 if known is None else known.version
        mine = Member(
            name=self.name, grpc=grpc, site=self.site, version=version, identity=self._identity
        )
        if known is not None and known != mine:
            mine = attrs.evolve(mine, version=version + 1)
        self._take({self.name: mine} if known != mine else {})

    def learn(self, members: Iterable[Member]) -> None:
        """The parent told all it knows, and knows all there is."""
        is_news = not self.is_joined
        if is_news:
            self._table.put(_JOINED, b"1")
            self.is_joined = True
        if not self.merge(members) and is_news:
            self._tell()

    def merge(self, members: Iterable[Member]) -> bool:
        """Take in what another node knows; whether that changed anything."""
        news: dict[str, Member] = {}
        for member in members:
            known = news.get(member.name, self._all.get(member.name))
            if member.version > (0 if known is None else known.version) + AHEAD:
                continue  # one of 2^64-1 would stand for ever
            if known is None:
                if len(self._all) + len(news) < LIMIT:
                    news[member.name] = member
            elif member.rank > known.rank:
                if member.name == self.name and not known.removed:
                    # What this node says of itself is right; others may remember an earlier life.
                    if member.removed:
                        self._unsettle_for_good()
                    member = attrs.evolve(known, version=member.version + 1)
                news[member.name] = member
        self._take(news)
        return bool(news)

    def remove(self, name: str) -> bool:
        """By command: the node does not come back, and its sessions are gone with it."""
        member = self.get(name)
        if member is None:
            return False
        self._take({name: attrs.evolve(member, version=member.version + 1, removed=True)})
        return True

    def settle(self) -> None:
        """This node has been told what the members of its site know of its share of the ids."""
        self.is_settled = self.was_settled = True
        self._table.put(_SETTLED, _NOW)

    def news_for(self, told: dict[str, int]) -> tuple[Member, ...]:
        """What somebody who was told these versions does not know yet; notes it as told."""
        news = tuple(m for m in self._all.values() if told.get(m.name, -1) < m.version)
        told.update((member.name, member.version) for member in news)
        return news

    @property
    def all(self) -> tuple[Member, ...]:
        """Every record, removed ones included."""
        return tuple(self._all.values())

    # internal

    def _take(self, news: dict[str, Member]) -> None:
        if not news:
            return
        before = set(self._sites[self.site].names)
        self._all.update(news)
        self._work_out()
        if self.is_settled and before - set(self._sites[self.site].names):
            # Ids of the one that went have a new third keeper, who knows nothing of them. This is
            # forgotten first: the table keeps the order of changes.
            self.is_settled = False
            self._table.put(_SETTLED, _ONCE)
        for member in news.values():
            fields = [member.name, member.grpc, member.site, member.version, member.removed]
            fields.append(member.identity)
            self._table.put(member.name.encode(), pack(fields))
        self._tell()

    def _unsettle_for_good(self) -> None:
        """
        This node was forgotten and comes back: others began sessions with fewer keepers meanwhile.
        What it knows itself is worth as much as what a node knows that never was there.
        """
        self.is_settled = self.was_settled = False
        self._table.delete(_SETTLED)

    def _tell(self) -> None:
        run_all(self._actions)

    def _work_out(self) -> None:
        names: dict[str, list[str]] = {self.site: [self.name]}
        for member in self._all.values():
            if not member.removed and member.name != self.name:
                names.setdefault(member.site, []).append(member.name)
        self._sites = {site: Rendezvous(of_site) for site, of_site in names.items()}
        self._views = {site: _digest(places.names) for site, places in self._sites.items()}
        self.view = self._views[self.site]
        self.is_alone = len(names[self.site]) == 1


def _digest(names: Iterable[str]) -> bytes:
    return blake2b("\0".join(names).encode(), digest_size=8).digest()
