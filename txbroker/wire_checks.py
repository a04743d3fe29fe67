"""
What another node says, before anything of it is used: lengths, numbers, places in the tree.

A lie is refused whole. One client id of 70,000 bytes stopped the commits of an owner, a cut outside
a child's zone took the zone of a living sibling, a version of 2^64-1 ended all later joins.
"""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from txbroker.delegation.cut import Cut
from txbroker.delegation.table import TableState
from txbroker.errors import PeerError
from txbroker.topics import TopicError, is_within, validate_apex, validate_topic_name

MOST_TEXT = 65_535
"""Bytes of any text: the longest that MQTT has."""

MOST_NUMBER = 1 << 62
"""Every number is below: a counter that starts there has room for as many again."""

AHEAD = 1 << 32
"""An epoch, a version or an incarnation is at most so far above the one that is known."""

_SHOWN = 60
_NUMBERS = frozenset(
    {
        FieldDescriptor.CPPTYPE_UINT64,
        FieldDescriptor.CPPTYPE_INT64,
        FieldDescriptor.CPPTYPE_UINT32,
        FieldDescriptor.CPPTYPE_INT32,
    }
)


def check(message: Message) -> None:
    """Check the texts and numbers of a message, at any depth; raises `PeerError`."""
    for field, found in message.ListFields():
        values = found if field.is_repeated else (found,)
        if field.message_type is not None:
            for value in values:
                check(value)
        elif field.cpp_type == field.CPPTYPE_STRING and field.type == field.TYPE_STRING:
            for value in values:
                _check_text(field.full_name, value)
        elif field.cpp_type in _NUMBERS:
            for value in values:
                if not 0 <= value < MOST_NUMBER:
                    raise PeerError(f"{field.full_name}: {value} is no number below 2^62")


def check_texts(what: str, texts: Iterable[str]) -> None:
    """Check some texts; raises `PeerError`."""
    for text in texts:
        _check_text(what, text)


def check_near(what: str, number: int, known: int) -> None:
    """Refuse a number too far above the one that is known; raises `PeerError`."""
    if number > known + AHEAD:
        raise PeerError(f"{what}: {number} is more than 2^32 above {known}, which is known")


def check_below(apex: str, cuts: Iterable[Cut]) -> None:
    """Refuse cuts that do not lie strictly below the apex, or twice; raises `PeerError`."""
    known: set[str] = set()
    for cut in cuts:
        _check_cut(apex, cut)
        if cut.apex in known:
            raise PeerError(f"zone {_short(cut.apex)} is told twice")
        known.add(cut.apex)


def check_subtree(apex: str, subtree: TableState) -> None:
    """Check what comes along with a zone that is given back; raises `PeerError`."""
    check_below(apex, (entry.cut for entry in subtree.delegations))
    for entry in subtree.delegations:
        check_below(entry.cut.apex, entry.below)
    for cut in subtree.reclaimed:
        _check_cut(apex, cut)
    for known in subtree.epochs:
        _check_inside(apex, known)


def check_topics(apex: str, topics: Iterable[str]) -> None:
    """Refuse topics that are none, or lie outside the apex; raises `PeerError`."""
    for topic in topics:
        try:
            validate_topic_name(topic)
        except TopicError as error:
            raise PeerError(f"{_short(topic)}: {error}") from None
        if not is_within(topic, apex):
            raise PeerError(f"topic {_short(topic)} is not of zone {_short(apex)}")


def _check_cut(apex: str, cut: Cut) -> None:
    _check_inside(apex, cut.apex)
    if not cut.epoch or not cut.node:
        raise PeerError(f"zone {_short(cut.apex)} is told without its epoch or its node")


def _check_inside(apex: str, below: str) -> None:
    try:
        validate_apex(below)
    except TopicError as error:
        raise PeerError(f"zone {_short(below)}: {error}") from None
    if below == apex or not is_within(below, apex):
        raise PeerError(f"zone {_short(below)} does not lie below {_short(apex)}")


def _check_text(what: str, text: str) -> None:
    if len(text) * 4 > MOST_TEXT and len(text.encode()) > MOST_TEXT:
        raise PeerError(f"{what}: a text of {len(text)} characters is too long")


def _short(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")
