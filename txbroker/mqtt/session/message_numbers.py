"""Messages of a session that cannot be read again: the store keeps each under a number."""

from __future__ import annotations

from txbroker.mqtt.session.window import OutboundMessage


class MessageNumbers:
    """Numbers count up for the whole life of the session; 0 is none."""

    __slots__ = ("_gone", "_last", "_new")

    def __init__(self) -> None:
        self._last = 0
        self._new: list[OutboundMessage] = []
        self._gone: list[int] = []

    def restore(self, entries: tuple[OutboundMessage, ...]) -> None:
        """All that there is on its way; what comes from another store has no number yet."""
        self._last = max(entry.number for entry in entries)
        for entry in entries:
            if entry.place is None and not entry.number:
                self.add(entry)

    def add(self, entry: OutboundMessage) -> None:
        """It is to be kept."""
        self._last = entry.number = self._last + 1
        self._new.append(entry)

    def forget(self, entry: OutboundMessage) -> None:
        """It has been delivered or dropped; most have no number."""
        if entry.number:
            self._gone.append(entry.number)

    def take(self) -> tuple[list[OutboundMessage], list[int]]:
        """What is to be kept since the last call, and the numbers that are gone."""
        new, self._new = self._new, []
        gone, self._gone = self._gone, []
        return [entry for entry in new if entry.number not in gone], gone
