"""
Sites that a root hears of for the first time: its sessions may have older ones there.

A root that lost its disk knows no other site before a node of that site has joined. Until then a
client begins a new session at the root, though an older one of the client is elsewhere. Keepers of
one site never hear of sessions of another site. So the root asks each new site about all sessions
that it holds at that time. Any other node has the complete list before it concludes anything.

The sites that were asked about are durable. A restart in between begins anew with the site. A
member may change its site's name again and again. So the oldest site without members is forgotten
where there are too many, and is asked again if it comes back.
"""

from __future__ import annotations

import attrs

from txbroker.directory.directory_ports import DurableTable
from txbroker.directory.members import LIMIT, Members
from txbroker.directory.session_ownership import SessionOwnership

AT_ONCE = 100
"""Sessions about which new sites are asked at the same time."""


class RootMerge:
    """The new sites of one root, whose sessions `ownership` has."""

    def __init__(self, members: Members, ownership: SessionOwnership, table: DurableTable) -> None:
        self._members = members
        self._ownership = ownership
        self._table = table
        self._left: dict[str, list[str]] = {}
        self._met = {key[1:].decode(): None for key, _ in table.items()}
        if members.is_root and not self._met:
            # A new folder, or one of an earlier version: that knew its sites as sessions began.
            for site in (members.site, *members.sites()):
                self._meet(site)

    def __len__(self) -> int:
        return len(self._met)

    def tick(self) -> None:
        """Have some sessions ask the sites that are new here."""
        if not self._members.is_root:
            return
        sites = self._members.sites()
        for site in self._left.keys() - sites:
            del self._left[site]  # each has an id for each session here
        for site in sites:
            if site not in self._met:
                self._ask(site)

    # internal

    def _ask(self, site: str) -> None:
        held, frozen = self._ownership.held, self._ownership.frozen
        left = self._left.setdefault(site, [])
        if not left:
            left += held
        moving = []
        for _ in range(min(len(left), AT_ONCE - len(self._ownership.unasked()))):
            client_id = left.pop()
            owned = held.get(client_id)
            if client_id in frozen:
                moving.append(client_id)  # its copy does not have the site; it may come to nothing
            elif owned is not None and site not in owned.unasked:
                unasked = tuple(sorted({*owned.unasked, site}))
                self._ownership.store(client_id, attrs.evolve(owned, unasked=unasked))
        left += moving
        if not left:
            del self._left[site]
            self._meet(site)

    def _meet(self, site: str) -> None:
        self._met[site] = None
        self._table.put(_key(site), b"1")
        if len(self._met) > LIMIT:
            present = {self._members.site, *self._members.sites()}
            gone = next((met for met in self._met if met not in present), None)
            if gone is not None:
                del self._met[gone]
                self._table.delete(_key(gone))


def _key(site: str) -> bytes:
    return b"=" + site.encode()
