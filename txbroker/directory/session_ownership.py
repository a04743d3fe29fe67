"""
Kept sessions at their holder: which are here, which are leaving, which are arriving.

The holder of a session decides who gets it; whoever asks takes one step after the other:

    take      the holder stops the session and gives a copy with a token
    (copy)    the taker makes the copy durable; it serves nothing yet
    release   the holder durably leaves a tombstone: the session is the taker's
    (adopt)   the taker opens it

Calls may be cut or nodes die on the way. One of the two nodes can always tell, and the other one
asks it until it does. docs/guarantees.md has a table of the cases. Nothing here is safe before the
store says so; the shell waits for that before a reply leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs

from txbroker.directory.directory_ports import DurableTable, PendingPublishes, SessionHost
from txbroker.directory.entry import pack, unpack
from txbroker.directory.requests import (
    Busy,
    Left,
    MovedTo,
    NotHeld,
    NotReleased,
    Release,
    Released,
    Take,
    Taken,
)
from txbroker.directory.tombstone import Tombstone, tombstones_from, tombstones_record
from txbroker.model.invariant import holds, ordered
from txbroker.model.machine_time import MachineTime, moment_from

PATIENCE = 2.0
"""Seconds during which a session that moves to one node is refused to another."""

FREEZE_LIMIT = 10.0
"""Seconds after which a frozen session that no node fetched resumes here."""

LIMIT = 1_000_000
"""Upper bound of ids with tombstones; at this bound no further session moves away."""

LEFT_LIMIT = 16
"""Upper bound of a session's earlier holders; the oldest, finished long ago, is dropped first."""


@attrs.frozen(kw_only=True)
class OwnedSession:
    """
    A session here. `unasked`: sites that could not be asked when it was begun. `left`: earlier
    holders with publishes to finish. `since`: the last CONNECT to it here, where that is known.
    """

    incarnation: int
    unasked: tuple[str, ...] = ()
    left: tuple[Left, ...] = ()
    since: MachineTime | None = None


@attrs.frozen(kw_only=True)
class FrozenSession:
    """On its way to `node` since `since`."""

    node: str
    token: bytes
    incarnation: int
    since: float


@attrs.frozen(kw_only=True)
class ArrivingSession:
    """
    A durable copy from `node`, not released yet as far as this node knows. `since`: what the node
    had lived when it came, in microseconds. `is_void`: a clean session has begun here since, so it
    is not to be opened when it is released.
    """

    node: str
    token: bytes
    incarnation: int
    state: bytes
    unasked: tuple[str, ...] = ()
    left: tuple[Left, ...] = ()
    since: int = 0
    is_void: bool = False


@attrs.frozen(kw_only=True)
class OwnershipTables:
    """Where a node keeps which sessions are here, are gone, and arrive."""

    held: DurableTable
    gone: DurableTable
    arriving: DurableTable


