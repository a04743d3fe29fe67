"""Numbers of a session's messages that no journal has: the store has each under its number."""

from __future__ import annotations

from txbroker.mqtt.session.window import OutboundMessage


class MessageNumbers:
    """The numbers of one session; they increase for the session's whole life, and 0 is none."""

    __slots__ = ("_gone", "_last", "_new")

    def __init__(self) -> None:
        self._last = 0
        self._new: list[OutboundMessage] = []
        self._gone: list[int] = []

    def restore(self, entries: tuple[OutboundMessage, ...]) -> None:
        """Load all outbound messages; messages from another store get their numbers here."""
        self._last = max(entry.number for entry in entries)
        for entry in entries:
            if entry.place is None and not entry.number:
                self.add(entry)

    def add(self, entry: OutboundMessage) -> None:
        """Give a message its number, and mark it as unsaved."""
        self._last = entry.number = self._last + 1
        self._new.append(entry)

    def forget(self, entry: OutboundMessage) -> None:
        """Release the number of a delivered or dropped message; most messages have none."""
        if entry.number:
            self._gone.append(entry.number)

    def dequeue_changes(self) -> tuple[list[OutboundMessage], list[int]]:
        """Return the messages to store since the last call, and the numbers to delete."""
        new, self._new = self._new, []
        gone, self._gone = self._gone, []
        return [entry for entry in new if entry.number not in gone], gone
