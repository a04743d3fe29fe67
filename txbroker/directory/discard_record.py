"""A discard that could not be done at once, and its record."""

from __future__ import annotations

import attrs

from txbroker.directory.entry import pack, unpack
from txbroker.directory.requests import NONE_NAMED, UNKNOWN_AGE, Discard
from txbroker.model.machine_time import MachineTime, moment_from

ANY = 1 << 53
"""A generation above every incarnation: each session from before the CONNECT is older."""

ROUNDED = 2
"""Milliseconds by which an age between two moments may be too great."""


@attrs.frozen(kw_only=True)
class PendingDiscard:
    """
    A pending discard of kept sessions up to `generation`, or without a client since `began`.

    `began` None: unknown. `holders`: nodes that held a session and did not answer, each with its
    incarnation. The keepers may have forgotten these: the clean session counts above them there.
    """

    generation: int
    began: MachineTime | None = None
    holders: tuple[tuple[str, int], ...] = ()

    def request(
        self, client_id: str, incarnation: int, now: MachineTime, connection: int = NONE_NAMED
    ) -> Discard:
        """Return the request to a holder of the id; the arguments as in `Discard`."""
        age = None if self.began is None else self.began.age(now)
        return Discard(
            client_id=client_id,
            incarnation=incarnation,
            through=self.generation,
            # A session of the last 2 ms would count as newer, and the client would be refused.
            age=UNKNOWN_AGE if age is None else max(0, age - ROUNDED),
            connection=connection,
        )

    @property
    def record(self) -> bytes:
        """Encode the discard for the table; `pending_discard_from` is the inverse."""
        began = () if self.began is None else self.began.fields
        return pack([self.generation, list(began), [list(one) for one in self.holders]])


def pending_discard_from(record: bytes) -> PendingDiscard:
    """Decode a record; an earlier version of it has a generation alone."""
    (generation, *rest), _ = unpack(record)
    began, holders = rest or ((), ())
    return PendingDiscard(
        generation=generation,
        began=moment_from(began),
        holders=tuple((node, incarnation) for node, incarnation in holders),
    )
