"""The pending discards of one node: discards that wait for nodes that did not answer."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from txbroker.directory.directory_ports import DurableTable
from txbroker.directory.discard_record import PendingDiscard, pending_discard_from

LIMIT = 10_000
"""Upper bound of ids with a pending discard; beyond it the oldest are forgotten."""

AT_ONCE = 20
"""Pending discards that one tick retries."""

RECENT = 60.0
"""Seconds for which a finished discard is retained, in case another site is heard of."""

SURE = 10.0
"""
Seconds between two searches that find no session.

A node that was cut off learns of newly joined nodes in that time.
"""


class PendingDiscards:
    """
    Client id -> its pending discard, in `table`.

    A finished discard of the last `RECENT` seconds may become pending again. A node hears of a new
    site a moment late, and the client may have begun a session there.
    """

    def __init__(self, table: DurableTable, now: Callable[[], float]) -> None:
        self._table = table
        self._now = now
        self._due = {key.decode(): pending_discard_from(value) for key, value in table.items()}
        self._whole: dict[str, float] = {}
        # A plain dict that loses its first key at each CONNECT is searched from its start.
        self._finished: OrderedDict[str, tuple[float, PendingDiscard]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._due)

    @property
    def finished_count(self) -> int:
        """Return the number of finished discards that may become pending again."""
        return len(self._finished)

    def get(self, client_id: str) -> PendingDiscard | None:
        """Return the pending discard of the id; None: the id has none."""
        return self._due.get(client_id)

    def turn(self) -> list[str]:
        """Return the ids to retry now; the next call returns others."""
        until = self._now() - RECENT
        while self._finished and next(iter(self._finished.values()))[0] <= until:
            self._finished.popitem(last=False)
        ids = list(self._due)[:AT_ONCE]
        for client_id in ids:
            self._due[client_id] = self._due.pop(client_id)
        return ids

    def put(self, client_id: str, due: PendingDiscard) -> None:
        """Store a discard in place of an earlier one of the id."""
        self._due.pop(client_id, None)
        self.doubt(client_id)
        self._due[client_id] = due
        self._table.put(client_id.encode(), due.record)
        while len(self._due) > LIMIT:
            self.forget(next(iter(self._due)))

    def finish(self, client_id: str, done: PendingDiscard) -> None:
        """Note a discard that is done, as far as this node knows the sites."""
        self._finished.pop(client_id, None)
        self._finished[client_id] = self._now(), done
        if len(self._finished) > LIMIT:
            self._finished.popitem(last=False)

    def reopen(self) -> None:
        """Make the discards of the last `RECENT` seconds pending again."""
        finished, self._finished = self._finished, OrderedDict()
        for client_id, (since, done) in finished.items():
            if client_id not in self._due and since > self._now() - RECENT:
                self.put(client_id, done)

    def doubt(self, client_id: str) -> None:
        """Note that something was found: two further searches must find no session."""
        self._whole.pop(client_id, None)

    def conclude(self, client_id: str) -> None:
        """Forget the discard after two searches, `SURE` seconds apart, that found no session."""
        if self._now() - self._whole.setdefault(client_id, self._now()) >= SURE:
            self.finish(client_id, self._due[client_id])
            self.forget(client_id)

    def forget(self, client_id: str) -> None:
        """Delete the discard of the id."""
        self.doubt(client_id)
        if self._due.pop(client_id, None) is not None:
            self._table.delete(client_id.encode())
