"""Encodes a node's sessions for operators' calls."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping

from txbroker.journal.history.held_journals import HeldBack
from txbroker.journal.store.retention import HeldPart
from txbroker.mqtt.session.session import Session
from txbroker.v1 import control_pb2

PAGE_BYTES = 256 * 1024
"""Approximate bytes of client ids in one reply; an id has up to 65,535 bytes."""

HELD_SHOWN = 20
"""Edges and sessions that a status lists as holding journals back."""

LOSSES_SHOWN = 100
"""Sessions that a status lists for dropped messages."""


def session_pages(
    sessions: Iterable[Session],
    now: float,
    distance: Callable[[Session], int],
    lifetime: Callable[[Session], float],
    held: Mapping[str, HeldBack],
) -> Iterator[control_pb2.SessionsReply]:
    """
    Return all sessions in replies small enough for any channel, those that hold back most first.

    `distance` returns the number of records behind a session's cursors, `lifetime` the seconds that
    it outlives its connection. `held` has what each session holds back, by client id.
    """
    nothing = HeldBack()
    page = control_pb2.SessionsReply()
    size = 0
    found = [(held.get(session.client_id, nothing), session) for session in sessions]
    found.sort(key=lambda pair: (-pair[0].size, pair[1].client_id))
    for back, session in found:
        page.sessions.append(_info(session, now, distance(session), lifetime(session), back))
        size += len(session.client_id) + 32
        if size >= PAGE_BYTES:
            yield page
            page, size = control_pb2.SessionsReply(), 0
    if size:
        yield page


def losses(sessions: Iterable[Session]) -> Iterator[control_pb2.SessionLoss]:
    """Return the sessions with the most dropped messages, the worst first."""
    known = ((session.sender.dropped, session.client_id) for session in sessions)
    lost = (loss for loss in known if loss[0])
    for dropped, client_id in heapq.nlargest(LOSSES_SHOWN, lost):
        yield control_pb2.SessionLoss(client_id=client_id, dropped=dropped)


def _info(
    session: Session, now: float, distance: int, lifetime: float, held: HeldBack
) -> control_pb2.SessionInfo:
    away_since = session.away_since
    return control_pb2.SessionInfo(
        client_id=session.client_id,
        clean=session.clean,
        connected=session.sink is not None,
        away=0.0 if away_since is None else now - away_since,
        subscriptions=len(session.subscriptions) + len(session.shared),
        waiting=session.sender.queued + distance,
        dropped=session.sender.dropped,
        held_size=held.size,
        held_age=held.age,
        held_unknown=not held.is_whole,
        level=session.level,
        expiry=lifetime,
    )


def held(found: Iterable[HeldPart], now: float) -> Iterator[control_pb2.Held]:
    """Return the holders of the journals and their amounts; `now` is in UTC seconds."""
    for one in found:
        age = max(now - one.since / 1e6, 0.0) if one.since else 0.0
        yield control_pb2.Held(
            edge=one.edge,
            client_id=one.client_id,
            zone=one.zone,
            epoch=one.epoch,
            size=one.size,
            age=age,
            silent=one.silent,
        )
