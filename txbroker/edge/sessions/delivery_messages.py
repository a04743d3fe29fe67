"""Messages on their way to the sessions of an edge, which may keep them in memory for a while."""

from __future__ import annotations

from txbroker.core import Run
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.mqtt.wire.message import Message


class _Held:
    """Bytes that late messages keep in memory, counted once."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._uses = 0

    def hold(self) -> int:
        """Count one more use; return the bytes that the first one adds."""
        self._uses += 1
        return self._size if self._uses == 1 else 0

    def release(self) -> int:
        """Count one use less; return the bytes that are free after the last one."""
        self._uses -= 1
        return 0 if self._uses else self._size


class RunMessages(_Held):
    """The messages of a run, each decoded once."""

    def __init__(self, run: Run, part: JournalId) -> None:
        super().__init__(run.size)
        self.run = run
        self.part = part
        self._known: dict[int, Message] = {}

    def message(self, index: int) -> Message:
        """Return the message at `index`."""
        known = self._known.get(index)
        if known is None:
            known = self._known[index] = self.run.message(index)
        return known

    def place(self, index: int) -> LogPosition:
        """Return the place of the message at `index`."""
        return LogPosition(self.part, self.run.offset(index))


class SingleMessage(_Held):
    """A message that is in no run; the other fields are those of `Delivery.deliver`."""

    def __init__(self, message: Message, place: LogPosition | None, *, is_read: bool) -> None:
        super().__init__(message.size)
        self.message = message
        self.place = place
        self.is_read = is_read
