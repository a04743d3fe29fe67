"""
Checks of another member's messages about sessions, before use (protocol rule 28).

A number counts only near the greatest known number of its client id. Each next number is greater
than all before. So a far number would leave no room behind it, at any node and in any life. A will
must be a publish that its client may send.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from txbroker.delegation.peer_checks import check_name, check_near, check_properties
from txbroker.directory.entry import DirectoryEntry
from txbroker.directory.requests import (
    Answers,
    Claim,
    Claimed,
    Discard,
    Discarded,
    Entrust,
    Lookup,
    MovedTo,
    NotHeld,
    Offer,
    Register,
    Registered,
    Reply,
    Request,
    Supersede,
    Take,
    Taken,
)
from txbroker.model.errors import PeerError
from txbroker.model.topics import TopicError, validate_topic_name

Known = Callable[[str], int]
"""Returns the greatest known number of a client id; 0: none is known."""

MOST_QOS = 2

MOST_DELAY = 0xFFFFFFFF
"""Seconds of the longest will delay that a client can ask for."""


def check_request(request: Request, known: Known) -> None:
    """Check a request; raises `PeerError`."""
    for entry in _entries_of(request):
        _check_entry(entry, known)
    for client_id, number in _numbers_of(request):
        check_near("incarnation", number, known(client_id))


def check_answer(request: Request, answer: Reply, known: Known) -> None:
    """Check the reply to a request; raises `PeerError`."""
    match answer:
        case Answers(answers=answers):
            ids = request.client_ids if isinstance(request, Lookup) else ()
            if len(answers) != len(ids):
                raise PeerError(f"{len(answers)} answers for {len(ids)} client ids")
            for client_id, one in zip(ids, answers, strict=True):
                check_near("generation", one.generation, known(client_id))
                if one.entry is not None:
                    _check_is_about(client_id, one.entry)
                    _check_entry(one.entry, known)
        case Claimed(conflict=DirectoryEntry() as conflict):
            if isinstance(request, Claim):
                _check_is_about(request.entry.client_id, conflict)
            _check_entry(conflict, known)
        case Registered(conflicts=conflicts, past=past):
            for entry in (*conflicts, *past):
                _check_entry(entry, known)
        case Taken() | MovedTo() | NotHeld() | Discarded():
            asked = getattr(request, "incarnation", 0)
            client_id = getattr(request, "client_id", "")
            check_near("incarnation", answer.incarnation, max(asked, known(client_id)))


def _entries_of(request: Request) -> Iterator[DirectoryEntry]:
    match request:
        case Register(entries=entries, relayed=relayed):
            yield from entries
            yield from relayed
        case Claim(entry=entry):
            yield entry
        case Supersede(entries=entries):
            yield from entries


def _numbers_of(request: Request) -> Iterator[tuple[str, int]]:
    match request:
        case Take():
            yield request.client_id, max(request.incarnation, request.holds)
        case Offer() | Entrust() | Discard():
            yield request.client_id, request.incarnation


def _check_is_about(client_id: str, entry: DirectoryEntry) -> None:
    if entry.client_id != client_id:
        raise PeerError("an entry of another client id than was asked for")


def _check_entry(entry: DirectoryEntry, known: Known) -> None:
    check_name(entry.node)
    check_near("incarnation", max(entry.incarnation, entry.replaces), known(entry.client_id))
    directory_will = entry.testament
    if directory_will is None:
        return
    if directory_will.will.qos > MOST_QOS:
        raise PeerError(f"a will of QoS {directory_will.will.qos}")
    if directory_will.will.delay > MOST_DELAY:
        raise PeerError(f"a will with a delay of {directory_will.will.delay} s")
    check_properties((directory_will.will.properties,))
    try:
        validate_topic_name(directory_will.will.topic)
    except TopicError as error:
        raise PeerError(f"a will: {error}") from None
