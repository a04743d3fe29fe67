"""
Members that a command removed: what this node still keeps of them ends.

Theory of operation. The wills of a removed member's clients are published at once. Its entries stay
for a moment. A session of its may be on the way to another member, which alone has a copy. A clean
session that begins in that moment finds the entry, and asks all members for copies. Without the
entry nobody would look for the copy, and the copy would become a session.
"""

from __future__ import annotations

from txbroker.directory.client_wills import WillWatch
from txbroker.directory.directory_parts import DirectoryParts

MOMENT = 10.0
"""Seconds in which all members that can be reached hear of a removal."""


class LostMembers:
    """The members that were removed, as one node knows them; `watch` publishes their wills."""

    def __init__(self, parts: DirectoryParts, watch: WillWatch) -> None:
        self._members = parts.members
        self._entries = parts.replica.entries
        self._replicator = parts.replicator
        self._watch = watch
        self._now = parts.now
        self._spawn = parts.spawn
        self._known = parts.members.removed
        self._since = dict.fromkeys(self._known, parts.now())

    def on_members(self) -> None:
        """Note members that were removed now, and publish the wills of their clients."""
        removed = self._members.removed
        for name in removed - self._known:
            self._since[name] = self._now()
            self._replicator.forget_node(name)
            due = self._entries.with_wills(name)
            for entry in due:
                if (will := entry.testament) is not None:
                    self._entries.will_is_sent(entry.client_id, name, will.life, will.number)
            if due and name != self._members.name:
                self._spawn(self._watch.bury(name, due))
        self._known = removed

    def tick(self) -> None:
        """End the entries of members that were removed a moment ago."""
        for name, since in list(self._since.items()):
            if self._now() - since >= MOMENT:
                del self._since[name]
                if self._members.is_removed(name):
                    self._entries.forget_node(name)