class SessionOwnership:
    """
    The kept sessions of node `name`; its tables keep what is here, went, and arrives.

    Invariant: a session that is frozen is held, at a lower incarnation than its copy has.
    Invariant: a session that is held has a greater incarnation than its tombstone, or the same.
    """

    def __init__(
        self,
        name: str,
        *,
        tables: OwnershipTables,
        host: SessionHost,
        make_token: Callable[[], bytes],
        lived: Callable[[], int] = lambda: 0,
        limit: int = LIMIT,
    ) -> None:
        self._name = name
        self._lived = lived
        self._limit = limit
        held, gone, arriving = tables.held, tables.gone, tables.arriving
        self._held_table, self._gone_table, self._arriving_table = held, gone, arriving
        self._host = host
        self._make_token = make_token
        self.held = {key.decode(): _holding(value) for key, value in held.items()}
        self._gone = {key.decode(): tombstones_from(value, lived()) for key, value in gone.items()}
        self.arriving = {key.decode(): _arriving(value, lived()) for key, value in arriving.items()}
        self.frozen: dict[str, FrozenSession] = {}
        self._unfinished: dict[str, None] = {}
        for client_id, owned in self.held.items():
            self._mark_changed(client_id, owned)

    # from the directory

    @property
    def tombstone_ids(self) -> tuple[str, ...]:
        """Return the ids with tombstones."""
        return tuple(self._gone)

    def tombstone(self, client_id: str) -> Tombstone | None:
        """Return the newest tombstone of a session that was here; None: the id has no tombstone."""
        tombstones = self._gone.get(client_id)
        return tombstones[-1] if tombstones else None

    def tombstones(self) -> Iterator[tuple[str, Tombstone]]:
        """Yield each unconfirmed tombstone with its client id."""
        for client_id, tombstones in self._gone.items():
            for one in tombstones:
                if not one.confirmed:
                    yield client_id, one

    def unconfirmed_taker(self, client_id: str, token: bytes) -> str | None:
        """Return the node that got the copy `token`; None: the move is confirmed, or unknown."""
        moves = (one for one in self._gone.get(client_id, ()) if one.token == token)
        return next((one.node for one in moves if not one.confirmed), None)

    def is_awaited(self, client_id: str, is_member: Callable[[str], object]) -> bool:
        """True if a member may still ask this node for a session that moved to that member."""
        return any(is_member(one.node) for one in self._gone.get(client_id, ()))

    def start(self) -> None:
        """Reconcile the stored sessions with this table after a start."""
        for client_id, owned in list(self.held.items()):
            tombstone = self.tombstone(client_id)
            if tombstone is not None and tombstone.incarnation > owned.incarnation:
                self.drop(client_id)
                self._host.discard(client_id, is_moved=True)
            elif not self._host.is_kept(client_id):
                self.drop(client_id)
            else:
                self._await_remains(client_id, owned)

    def store(self, client_id: str, owned: OwnedSession) -> None:
        """Store the session's ownership, new or changed, and forget its confirmed tombstones."""
        self.held[client_id] = owned
        self._mark_changed(client_id, owned)
        self._held_table.put(client_id.encode(), _holding_record(owned))
        self.forget_gone(client_id)

    def drop(self, client_id: str) -> None:
        """Delete the ownership of a session that has ended."""
        self.frozen.pop(client_id, None)
        self._unfinished.pop(client_id, None)
        if self.held.pop(client_id, None) is not None:
            self._held_table.delete(client_id.encode())
            # This node asks the earlier holders no more, and would never hear that they are done.
            self._host.forget_remains(client_id)

    def supersede(self, client_id: str) -> int:
        """
        End the kept session for a clean one; return the last known incarnation of the id, or 0.
        """
        if not (client_id in self.held or client_id in self.arriving or client_id in self._gone):
            return 0
        arriving = self.arriving.get(client_id)
        known = self.held.get(client_id), arriving, self.tombstone(client_id)
        self.drop(client_id)
        if arriving is not None and not arriving.is_void:
            self._store_arriving(client_id, attrs.evolve(arriving, is_void=True))
        return max(one.incarnation for one in known if one is not None)

    def has_begun_beside(self, arriving: ArrivingSession, client_id: str) -> bool:
        """True if a session began here after the copy came: it may be known, the release is not."""
        known = self.held.get(client_id), self.tombstone(client_id)
        return any(one is not None and one.incarnation >= arriving.incarnation for one in known)

    def forget_gone(self, client_id: str) -> None:
        """Forget confirmed tombstones; a taker may still ask for the unconfirmed ones."""
        kept = tuple(one for one in self._gone.get(client_id, ()) if not one.confirmed)
        self._bury(client_id, kept)

    def expire(self, now: float) -> None:
        """Thaw frozen sessions that no node fetched within `FREEZE_LIMIT`."""
        for client_id, frozen in list(self.frozen.items()):
            if now - frozen.since >= FREEZE_LIMIT:
                self.thaw(client_id)

    def thaw(self, client_id: str) -> None:
        """
        Resume a frozen session: its client is here again, or no node fetched it. Issued copies are
        void.
        """
        if self.frozen.pop(client_id, None) is not None:
            self._host.thaw(client_id)

    # from the node that fetches a session

    def freeze(self, source: str, request: Take, now: float) -> Taken | MovedTo | NotHeld | Busy:
        """Return a copy of the session for `source`, and freeze the session."""
        client_id = request.client_id
        owned = self.held.get(client_id)
        if owned is None:
            tombstone = self.tombstone(client_id)
            if tombstone is None:
                return NotHeld()
            return MovedTo(node=tombstone.node, incarnation=tombstone.incarnation)
        if len(self._gone) >= self._limit and client_id not in self._gone:
            return Busy()
        before = self.frozen.get(client_id)
        if before is not None and before.node != source and now - before.since < PATIENCE:
            return Busy()
        self._host.close(client_id)
        if not self._host.is_quiet(client_id):
            return Busy()
        state = self._host.freeze(client_id)
        if state is None:
            self.drop(client_id)
            return NotHeld(incarnation=owned.incarnation)
        frozen = FrozenSession(
            node=source,
            token=self._make_token(),
            incarnation=max(owned.incarnation, request.holds) + 1,
            since=now,
        )
        self.frozen[client_id] = frozen
        here = Left(
            node=self._name, token=frozen.token, remains=self._host.pending_publishes(client_id)
        )
        return Taken(
            incarnation=frozen.incarnation,
            token=frozen.token,
            state=state,
            unasked=owned.unasked,
            left=(*owned.left, here),
        )

    def release(self, source: str, request: Release) -> Released | NotReleased:
        """
        Move the session to `source`, whose copy is durable; the move counts once it is durable
        here.
        """
        client_id = request.client_id
        tombstones = self._gone.get(client_id, ())
        if any(one.token == request.token for one in tombstones):
            return Released()
        frozen = self.frozen.get(client_id)
        if frozen is None or (frozen.node, frozen.token) != (source, request.token):
            return NotReleased()
        gone = Tombstone(
            node=source,
            token=frozen.token,
            incarnation=frozen.incarnation,
            since=self._lived(),
        )
        self._bury(client_id, (*(one for one in tombstones if not one.confirmed), gone))
        self.drop(client_id)
        self._host.release(client_id, frozen.token)
        return Released()

    def confirm(self, client_id: str, token: bytes) -> bool:
        """
        Note that the new holder uses its copy; return True if a tombstone here was unconfirmed
        before.
        """
        tombstones = self._gone.get(client_id, ())
        if not any(one.token == token and not one.confirmed for one in tombstones):
            return False
        now = (attrs.evolve(o, confirmed=o.confirmed or o.token == token) for o in tombstones)
        self._bury(client_id, tuple(now))
        return True

    # from the takeover at this node

    def store_copy(self, client_id: str, node: str, taken: Taken) -> None:
        """Store a copy; the copy must be durable before its release."""
        arriving = ArrivingSession(
            node=node,
            token=taken.token,
            incarnation=taken.incarnation,
            state=taken.state,
            unasked=taken.unasked,
            left=taken.left[-LEFT_LIMIT:],
            since=self._lived(),
        )
        self._store_arriving(client_id, arriving)

    def refuse(self, client_id: str) -> None:
        """Delete a copy that the earlier holder did not release: the copy is void."""
        if self.arriving.pop(client_id, None) is not None:
            self._arriving_table.delete(client_id.encode())

    def adopt(self, client_id: str) -> OwnedSession:
        """Open a released copy, merged with a session that is here already."""
        arriving = self.arriving[client_id]
        known, gone = self.held.get(client_id), self.tombstone(client_id)
        away = (self._lived() - arriving.since) / 1e6
        self._host.adopt(client_id, arriving.state, arriving.incarnation, away)
        # A session that began beside the copy may have left: a start would drop one below it.
        incarnation = max(arriving.incarnation, 0 if gone is None else gone.incarnation + 1)
        owned = OwnedSession(incarnation=incarnation, unasked=arriving.unasked, left=arriving.left)
        if known is not None:
            self.thaw(client_id)
            owned = OwnedSession(
                incarnation=max(known.incarnation, arriving.incarnation),
                unasked=tuple(sorted({*known.unasked, *arriving.unasked})),
                left=(*known.left, *arriving.left)[-LEFT_LIMIT:],
                since=known.since,
            )
        self.store(client_id, owned)
        self.refuse(client_id)
        self._await_remains(client_id, owned)
        followed = {left.node for left in owned.left}
        for left in () if known is None else known.left:
            if left.node not in followed:  # beyond the limit: nobody asks it any more
                self._host.await_remains(client_id, left.node, PendingPublishes())
        return owned

    def earlier_holders(self) -> Iterator[tuple[str, Left]]:
        """
        Yield the client ids here with each earlier holder that has publishes to finish.

        A frozen session is left out: its copy would miss the answer, so the next holder asks.
        """
        for client_id in list(self._unfinished):
            if client_id not in self.frozen:
                for left in self.held[client_id].left:
                    yield client_id, left

    def awaits_others(self, client_id: str, left: Left) -> bool:
        """True if another earlier holder of the session has pending publishes for it."""
        owned = self.held.get(client_id)
        return owned is not None and any(
            other.remains.zones for other in owned.left if other.token != left.token
        )

    def unasked(self) -> list[str]:
        """Return the client ids here for which other sites must still be asked."""
        return [client_id for client_id in self._unfinished if self.held[client_id].unasked]

    def on_pending_publishes(
        self, client_id: str, left: Left, pending_publishes: PendingPublishes, *, is_resolved: bool
    ) -> None:
        """
        Store the pending publishes that an earlier holder reported.

        An earlier holder with no pending publishes is dropped once it knows that the session is
        resolved.
        """
        owned = self.held.get(client_id)
        if owned is None or left not in owned.left or client_id in self.frozen:
            return
        self._host.await_remains(client_id, left.node, pending_publishes)
        others = tuple(other for other in owned.left if other != left)
        if pending_publishes.zones or not is_resolved:
            if left.remains.zones != pending_publishes.zones:
                now = attrs.evolve(left, remains=PendingPublishes(zones=pending_publishes.zones))
                self.store(client_id, attrs.evolve(owned, left=(*others, now)))
        else:
            self.store(client_id, attrs.evolve(owned, left=others))

    def check(self) -> None:
        """State that a session is here, or went; after the end of a turn."""
        for client_id, frozen in self.frozen.items():
            held = self.held.get(client_id)
            holds(self, 18, "what is frozen is held", held is not None, client_id)
            known = 0 if held is None else held.incarnation
            ordered(self, 19, "held < frozen", known + 1, frozen.incarnation)
        for client_id, one in self.held.items():
            gone = self.tombstone(client_id)
            before = 0 if gone is None else gone.incarnation
            ordered(self, 19, "tombstone <= held", before, one.incarnation)
            is_open = bool(one.left or one.unasked)
            holds(self, 18, "what is open is known", is_open == (client_id in self._unfinished))
        strange = self._unfinished.keys() - self.held.keys()
        holds(self, 18, "only what is held is open", not strange, strange)
        for name, here, table in (
            ("held", self.held, self._held_table),
            ("gone", self._gone, self._gone_table),
            ("arriving", self.arriving, self._arriving_table),
        ):
            stored = {key.decode() for key, _ in table.items()}
            holds(self, 18, f"{name} is stored", stored == here.keys(), stored ^ here.keys())

    # internal

    def _store_arriving(self, client_id: str, arriving: ArrivingSession) -> None:
        self.arriving[client_id] = arriving
        self._arriving_table.put(client_id.encode(), _arriving_record(arriving))

    def _mark_changed(self, client_id: str, owned: OwnedSession) -> None:
        if owned.left or owned.unasked:
            self._unfinished[client_id] = None
        else:
            self._unfinished.pop(client_id, None)

    def _await_remains(self, client_id: str, owned: OwnedSession) -> None:
        for left in owned.left:
            self._host.await_remains(client_id, left.node, left.remains)

    def _bury(self, client_id: str, tombstones: tuple[Tombstone, ...]) -> None:
        if tombstones:
            self._gone[client_id] = tombstones
            self._gone_table.put(client_id.encode(), tombstones_record(tombstones))
        elif self._gone.pop(client_id, None) is not None:
            self._gone_table.delete(client_id.encode())


# -- records


def _left_fields(left: tuple[Left, ...]) -> list[list[object]]:
    return [[one.node, one.token.hex(), list(one.remains.zones)] for one in left]


def _left_from(fields: list[list[object]]) -> tuple[Left, ...]:
    return tuple(
        Left(
            node=str(node),
            token=bytes.fromhex(str(token)),
            remains=PendingPublishes(zones=tuple(zones)),  # type: ignore[arg-type]
        )
        for node, token, zones in fields
    )


def _holding_record(owned: OwnedSession) -> bytes:
    since = () if owned.since is None else owned.since.fields
    left = _left_fields(owned.left)
    return pack([owned.incarnation, list(owned.unasked), left, list(since)])


def _holding(record: bytes) -> OwnedSession:
    """Decode a record; an earlier version of it has no time of the last CONNECT."""
    (incarnation, unasked, left, *rest), _ = unpack(record)
    return OwnedSession(
        incarnation=incarnation,
        unasked=tuple(unasked),
        left=_left_from(left),
        since=moment_from(rest[0]) if rest else None,
    )


def _arriving_record(arriving: ArrivingSession) -> bytes:
    fields = [
        arriving.node,
        arriving.token.hex(),
        arriving.incarnation,
        list(arriving.unasked),
        _left_fields(arriving.left),
        arriving.since,
        arriving.is_void,
    ]
    return pack(fields, arriving.state)


def _arriving(record: bytes, lived: int) -> ArrivingSession:
    """Decode a record; an earlier version of it has no age, and counts from `lived`."""
    (node, token, incarnation, unasked, left, *rest), state = unpack(record)
    since, is_void = rest or (lived, False)
    return ArrivingSession(
        node=node,
        token=bytes.fromhex(token),
        incarnation=incarnation,
        state=state,
        since=since,
        is_void=is_void,
        unasked=tuple(unasked),
        left=_left_from(left),
    )
